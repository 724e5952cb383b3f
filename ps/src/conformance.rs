//! The conformance suite: the promises of a [`TrainClient`], as functions that each
//! implementation's tests call.
//!
//! [`run`] checks the order of calls, the answers to bad arguments, checkpoints, layers, the
//! reading side, and a number of random histories against a model. [`replay`] drives one history,
//! so that a property test can choose it and shrink it.

mod beside;
mod chains;
mod model;
mod scenarios;
mod versions;

use zillion_feature::FeatureKey;
use zillion_feature::random::{combine, mix64};
use zillion_rows::{
    Admission, Dtype, Eviction, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec, Unknown,
};

use crate::client::TrainClient;

pub use model::replay;

/// The number of tables in the suite.
pub const TABLES: usize = 4;

/// A function that makes a fresh client over empty tables of these specs.
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
        /// The ids that the tables must have.
        ids: Vec<u64>,
    },
    /// A checkpoint that is written and restored.
    Restart,
    /// The publishing of a version: a base the first time, which begins the tracking of changes,
    /// then deltas.
    Publish {
        /// The number of versions that a second delta reaches further back.
        back: usize,
    },
}

/// The contents of a step.
#[derive(Clone, Debug)]
pub struct StepAction {
    /// The ids of each table.
    pub ids: [Vec<u64>; TABLES],
    /// The gradients that are not finite, by position in the plan.
    pub poisoned: Vec<usize>,
    /// The end of the step.
    pub ending: Ending,
    /// Whether the schedule halves the rates.
    pub slow: bool,
}

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The gradients are pushed and applied.
    Applied,
    /// The gradients are staged, measured, and applied at half size.
    Clipped,
    /// The gradients are staged and dropped.
    Discarded,
    /// The rows are pulled, and nothing is pushed.
    Abandoned,
}

/// Returns the tables of the suite: one dynamic, one dense with a rule for the whole table, one
/// dense without, and one dynamic whose keys must come twice and are forgotten after three steps.
///
/// All learn by plain gradient descent at rates that are powers of two, so that a model can follow
/// bit for bit.
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

/// Returns the tables of the suite with weights of this type.
pub fn specs_of(dtype: Dtype) -> Vec<TableSpec> {
    specs().into_iter().map(|spec| TableSpec { dtype, ..spec }).collect()
}

/// Returns the key of an id. The two ends of the range are among them, because every key is legal.
pub fn key(id: u64) -> FeatureKey {
    match id {
        0 => FeatureKey(0),
        1 => FeatureKey(u64::MAX),
        id => FeatureKey::from_u64(id),
    }
}

/// Checks a client.
///
/// # Errors
/// The first broken promise, in words.
pub fn run(make: &mut MakeClient<'_>) -> Result<(), String> {
    run_of(Dtype::F32, make)
}

/// Checks a client with weights of this type.
///
/// # Errors
/// The first broken promise, in words.
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

/// Returns a random history.
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
                        Ending::Discarded,
                        Ending::Abandoned,
                    ][[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3][kind as usize]],
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
