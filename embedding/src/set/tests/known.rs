//! Tests of pushes that use the index entries of a pull. Such a push must give the same result as a
//! push that looks up its keys itself, for any history between the pull and the push.

use proptest::prelude::*;
use zillion_device::Files;
use zillion_feature::{RowBuffer, TableId};

use crate::testing::fixtures::*;
use crate::{SpillHome, TableSet};
use zillion_rows::{Admission, Eviction, OptimizerSpec, TableSpec};

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A pull of one of a few plans.
    Pull(u64),
    /// A push of one of the same plans.
    Push(u64),
    /// The end of a step: rows are evicted, moved or spilled.
    End,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0u64..4).prop_map(Action::Pull),
        3 => (0u64..4).prop_map(Action::Push),
        1 => Just(Action::End),
    ]
}

/// Returns tables whose rows are evicted, grow, or wait for admission. The last table spills.
fn specs() -> Vec<TableSpec> {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 };
    let plain = |name| table(name, false, vec![segment("v", 6, rowwise, 0.0)]);
    let lfu = Eviction::Lfu { half_life: zillion_rows::Span::Steps(3), below: None, every: None };
    vec![
        TableSpec { eviction: Eviction::Lru, max_rows: Some(90), ..plain("lru") },
        TableSpec {
            eviction: lfu,
            max_rows: Some(40),
            admission: Admission::Count { at_least: 2 },
            ..plain("counted")
        },
        TableSpec { eviction: Eviction::Unseen { steps: 1 }, ..growing(2, None, plain("growing")) },
        TableSpec { eviction: Eviction::Unseen { steps: 1 }, ..plain("unseen") },
        table("spilling", false, vec![segment("v", 40, rowwise, 0.0)]),
    ]
}

fn new_set(home: &SpillHome) -> TableSet {
    let mut set = TableSet::new(specs(), shards(2)).unwrap();
    // The memory is the initial size of the slabs of a shard and a little more.
    set.spill(TableId(4), 2 * (9 << 10), home).unwrap();
    set
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_push_does_the_same_with_and_without_a_pull_before_it(
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let workers = workers(1);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let homes = folders.each_ref().map(|f| SpillHome::open(&Files::new(), f.path()).unwrap());
        let [mut pulled, mut pushed] = homes.each_ref().map(new_set);
        let plans: Vec<_> = (0..4).map(|plan| step_plan(plan, 5, 150, 70)).collect();
        let mut rows = RowBuffer::default();
        let mut step = 1;
        for action in actions {
            match action {
                Action::Pull(plan) => {
                    pulled.pull(&workers, &plans[plan as usize], false, &mut rows).unwrap();
                }
                Action::Push(plan) => {
                    let plan = &plans[plan as usize];
                    let gradients = gradients(&pulled, plan, step);
                    for set in [&mut pulled, &mut pushed] {
                        set.push(&workers, plan, &gradients, update(step, 1.0)).unwrap();
                    }
                }
                Action::End => {
                    for set in [&mut pulled, &mut pushed] {
                        set.sweep(&workers, update(step, 1.0)).unwrap();
                    }
                    step += 1;
                }
            }
        }
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        prop_assert!(
            checkpoint(&pulled, &workers, a.path()) == checkpoint(&pushed, &workers, b.path())
        );
    }
}
