//! The conformance tests of the local client, with several numbers of shards and threads.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use zillion_device::Workers;
use zillion_ps::conformance::{self, Action, Ending, StepAction};
use zillion_ps::{LocalClient, TrainClient};
use zillion_rows::{Dtype, TableSpec};

fn client(specs: Vec<TableSpec>, shards: usize, threads: usize) -> Box<dyn TrainClient> {
    let some = |n| NonZeroUsize::new(n).unwrap();
    let workers = Arc::new(Workers::new(some(threads)).unwrap());
    Box::new(LocalClient::new(specs, some(shards), workers).unwrap())
}

#[test]
fn the_local_client_conforms() {
    for (shards, threads) in [(1, 1), (3, 2), (8, 2)] {
        conformance::run(&mut |specs| client(specs, shards, threads)).unwrap();
    }
}

#[test]
fn clients_with_other_shards_take_each_others_checkpoints() {
    let mut made = 0;
    conformance::run(&mut |specs| {
        made += 1;
        client(specs, 1 + made % 5, 1 + made % 2)
    })
    .unwrap();
}

#[test]
fn weights_of_sixteen_bits_conform() {
    for (dtype, shards, threads) in [(Dtype::Bf16, 1, 1), (Dtype::Bf16, 5, 2), (Dtype::F16, 3, 2)] {
        conformance::run_of(dtype, &mut |specs| client(specs, shards, threads)).unwrap();
    }
}

fn ids() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0u64..40, 0..40)
}

fn action() -> impl Strategy<Value = Action> {
    let ending = prop_oneof![
        4 => Just(Ending::Applied),
        4 => Just(Ending::Clipped),
        1 => Just(Ending::Skipped),
        1 => Just(Ending::Discarded),
        1 => Just(Ending::Abandoned),
    ];
    let step = (
        [ids(), ids(), ids(), ids()],
        prop::collection::vec(0usize..40, 0..4),
        ending,
        any::<bool>(),
    );
    prop_oneof![
        6 => step.prop_map(|(ids, poisoned, ending, slow)| {
            Action::Step(StepAction { ids, poisoned, ending, slow })
        }),
        2 => [ids(), ids(), ids(), ids()].prop_map(|ids| Action::Evaluate { ids }),
        2 => ids().prop_map(|ids| Action::Prefill { ids }),
        1 => Just(Action::Restart),
        2 => (0usize..4).prop_map(|back| Action::Publish { back }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn any_history_is_what_a_map_would_make_of_it(
        dtype in prop::sample::select(&Dtype::ALL[..]),
        shards in 1usize..9,
        threads in 1usize..3,
        actions in prop::collection::vec(action(), 0..25),
    ) {
        let mut client = client(conformance::specs_of(dtype), shards, threads);
        conformance::replay(dtype, client.as_mut(), &actions).map_err(TestCaseError::fail)?;
    }
}
