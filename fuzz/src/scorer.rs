//! The targets of the crate `scorer`: parity rows, the vectors of items, and their differences.

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_registry::VersionId;
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{
    Choice, DenseType, ItemDelta, ItemIds, ItemVectors, ParityColumn, ParityRows, ParityValue,
    Texts, find_nearest,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 3] = [&PARITY_FILES, &ITEM_FILES, &ITEM_DELTAS];

/// The reader of parity rows, and their replay with a model whose scores are all 0.
pub const PARITY_FILES: Target = Target {
    name: "parity_files",
    read: |bytes| {
        let Ok(parity) = ParityRows::from_json(bytes) else { return false };
        let tasks: Vec<String> = (0..parity.logits.len()).map(|task| task.to_string()).collect();
        let scores = || vec![vec![0.0]; tasks.len()];
        let (version, dense, pace) = (VersionId(1), DenseType::F32, &mut Unthrottled);
        parity.replay(version, &tasks, dense, |_| Ok(scores()), pace).is_ok()
    },
    seeds: || {
        let column = |name: &str, values: Vec<ParityValue>, lengths: Option<Vec<usize>>| {
            ParityColumn { name: name.to_owned(), values, lengths }
        };
        let text = |text: &str| ParityValue::Text(text.to_owned());
        let columns = vec![
            column("user", vec![ParityValue::Int(-7), ParityValue::Uint(u64::MAX)], None),
            column("tags", vec![text("a"), text("b"), text("c")], Some(vec![3, 0])),
            column("age", vec![ParityValue::Float(0.5), ParityValue::Missing], None),
            column("new", vec![ParityValue::Bool(true), ParityValue::Bool(false)], None),
        ];
        let logits = vec![vec![0.0, 0.0], vec![0.0, 0.0]];
        let computed_with = "x86_64-avx2".to_owned();
        vec![ParityRows { rows: 2, columns, logits, computed_with }.to_json()]
    },
};

/// The reader of the vectors of items, and a search among them.
pub const ITEM_FILES: Target = Target {
    name: "item_files",
    read: |bytes| {
        let Ok(items) = ItemVectors::from_bytes(bytes, &mut Unthrottled) else { return false };
        let workers = Workers::new(NonZeroUsize::MIN).expect("a pool of one thread starts none");
        let user = vec![1.0; items.dim()];
        let found = find_nearest(&items, &user, 10, Choice::default(), &workers, None);
        let found = found.expect("the user has the width of the items");
        found.iter().all(|found| items.find(&items.ids().get(found.item as usize)).is_ok())
    },
    seeds: || {
        let mut texts = Texts::default();
        ["a", "é", "c d"].into_iter().for_each(|text| texts.push(text));
        let ids = [ItemIds::Ints(vec![-7, 0, 9]), ItemIds::Uints(vec![u64::MAX, 1, 2])];
        let files = ids.into_iter().chain([ItemIds::Texts(texts)]).map(|ids| {
            let vectors = vec![0.5, -1.0, 2.0, 0.0, 1e-9, 3e30];
            let user = vec!["user".to_owned(), "history".to_owned()];
            let items = ItemVectors::new(ids, vectors, 2, 5.0, user, &mut Unthrottled);
            items.and_then(|items| items.to_bytes()).expect("the items can be written")
        });
        files.collect()
    },
};

/// The reader of a difference of items, and its application to the items that it is made for.
pub const ITEM_DELTAS: Target = Target {
    name: "item_deltas",
    read: |bytes| {
        let Ok(delta) = ItemDelta::from_bytes(bytes, &mut Unthrottled) else { return false };
        [earlier_ints(), earlier_texts()]
            .iter()
            .any(|earlier| delta.apply(earlier, &mut Unthrottled).is_ok())
    },
    seeds: || {
        let ints = integers(&[1, 7, 3, 8], &[1.0, 2.0, 0.0, 0.5]);
        let texts = texts(&["a", "new", "c"], &[1.0, 2.0, 3.0]);
        let changed = integers(&[1, 2, 3, 4], &[1.0, 2.0, 9.0, 4.0]);
        let pairs = [(earlier_ints(), ints), (earlier_texts(), texts), (earlier_ints(), changed)];
        let file = |(earlier, now): &(ItemVectors, ItemVectors)| {
            let hash = |items: &ItemVectors| items.hash(&mut Unthrottled).expect("a small list");
            let delta = ItemDelta::between(earlier, &hash(earlier), now, &hash(now));
            delta.expect("the order is the same").to_bytes().expect("a small list")
        };
        pairs.iter().map(file).collect()
    },
};

fn earlier_ints() -> ItemVectors {
    integers(&[1, 2, 3, 4], &[1.0, 2.0, 3.0, 4.0])
}

fn earlier_texts() -> ItemVectors {
    texts(&["a", "b", "c"], &[1.0, 2.0, 3.0])
}

fn integers(ids: &[i64], vectors: &[f32]) -> ItemVectors {
    items(ItemIds::Ints(ids.to_vec()), vectors)
}

fn texts(ids: &[&str], vectors: &[f32]) -> ItemVectors {
    let mut texts = Texts::default();
    ids.iter().for_each(|text| texts.push(text));
    items(ItemIds::Texts(texts), vectors)
}

fn items(ids: ItemIds, vectors: &[f32]) -> ItemVectors {
    let items = ItemVectors::new(ids, vectors.to_vec(), 1, 5.0, Vec::new(), &mut Unthrottled);
    items.expect("the items are valid")
}
