//! Tests of whole tables. They compare tables with a model, and compare tables on different numbers
//! of shards and threads.

mod adopt;
mod capacity;
mod chains;
mod changes;
mod dtypes;
mod event_time;
mod frozen;
mod growth;
mod guards;
mod invariance;
mod known;
mod learning;
mod life;
mod limits;
mod model;
mod owners;
mod parts;
mod pruning;
mod read;
mod refusals;
mod servers;
mod snapshots;
mod spill;

use std::collections::BTreeMap;

use zillion_feature::FeatureKey;

use crate::TableSet;
pub(crate) use crate::set::tests::invariance::{contents, defaults};
use zillion_rows::Candidate;
use zillion_rows::row::StoredRow;

/// Returns the content of a set that has one table: the result of `row` for each row by key, and
/// the candidates by key.
fn stored<R>(
    set: &TableSet,
    mut row: impl FnMut(StoredRow<'_>) -> R,
) -> (BTreeMap<FeatureKey, R>, BTreeMap<FeatureKey, Candidate>) {
    let (mut rows, mut candidates) = (BTreeMap::new(), BTreeMap::new());
    for shard in &set.shards {
        for slot in shard.slots() {
            let table = &shard.tables[0];
            table
                .for_each_in_slot(slot, |key, stored| {
                    assert!(rows.insert(key, row(stored)).is_none());
                })
                .unwrap();
            candidates.extend(table.counts().into_iter().flat_map(|c| c.in_slot(slot)));
        }
    }
    (rows, candidates)
}
