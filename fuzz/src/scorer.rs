//! The targets of the crate `scorer`: parity rows, and the vectors of items.

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_registry::VersionId;
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{
    Choice, DenseType, ItemIds, ItemVectors, ParityColumn, ParityRows, ParityValue, Texts,
    find_nearest,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 2] = [&PARITY_FILES, &ITEM_FILES];

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
