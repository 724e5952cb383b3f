//! A lookup of ids, whose gradients come later.

use std::sync::Arc;

use zillion_feature::{Batch, LookupPlan, RowBuffer};

/// A lookup of the present step.
pub(super) struct Lookup {
    pub(super) ticket: u64,
    /// The fields, as positions among the sparse columns of the job.
    pub(super) fields: Vec<usize>,
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) batch: Batch,
    pub(super) plan: Arc<LookupPlan>,
    /// The sum of the gradients of each key of the plan, or `None` until gradients are given.
    pub(super) sums: Option<RowBuffer>,
}

/// Adds the keys of lookups to the columns of an empty batch, in the order of the lookups.
pub(super) fn join_batches(mut batch: Batch, lookups: &[Lookup]) -> Batch {
    for lookup in lookups {
        batch.rows += lookup.rows;
        for &field in &lookup.fields {
            batch.sparse[field].keys.extend_from_slice(&lookup.batch.sparse[field].keys);
        }
    }
    batch
}
