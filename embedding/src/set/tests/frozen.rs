//! Tests of frozen tables. A frozen table must not change under any rule, limit or eviction, and
//! must not affect the other tables.

use zillion_feature::TableId;

use crate::TableSet;
use crate::set::tests::changes::live;
use crate::testing::fixtures::*;
use zillion_rows::{Eviction, OptimizerSpec, TableSpec};

#[test]
fn a_frozen_table_stays_and_the_others_go_on_as_if_nothing_were() {
    let workers = workers(2);
    let tables = everything().len();
    for frozen in 0..tables {
        let mut whole = filled(&workers, 3, 40);
        let mut part = filled(&workers, 2, 40);
        for step in 1..=3 {
            clipped_step(&mut whole, &workers, step, 60);
            clipped_step(&mut part, &workers, step, 60);
        }
        let before = live(&part, frozen);
        part.freeze(&[TableId(frozen as u16)]).unwrap();
        for step in 4..=6 {
            // The step has no clipping, because the missing part of the norm would change the other
            // tables.
            let plan = step_plan(step, tables, 90, 60);
            for set in [&mut whole, &mut part] {
                let raw = gradients(set, &plan, step);
                set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
                set.sweep(&workers, update(step, 1.0)).unwrap();
            }
        }
        assert_eq!(live(&part, frozen), before);
        for table in (0..tables).filter(|&table| table != frozen) {
            assert_eq!(live(&part, table), live(&whole, table), "table {table}, frozen {frozen}");
        }
        // The gradients of a frozen table are no part of the norm either.
        let plan = step_plan(7, tables, 90, 60);
        let norm = |set: &mut TableSet| {
            let raw = gradients(set, &plan, 7);
            set.stage(&workers, &plan, &raw).unwrap();
            let norm = set.grad_sq_norm(&workers, &plan, &raw, zillion_feature::Step(7)).unwrap();
            set.discard();
            norm
        };
        assert!(norm(&mut part) < norm(&mut whole), "frozen {frozen}");
        // After the table is no longer frozen, it learns again.
        part.freeze(&[]).unwrap();
        clipped_step(&mut part, &workers, 7, 60);
        assert_ne!(live(&part, frozen), before);
    }
}

#[test]
fn no_row_of_a_frozen_table_is_evicted() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let spec = |name: &str| TableSpec {
        eviction: Eviction::Unseen { steps: 2 },
        ..table(name, false, vec![segment("v", 4, sgd, 0.0)])
    };
    let mut set = TableSet::new(vec![spec("a"), spec("b")], shards(2)).unwrap();
    let step = |set: &mut TableSet, number: u64, ids: u64| {
        let plan = step_plan(number, 2, ids, 30);
        let raw = gradients(set, &plan, number);
        set.push(&workers, &plan, &raw, update(number, 1.0)).unwrap();
        set.sweep(&workers, update(number, 1.0)).unwrap();
    };
    step(&mut set, 1, 500);
    let rows = live(&set, 0);
    set.freeze(&[TableId(0)]).unwrap();
    (2..=20).for_each(|number| step(&mut set, number, 1));
    assert_eq!(live(&set, 0), rows);
    assert!(live(&set, 1).len() < 5, "the other table forgets what it does not see");
    assert!(set.freeze(&[TableId(2)]).is_err());
}
