//! The tables, plans and gradients of this crate's tests.

use std::num::NonZeroUsize;
use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};

use crate::testing::checkpoint_oracle;
use crate::{Rates, TableSet, Update};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Bounds, ClipSpec, Dtype, Growth, InitializerSpec, OptimizerSpec, Scope, SegmentSpec,
    TableParts, TableSpec, Unknown,
};

pub(crate) fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

pub(crate) fn shards(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

pub(crate) fn key(id: u64) -> FeatureKey {
    FeatureKey::from_u64(id)
}

pub(crate) fn sorted_keys(ids: impl IntoIterator<Item = u64>) -> Vec<FeatureKey> {
    let mut keys: Vec<FeatureKey> = ids.into_iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

pub(crate) fn segment(name: &str, dim: usize, optimizer: OptimizerSpec, l2: f32) -> SegmentSpec {
    SegmentSpec {
        l2,
        ..SegmentSpec::new(name, dim, InitializerSpec::Normal { mean: 0.0, std: 0.1 }, optimizer)
    }
}

pub(crate) fn table(name: &str, dense: bool, segments: Vec<SegmentSpec>) -> TableSpec {
    TableSpec { dense, seed: 11, ..TableSpec::new(name, segments) }
}

/// Returns the specs of tables with every optimizer and every kind of rule. The names of the dense
/// tables contain "dense".
pub(crate) fn everything() -> Vec<TableSpec> {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 };
    let adagrad = OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 };
    let ftrl = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.0 };
    let group = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.05 };
    let momentum = OptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov: true, scope: None };
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let adam = OptimizerSpec::adam(0.01);
    let mut mixed = segment("linear", 1, adam, 0.1);
    mixed.l2_scope = Some(Scope::Touched);
    let mut zero = table("dense_touched", true, vec![segment("v", 4, sgd, 0.0)]);
    zero.unknown = Unknown::Zero;
    let mut guarded = segment("g", 5, rowwise, 0.02);
    guarded.clip = Some(ClipSpec { norm: Some(0.7), value: Some(0.5) });
    guarded.bounds = Some(Bounds { low: -0.15, high: 0.1 });
    vec![
        table(
            "wide",
            false,
            vec![segment("vector", 16, rowwise, 0.01), segment("linear", 1, ftrl, 0.0)],
        ),
        table("lazy", false, vec![segment("v", 8, adam, 0.0)]),
        table("dense_exact", true, vec![segment("vector", 10, adam, 0.05), mixed]),
        table("dense_decay", true, vec![segment("a", 3, sgd, 0.1), segment("b", 5, adagrad, 0.0)]),
        zero,
        table("plain", false, vec![segment("v", 16, sgd, 0.0)]),
        table("groups", false, vec![segment("v", 8, group, 0.0), segment("m", 3, momentum, 0.0)]),
        table("dense_motion", true, vec![segment("m", 4, momentum, 0.0), guarded.clone()]),
        table("guarded", false, vec![guarded.clone()]),
        halves(Dtype::Bf16, table("narrow", false, vec![segment("v", 16, rowwise, 0.01)])),
        halves(
            Dtype::F16,
            table("dense_narrow", true, vec![segment("v", 9, adam, 0.05), guarded.clone()]),
        ),
        growing(
            3,
            None,
            table(
                "growing",
                false,
                vec![segment("vector", 10, adam, 0.03), segment("linear", 1, ftrl, 0.0), guarded],
            ),
        ),
        growing(
            2,
            Some(2),
            halves(Dtype::Bf16, table("halves_grow", false, vec![segment("v", 7, rowwise, 0.01)])),
        ),
    ]
}

/// Returns the spec of the same table, with rows that begin narrow.
pub(crate) fn growing(at: u32, from: Option<usize>, table: TableSpec) -> TableSpec {
    TableSpec { grow: Some(Growth { at, from }), ..table }
}

fn halves(dtype: Dtype, table: TableSpec) -> TableSpec {
    TableSpec { dtype, ..table }
}

/// Returns a set with all tables of [`everything`]. The vocabulary of the dense tables consists of
/// the ids below `vocabulary`.
pub(crate) fn filled(workers: &Workers, n: usize, vocabulary: u64) -> TableSet {
    let mut set = TableSet::new(everything(), shards(n)).unwrap();
    let keys = sorted_keys(0..vocabulary);
    for (i, spec) in everything().iter().enumerate() {
        if spec.dense {
            set.prefill(workers, TableId(i as u16), &keys).unwrap();
        }
    }
    set
}

/// Returns the plan of one step. The plan has some ids below `ids` in every table. The ids depend
/// on the step and the table.
pub(crate) fn step_plan(step: u64, tables: usize, ids: u64, count: u64) -> LookupPlan {
    let keys = |table: u64| -> Vec<FeatureKey> {
        (0..count).map(|i| key(combine(combine(step, table), i) % ids)).collect()
    };
    plan_of(&(0..tables as u64).map(keys).collect::<Vec<_>>())
}

/// Returns gradients for a plan. They depend on the step, the key and the position in the row.
/// Their padding is NaN.
pub(crate) fn gradients(set: &TableSet, plan: &LookupPlan, step: u64) -> RowBuffer {
    let mut rows = RowBuffer::default();
    let strides = plan.tables.iter().map(|t| (t.keys.len(), set.layouts()[t.table.index()].stride));
    rows.reshape(strides);
    for (table, plan) in rows.tables.iter_mut().zip(&plan.tables) {
        let width = set.layouts()[plan.table.index()].width();
        for (row, key) in table.values.chunks_exact_mut(table.stride).zip(&plan.keys) {
            for (unit, g) in row.iter_mut().enumerate() {
                let seed = combine(combine(step, key.0), unit as u64);
                *g = if unit < width { unit_f32(seed as u32) - 0.4 } else { f32::NAN };
            }
        }
    }
    rows
}

pub(crate) fn update(step: u64, scale: f32) -> Update {
    let rates = Rates { scale: if step > 5 { 0.1 } else { 1.0 } };
    Update { step: Step(step), rates, scale }
}

/// Runs one clipped step, and returns the squared norm of its gradients.
pub(crate) fn clipped_step(set: &mut TableSet, workers: &Workers, step: u64, ids: u64) -> f64 {
    let plan = step_plan(step, set.layouts().len(), ids, 60);
    let mut rows = RowBuffer::default();
    set.pull(workers, &plan, false, &mut rows).unwrap();
    let gradients = gradients(set, &plan, step);
    set.stage(workers, &plan, &gradients).unwrap();
    let norm = set.grad_sq_norm(workers, &plan, &gradients, Step(step)).unwrap();
    let scale = (1.0 / norm.sqrt().max(1.0)) as f32;
    set.apply(workers, &plan, &gradients, update(step, scale)).unwrap();
    set.sweep(workers, update(step, scale)).unwrap();
    norm
}

/// Runs one step without clipping.
pub(crate) fn plain_step(set: &mut TableSet, workers: &Workers, step: u64, ids: u64) {
    let plan = step_plan(step, set.layouts().len(), ids, 60);
    let gradients = gradients(set, &plan, step);
    set.push(workers, &plan, &gradients, update(step, 1.0)).unwrap();
    set.sweep(workers, update(step, 1.0)).unwrap();
}

/// Writes a checkpoint with small parts, and returns its entries and the bytes of its files.
pub(crate) fn checkpoint(
    set: &TableSet,
    workers: &Workers,
    folder: &Path,
) -> (Vec<TableParts>, Vec<Vec<u8>>) {
    let parts = checkpoint_oracle(set, workers, folder, &Files::new(), 50).unwrap();
    let narrow = |t: &'_ TableParts| t.narrow.clone().into_iter().flat_map(|n| n.parts);
    let files = parts.iter().flat_map(|t| t.parts.clone().into_iter().chain(narrow(t)));
    let bytes = files.map(|p| std::fs::read(folder.join(&p.file)).unwrap()).collect();
    (parts, bytes)
}

/// Writes a checkpoint in the way in which production code does, and returns its entries.
pub(crate) fn write_snapshot(
    set: &mut TableSet,
    workers: &Workers,
    folder: &Path,
    files: &Files,
) -> crate::Result<Vec<TableParts>> {
    set.begin_snapshot(workers, folder, files)?;
    set.finish_snapshot(workers)
}
