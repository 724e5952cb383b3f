//! The target of the crate `scorer`: parity rows.

use zillion_registry::VersionId;
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{ParityColumn, ParityRows, ParityValue};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 1] = [&PARITY_FILES];

/// The reader of parity rows, and their replay with a model whose scores are all 0.
pub const PARITY_FILES: Target = Target {
    name: "parity_files",
    read: |bytes| {
        let Ok(parity) = ParityRows::from_json(bytes) else { return false };
        let tasks: Vec<String> = (0..parity.logits.len()).map(|task| task.to_string()).collect();
        let scores = || vec![vec![0.0]; tasks.len()];
        let replayed = parity.replay(VersionId(1), &tasks, |_| Ok(scores()), &mut Unthrottled);
        replayed.is_ok()
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
