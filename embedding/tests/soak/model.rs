//! A model of the exact content of the first table. The table uses stochastic gradient descent with
//! numbers whose sums are exact. Only the rounding to the table's type is not exact; it is a
//! function of the key, the step and the position of the weight.

use std::collections::BTreeMap;

use zillion_embedding::Update;
use zillion_feature::{FeatureKey, TablePlan, TableRows};
use zillion_rows::layer::{Found, Layer};
use zillion_rows::{Dtype, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

const DIM: usize = 8;
const LR: f32 = 0.25;
const INITIAL: f32 = 0.5;

pub(crate) fn spec(dtype: Dtype) -> TableSpec {
    let segment = SegmentSpec::new(
        "v",
        DIM,
        InitializerSpec::Constant { value: INITIAL },
        OptimizerSpec::Sgd { lr: LR },
    );
    TableSpec { dtype, seed: 77, ..TableSpec::new("exact", vec![segment]) }
}

/// Returns a gradient with exact sums: a multiple of 1/64 that is not zero.
pub(crate) fn gradient(bits: u64) -> f32 {
    let sixty_fourths = (bits % 64) as f32 + 1.0;
    if bits & 64 == 0 { sixty_fourths / 64.0 } else { -sixty_fourths / 64.0 }
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    dtype: Dtype,
    seed: u64,
    /// The rows by key, each with its weights and its number of pushes.
    rows: BTreeMap<FeatureKey, ([f32; DIM], u32)>,
}

impl Model {
    pub(crate) fn new(spec: &TableSpec) -> Self {
        Self { dtype: spec.dtype, seed: spec.seed, rows: BTreeMap::new() }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Checks the rows that a pull has read.
    pub(crate) fn check_pull(&self, plan: &TablePlan, pulled: &TableRows) {
        for (i, key) in plan.keys.iter().enumerate() {
            let (weights, count) = self.rows.get(key).copied().unwrap_or(([INITIAL; DIM], 0));
            assert_eq!(pulled.row(i), weights, "weights of {key:?}");
            let counts = pulled.counts.as_ref().expect("counts were asked for");
            assert_eq!(counts[i], count, "pushes of {key:?}");
        }
    }

    /// Pushes gradients. In a skipped step, keys count and no weight moves. The same holds for a
    /// gradient that is not finite.
    pub(crate) fn push(
        &mut self,
        plan: &TablePlan,
        gradients: &TableRows,
        update: Update,
        is_skipped: bool,
    ) {
        let rate = LR * update.rates.scale;
        for (i, &key) in plan.keys.iter().enumerate() {
            let gradient = &gradients.row(i)[..DIM];
            let (weights, count) = self.rows.entry(key).or_insert(([INITIAL; DIM], 0));
            *count += 1;
            if is_skipped || gradient.iter().any(|g| !g.is_finite()) {
                continue;
            }
            for (unit, (w, g)) in weights.iter_mut().zip(gradient).enumerate() {
                let moved = *w - rate * (g * update.scale);
                *w = self.dtype.round_pushed(self.seed, key.0, update.step.0, unit, moved);
            }
        }
    }

    /// Checks that a layer of all rows has the rows of the model.
    pub(crate) fn check_layer(&self, layer: &Layer) {
        assert_eq!(layer.rows(0), self.rows());
        for ((key, found), (expected, (weights, count))) in layer.iter(0).zip(&self.rows) {
            assert_eq!(key, *expected);
            let Found::Row(row) = found else { panic!("{key:?} is a tombstone") };
            assert_eq!((&row.weights[..], row.count), (&weights[..], *count), "{key:?}");
        }
    }
}
