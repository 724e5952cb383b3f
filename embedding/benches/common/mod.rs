//! The functions that the benchmarks of tables share. They make gradients, plans, and a table with
//! one vector in each row.

// Each benchmark uses only some of these functions.
#![allow(dead_code)]

use zillion_embedding::{Rates, Update};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Dtype, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

/// The number of weights of a row.
pub(crate) const DIM: usize = 16;

/// Returns the settings of rowwise AdaGrad, which most jobs use.
pub(crate) fn rowwise() -> OptimizerSpec {
    OptimizerSpec::RowwiseAdagrad { lr: 0.01, initial_accumulator: 0.1, eps: 1e-8 }
}

/// Returns a dynamic table of vectors of [`DIM`] weights.
pub(crate) fn spec(optimizer: OptimizerSpec, dtype: Dtype) -> TableSpec {
    TableSpec {
        dtype,
        seed: 1,
        ..TableSpec::new(
            "ids",
            vec![SegmentSpec::new(
                "vector",
                DIM,
                InitializerSpec::Uniform { low: -0.01, high: 0.01 },
                optimizer,
            )],
        )
    }
}

pub(crate) fn update(step: u64) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale: 1.0 }
}

/// Returns the same gradient for every key of a plan.
pub(crate) fn gradients(plan: &LookupPlan) -> RowBuffer {
    let mut gradients = RowBuffer::default();
    gradients.reshape([(plan.tables[0].keys.len(), DIM)].into_iter());
    gradients.tables[0].values.fill(0.01);
    gradients
}

/// Returns a plan that contains each id of a range once.
pub(crate) fn plan_of_range(ids: std::ops::Range<u64>) -> LookupPlan {
    plan_of(&[ids.map(FeatureKey::from_u64).collect()])
}

/// Returns a plan of `keys` ids, drawn uniformly from the ids below `rows`. Different values of
/// `number` give plans with different ids.
pub(crate) fn random_plan(number: u64, keys: u64, rows: u64) -> LookupPlan {
    let ids = (0..keys).map(|i| mix64(number * keys + i) % rows);
    plan_of(&[ids.map(FeatureKey::from_u64).collect()])
}
