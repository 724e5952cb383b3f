//! The conformance suite: checks of the contract of [`TrainClient`], which the tests of each
//! implementation call.
//!
//! [`run`] checks the order of calls, the errors for bad arguments, checkpoints, layers and
//! lookups. It also compares a number of random histories with a model. [`replay`] runs one
//! history, so that a property test can choose and shrink it.

mod beside;
mod chains;
mod maps;
mod model;
mod scenarios;
mod versions;

use zillion_feature::FeatureKey;
use zillion_feature::random::{combine, mix64};
use zillion_rows::{
    Admission, Dtype, Eviction, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec, Unknown,
};

use crate::client::TrainClient;

pub use maps::{MemoryMap, check_map};
pub use model::replay;

/// The number of tables in the suite.
pub const TABLES: usize = 4;

/// A function that makes a new client over empty tables with the given specs.
pub type MakeClient<'a> = dyn FnMut(Vec<TableSpec>) -> Box<dyn TrainClient> + 'a;

/// One action of a trainer.
#[derive(Clone, Debug)]
pub enum Action {
    /// A training step: a pull, a push, and the end of the step.
    Step(StepAction),
    /// A lookup outside of training.
    Evaluate {
        /// The ids of each table.
        ids: [Vec<u64>; TABLES],
    },
    /// An addition to the vocabulary of the dense tables.
    Prefill {
        /// The ids to add to each dense table.
        ids: Vec<u64>,
    },
    /// A checkpoint that is written and restored.
    Restart,
    /// The publication of versions. The first version is a base, and the client tracks changes
    /// after it. All later versions are deltas.
    Publish {
        /// The position of an earlier version, counted backwards from the last version, which has
        /// position 0. A second delta holds the changes since this earlier version.
        back: usize,
    },
}

/// The contents of a step.
#[derive(Clone, Debug)]
pub struct StepAction {
    /// The ids of each table.
    pub ids: [Vec<u64>; TABLES],
    /// The positions in the plan, counted from 0, of the keys whose gradients are not finite.
    pub poisoned: Vec<usize>,
    /// The way in which the step ends.
    pub ending: Ending,
    /// Whether the schedule halves the learning rates.
    pub slow: bool,
}

/// The way in which a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The gradients are pushed and applied.
    Applied,
    /// The gradients are staged, their norm is computed, and they are applied with the factor 0.5.
    Clipped,
    /// The gradients are staged, and only their keys are counted, because their norm is not finite.
    Skipped,
    /// The gradients are staged and dropped.
    Discarded,
    /// The rows are pulled, and nothing is pushed.
    Abandoned,
}

/// Returns the specs of the suite's tables: a dynamic table, a dense table with a rule for the
/// whole table, a dense table without such a rule, and a second dynamic table. In the second
/// dynamic table, keys are admitted at their second occurrence and rows are evicted after three
/// steps without a push.
///
/// All tables use stochastic gradient descent with learning rates that are powers of two, so that a
/// model can compute the same bits.
pub fn specs() -> Vec<TableSpec> {
    let segment = |name: &str, dim, l2| SegmentSpec {
        l2,
        ..SegmentSpec::new(
            name,
            dim,
            InitializerSpec::Uniform { low: -1.0, high: 1.0 },
            OptimizerSpec::Sgd { lr: 0.5 },
        )
    };
    let table = |name: &str, dense, unknown, segments| TableSpec {
        dense,
        unknown,
        seed: 7,
        ..TableSpec::new(name, segments)
    };
    vec![
        table(
            "dynamic",
            false,
            Unknown::Seeded,
            vec![segment("vector", 3, 0.25), segment("linear", 1, 0.0)],
        ),
        table("swept", true, Unknown::Seeded, vec![segment("vector", 5, 0.125)]),
        table("fixed", true, Unknown::Zero, vec![segment("vector", 2, 0.0)]),
        TableSpec {
            admission: Admission::Count { at_least: 2 },
            eviction: Eviction::Unseen { steps: 3 },
            ..table("living", false, Unknown::Seeded, vec![segment("vector", 4, 0.125)])
        },
    ]
}

/// Returns the specs of the suite's tables, with weights of type `dtype`.
pub fn specs_of(dtype: Dtype) -> Vec<TableSpec> {
    specs().into_iter().map(|spec| TableSpec { dtype, ..spec }).collect()
}

/// Returns the key of an id. The ids 0 and 1 have the smallest and the largest possible key, so
/// that the suite also tests these two keys.
pub fn key(id: u64) -> FeatureKey {
    match id {
        0 => FeatureKey(0),
        1 => FeatureKey(u64::MAX),
        id => FeatureKey::from_u64(id),
    }
}

/// Checks that a client keeps the contract of [`TrainClient`].
///
/// # Errors
/// Returns a description of the first violation of the contract.
pub fn run(make: &mut MakeClient<'_>) -> Result<(), String> {
    run_of(Dtype::F32, make)
}

/// Checks that a client keeps the contract of [`TrainClient`] with weights of type `dtype`.
///
/// # Errors
/// Returns a description of the first violation of the contract.
pub fn run_of(dtype: Dtype, make: &mut MakeClient<'_>) -> Result<(), String> {
    let make: &mut MakeClient<'_> = &mut |specs: Vec<TableSpec>| {
        make(specs.into_iter().map(|spec| TableSpec { dtype, ..spec }).collect())
    };
    scenarios::order_is_kept(make)?;
    scenarios::bad_arguments_change_nothing(make)?;
    scenarios::one_push_reports_what_it_did(make)?;
    scenarios::rows_go_at_the_end_of_a_step(make)?;
    scenarios::checkpoints_restore_and_are_verified(make)?;
    beside::a_checkpoint_is_of_the_moment_that_it_began_in(make)?;
    beside::one_checkpoint_at_a_time(make)?;
    chains::a_chain_is_a_whole_checkpoint(make)?;
    scenarios::reads_are_a_row_source(make)?;
    scenarios::the_regulariser_is_summed_over_its_rows(make)?;
    versions::deltas_are_known_or_refused(make)?;
    versions::the_same_history_writes_the_same_layers(dtype, make)?;
    for seed in 0..24 {
        let mut client = make(specs());
        replay(dtype, client.as_mut(), &history(seed))
            .map_err(|e| format!("history {seed}: {e}"))?;
    }
    Ok(())
}

/// Returns a random sequence of actions, which depends on the seed alone.
fn history(seed: u64) -> Vec<Action> {
    let mut counter = mix64(seed);
    let mut draw = move |below: u64| {
        counter = combine(counter, 1);
        counter % below
    };
    let length = 4 + draw(20);
    (0..length)
        .map(|i| {
            let mut list =
                |longest: u64| -> Vec<u64> { (0..draw(longest)).map(|_| draw(40)).collect() };
            let ids = [list(30), list(30), list(30), list(30)];
            let poisoned = list(4);
            let kind = draw(26);
            match kind {
                _ if i == 0 => Action::Prefill { ids: (0..20).collect() },
                0..12 => Action::Step(StepAction {
                    ids,
                    poisoned: poisoned.into_iter().map(|p| p as usize).collect(),
                    ending: [
                        Ending::Applied,
                        Ending::Clipped,
                        Ending::Skipped,
                        Ending::Discarded,
                        Ending::Abandoned,
                    ][[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4][kind as usize]],
                    slow: draw(3) == 0,
                }),
                12..15 => Action::Evaluate { ids },
                15..17 => Action::Prefill { ids: ids.concat() },
                17..20 => Action::Restart,
                _ => Action::Publish { back: draw(4) as usize },
            }
        })
        .collect()
}
