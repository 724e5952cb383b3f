//! Tests of whole-table rules, norms and losses, which are compared with a direct computation in
//! `f64`.

use zillion_feature::{RowBuffer, Step, TableId};

use crate::TableSet;
use crate::testing::fixtures::*;
use zillion_rows::OptimizerSpec;
use zillion_rows::conformance::plan_of;

const ROWS: u64 = 40;
const DIM: usize = 6;
const L2: f64 = 0.05;

/// Checks exact Adam with whole-table L2 and clipping. Every step must change every row, as in the
/// reference frameworks.
#[test]
fn a_dense_table_learns_as_a_matrix_would() {
    let workers = workers(2);
    let spec = table("t", true, vec![segment("v", DIM, OptimizerSpec::adam(0.01), L2 as f32)]);
    let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
    let keys = sorted_keys(0..ROWS);
    assert_eq!(set.prefill(&workers, TableId(0), &keys).unwrap(), ROWS);
    let everything = plan_of(std::slice::from_ref(&keys));
    let mut rows = RowBuffer::default();
    set.pull(&workers, &everything, true, &mut rows).unwrap();
    let row_of = |k| everything.tables[0].keys.iter().position(|&x| x == k).unwrap();
    let stride = rows.tables[0].stride;
    let weights = |rows: &RowBuffer| -> Vec<f64> {
        rows.tables[0]
            .values
            .chunks(stride)
            .flat_map(|r| r[..DIM].to_vec())
            .map(f64::from)
            .collect()
    };
    let mut w = weights(&rows);
    let (mut m, mut v) = (vec![0.0; w.len()], vec![0.0; w.len()]);
    for t in 1..=30u64 {
        let plan = step_plan(t, 1, ROWS, 7);
        let raw = gradients(&set, &plan, t);
        let mut g: Vec<f64> = w.iter().map(|w| L2 * w).collect();
        for (i, &k) in plan.tables[0].keys.iter().enumerate() {
            for d in 0..DIM {
                g[row_of(k) * DIM + d] += f64::from(raw.tables[0].row(i)[d]);
            }
        }
        let square: f64 = g.iter().map(|x| x * x).sum();
        set.stage(&workers, &plan, &raw).unwrap();
        let norm = set.grad_sq_norm(&workers, &plan, &raw, Step(1)).unwrap();
        assert!((norm - square).abs() < 1e-5 * square, "{norm} instead of {square}");
        let loss = set.regulariser_loss(&workers, &plan).unwrap();
        let expected: f64 = 0.5 * L2 * w.iter().map(|x| x * x).sum::<f64>();
        assert!((loss - expected).abs() < 1e-5 * expected, "{loss} instead of {expected}");

        let scale = (1.0 / norm.sqrt()).min(1.0);
        let step = crate::Update { step: Step(t), rates: Default::default(), scale: scale as f32 };
        set.apply(&workers, &plan, &raw, step).unwrap();
        set.sweep(&workers, step).unwrap();
        for i in 0..w.len() {
            let g = g[i] * scale;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            let m_hat = m[i] / (1.0 - 0.9f64.powi(t as i32));
            let v_hat = v[i] / (1.0 - 0.999f64.powi(t as i32));
            w[i] -= 0.01 * m_hat / (v_hat.sqrt() + 1e-8);
        }
    }
    set.pull(&workers, &everything, true, &mut rows).unwrap();
    for (got, wanted) in weights(&rows).iter().zip(&w) {
        assert!((got - wanted).abs() < 1e-4, "{got} instead of {wanted}");
    }
    // A count is the number of pushes of a row, not the number of its changes.
    let pushes: usize = (1..=30).map(|t| step_plan(t, 1, ROWS, 7).tables[0].keys.len()).sum();
    let counts = rows.tables[0].counts.as_ref().unwrap();
    assert_eq!(counts.iter().map(|&c| c as usize).sum::<usize>(), pushes);
}

/// Checks the norm and the loss of dynamic tables. Both must be sums over the plan's rows,
/// including the rows of unknown keys.
#[test]
fn a_dynamic_table_counts_the_rows_of_the_step() {
    let workers = workers(2);
    let sgd = OptimizerSpec::Sgd { lr: 0.5 };
    let spec = table("t", false, vec![segment("a", 3, sgd, 0.2), segment("b", 2, sgd, 0.0)]);
    let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
    plain_step(&mut set, &workers, 1, 20);
    let plan = step_plan(2, 1, 40, 30);
    let mut rows = RowBuffer::default();
    set.pull(&workers, &plan, false, &mut rows).unwrap();
    let mut raw = gradients(&set, &plan, 2);
    // A gradient that is dropped is no part of the norm.
    raw.tables[0].values[2] = f32::INFINITY;
    let (mut square, mut loss) = (0.0, 0.0);
    for i in 0..plan.tables[0].keys.len() {
        let (w, g) = (rows.tables[0].row(i), raw.tables[0].row(i));
        for d in 0..5 {
            let l2 = if d < 3 { 0.2 } else { 0.0 };
            loss += 0.5 * l2 * f64::from(w[d]).powi(2);
            if i > 0 {
                square += (f64::from(g[d]) + l2 * f64::from(w[d])).powi(2);
            }
        }
    }
    let norm = set.grad_sq_norm(&workers, &plan, &raw, Step(1)).unwrap();
    assert!((norm - square).abs() < 1e-5 * square, "{norm} instead of {square}");
    let got = set.regulariser_loss(&workers, &plan).unwrap();
    assert!((got - loss).abs() < 1e-5 * loss, "{got} instead of {loss}");
}

#[test]
fn scaling_by_clipping_scales_the_regulariser_too() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 1.0 };
    for dense in [false, true] {
        let mut spec = table("t", dense, vec![segment("v", 4, sgd, 0.5)]);
        spec.segments[0].initializer = zillion_rows::InitializerSpec::Constant { value: 2.0 };
        let mut set = TableSet::new(vec![spec], shards(2)).unwrap();
        if dense {
            set.prefill(&workers, TableId(0), &sorted_keys([1, 2])).unwrap();
        }
        let plan = plan_of(&[vec![key(1)]]);
        let mut raw = RowBuffer::default();
        raw.reshape([(1, 4)].into_iter());
        raw.tables[0].values.fill(3.0);
        set.stage(&workers, &plan, &raw).unwrap();
        let step = crate::Update { scale: 0.25, ..update(1, 1.0) };
        set.apply(&workers, &plan, &raw, step).unwrap();
        set.sweep(&workers, step).unwrap();
        let both = plan_of(&[vec![key(1), key(2)]]);
        let mut rows = RowBuffer::default();
        set.pull(&workers, &both, false, &mut rows).unwrap();
        let read = |k| {
            let i = both.tables[0].keys.iter().position(|&x| x == key(k)).unwrap();
            rows.tables[0].row(i)[0]
        };
        // 2 - (3 + 0.5 * 2) * 0.25
        assert_eq!(read(1), 1.0);
        // The regulariser pulls on the other row only in the dense table.
        assert_eq!(read(2), if dense { 1.75 } else { 2.0 });
    }
}

#[test]
fn discarded_gradients_leave_no_trace() {
    let workers = workers(1);
    let run = |discard: bool| {
        let mut set = filled(&workers, 3, 50);
        if discard {
            let plan = step_plan(77, set.layouts().len(), 60, 40);
            let raw = gradients(&set, &plan, 77);
            set.stage(&workers, &plan, &raw).unwrap();
            set.discard();
        }
        clipped_step(&mut set, &workers, 1, 60);
        let folder = tempfile::tempdir().unwrap();
        checkpoint(&set, &workers, folder.path())
    };
    assert!(run(true) == run(false));
}

/// The rows of a table by key: weights, optimizer state, number of pushes, and last step.
type Rows = std::collections::BTreeMap<u64, (Vec<u32>, Vec<u32>, u32, u32)>;

fn rows_of(set: &TableSet, table: usize) -> Rows {
    let mut rows = Rows::new();
    let bits = |floats: &[f32]| -> Vec<u32> { floats.iter().map(|x| x.to_bits()).collect() };
    for shard in &set.shards {
        for slot in shard.slots() {
            let add = |key: zillion_feature::FeatureKey, row: zillion_rows::row::StoredRow<'_>| {
                let weights = bits(&row.weights.to_floats());
                let meta = row.meta;
                rows.insert(key.0, (weights, bits(row.state), meta.count, meta.last_step));
            };
            shard.tables[table].for_each_in_slot(slot, add).unwrap();
        }
    }
    rows
}

/// Checks that a skipped step changes what depends on the keys as an applied step does, and moves
/// no weight and no optimizer state.
#[test]
fn a_skipped_step_counts_its_keys_and_moves_nothing() {
    let workers = workers(2);
    let begin = || {
        let mut set = filled(&workers, 3, 50);
        (1..=4).for_each(|step| {
            clipped_step(&mut set, &workers, step, 60);
        });
        let plan = step_plan(5, set.layouts().len(), 70, 60);
        let mut raw = gradients(&set, &plan, 5);
        // The gradient of one row of each table is not finite.
        raw.tables.iter_mut().for_each(|rows| rows.values[0] = f32::NAN);
        set.stage(&workers, &plan, &raw).unwrap();
        (set, plan, raw)
    };
    let (mut applied, plan, raw) = begin();
    let mut moved = applied.apply(&workers, &plan, &raw, update(5, 1.0)).unwrap();
    moved.add(applied.sweep(&workers, update(5, 1.0)).unwrap());
    let (mut skipped, plan, raw) = begin();
    let before: Vec<Rows> = (0..plan.tables.len()).map(|table| rows_of(&skipped, table)).collect();
    let counted = skipped.skip(&workers, &plan, &raw, update(5, 1.0)).unwrap();

    assert_eq!((counted.pushed, counted.saturated, counted.narrow_gradients), (0, 0, 0));
    assert_eq!(counted.nonfinite, moved.pushed + moved.nonfinite);
    assert!(moved.nonfinite > 1 && moved.created > 0 && moved.refused > 0, "{moved:?}");
    assert_eq!((counted.created, counted.refused), (moved.created, moved.refused));
    assert_eq!(counted.grown, moved.grown);
    for (table, before) in before.iter().enumerate() {
        let (skipped, applied) = (rows_of(&skipped, table), rows_of(&applied, table));
        let meta = |rows: &Rows| -> Vec<_> {
            rows.iter().map(|(&key, row)| (key, row.2, row.3)).collect()
        };
        assert_eq!(meta(&skipped), meta(&applied), "table {table}");
        assert_ne!(skipped, applied, "table {table}");
        for (key, (weights, state, ..)) in before {
            let (now, state_now, ..) = &skipped[key];
            // A narrow row that grows keeps its floats and gets more of them.
            if now.len() == weights.len() {
                assert_eq!((now, state_now), (weights, state), "table {table}");
            }
        }
    }
}

/// Checks that a key whose gradient is not finite is pushed in all but its weights and its state.
#[test]
fn a_gradient_that_is_not_finite_counts_its_key() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.5 };
    for dense in [false, true] {
        let spec = table("t", dense, vec![segment("a", 3, sgd, 0.2)]);
        let mut set = TableSet::new(vec![spec], shards(2)).unwrap();
        let keys = sorted_keys(0..10);
        if dense {
            set.prefill(&workers, TableId(0), &keys).unwrap();
        }
        let plan = plan_of(std::slice::from_ref(&keys));
        let mut raw = gradients(&set, &plan, 1);
        let stride = raw.tables[0].stride;
        raw.tables[0].values.chunks_exact_mut(stride).for_each(|row| row[1] = f32::INFINITY);
        let mut first = RowBuffer::default();
        set.pull(&workers, &plan, false, &mut first).unwrap();
        let mut counted = set.push(&workers, &plan, &raw, update(1, 1.0)).unwrap();
        counted.add(set.sweep(&workers, update(1, 1.0)).unwrap());
        assert_eq!((counted.pushed, counted.nonfinite), (0, 10));
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan, true, &mut rows).unwrap();
        assert_eq!(rows.tables[0].counts, Some(vec![1; 10]));
        if !dense {
            assert_eq!(rows.tables[0].values, first.tables[0].values);
            assert_eq!(counted.created, 10);
        }
    }
}
