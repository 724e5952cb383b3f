//! Tests of the clips of rows in steps that are also clipped, and of rows that change only through
//! their momentum.

use zillion_feature::{RowBuffer, Step, TableId};

use crate::testing::fixtures::*;
use crate::{Rates, TableSet, Update};
use zillion_rows::conformance::plan_of;
use zillion_rows::{ClipSpec, InitializerSpec, OptimizerSpec, Scope, SegmentSpec, TableSpec};

fn at(step: u64, scale: f32) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale }
}

fn zeros(name: &str, dim: usize, optimizer: OptimizerSpec) -> SegmentSpec {
    let initializer = InitializerSpec::Constant { value: 0.0 };
    SegmentSpec { initializer, ..segment(name, dim, optimizer, 0.0) }
}

#[test]
fn a_rows_clip_comes_behind_the_factor_of_the_step_and_is_no_part_of_the_norm() {
    let sgd = OptimizerSpec::Sgd { lr: 1.0 };
    let clip = Some(ClipSpec { norm: Some(1.0), value: None });
    let clipped = SegmentSpec { clip, ..zeros("v", 4, sgd) };
    let spec = table("ids", false, vec![clipped, zeros("free", 1, sgd)]);
    let workers = workers(1);
    let plan = plan_of(&[vec![key(1)]]);
    for (scale, moved) in [(1.0, 1.0), (0.2, 1.0), (0.05, 0.5)] {
        let mut set = TableSet::new(vec![spec.clone()], shards(1)).unwrap();
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan, false, &mut rows).unwrap();
        // One segment has a gradient of length ten, and the other has no clip.
        rows.tables[0].values[..5].copy_from_slice(&[6.0, 0.0, 8.0, 0.0, 7.0]);
        let norm = set.grad_sq_norm(&workers, &plan, &rows, Step(1)).unwrap();
        assert_eq!(norm, 149.0);
        set.apply(&workers, &plan, &rows, at(1, scale)).unwrap();
        set.pull(&workers, &plan, false, &mut rows).unwrap();
        let row = &rows.tables[0].values;
        let length = row[..4].iter().map(|w| w * w).sum::<f32>().sqrt();
        assert!((length - moved).abs() < 1e-6, "{scale}: {row:?}");
        assert!((row[0] * 8.0 - row[2] * 6.0).abs() < 1e-6, "the direction stays: {row:?}");
        assert!((row[4] + 7.0 * scale).abs() < 1e-6, "{row:?}");
    }
}

#[test]
fn momentum_is_exact_in_a_dense_table_and_lazy_elsewhere() {
    let rule = |scope| OptimizerSpec::Momentum { lr: 1.0, momentum: 0.5, nesterov: false, scope };
    let workers = workers(1);
    let one = plan_of(&[vec![key(1)]]);
    let other = plan_of(&[vec![key(2)]]);
    for (dense, scope, wanted) in [
        // The velocity is 1, then 0.5 and 0.25 if the row moves by momentum while another row is
        // pushed.
        (true, None, -1.75),
        (true, Some(Scope::Table), -1.75),
        (true, Some(Scope::Touched), -1.0),
        (false, None, -1.0),
    ] {
        let spec: TableSpec = table("ids", dense, vec![zeros("v", 1, rule(scope))]);
        assert_eq!(spec.has_whole_table_rule(), wanted == -1.75);
        let mut set = TableSet::new(vec![spec], shards(2)).unwrap();
        if dense {
            set.prefill(&workers, TableId(0), &sorted_keys(1..3)).unwrap();
        }
        let mut rows = RowBuffer::default();
        for (step, plan) in [(1, &one), (2, &other), (3, &other)] {
            set.pull(&workers, plan, false, &mut rows).unwrap();
            rows.tables[0].values.fill(1.0);
            set.push(&workers, plan, &rows, at(step, 1.0)).unwrap();
            set.sweep(&workers, at(step, 1.0)).unwrap();
        }
        set.pull(&workers, &one, false, &mut rows).unwrap();
        assert_eq!(rows.tables[0].values[0], wanted, "dense {dense}, {scope:?}");
    }
}
