//! The trainer's contract with its tables, wherever they are.
//!
//! The contract is cut by who uses it: [`TableAccess`] is what any user of tables needs between
//! steps, [`StepClient`] is one training step, [`Checkpointing`] writes and restores checkpoints,
//! and [`Publishing`] hands rows to the publisher of a version. A trainer holds all of them at
//! once, as a [`TrainClient`].

mod checkpointing;
mod publishing;
mod steps;
mod tables;

pub use checkpointing::{CheckpointTicket, Checkpointing};
pub use publishing::{Publishing, Since};
pub use steps::{PushMode, StepClient, StepReport, Want};
pub use tables::TableAccess;

/// All that a training run needs of its tables.
///
/// # A step
/// Without clipping: `begin_step`, `pull`, `push(Apply)`, and `sweep`, which ends the step (it may
/// be left out where no table has a whole-table rule and none evicts). With clipping: `begin_step`,
/// `pull`, `push(Stage)`, `grad_sq_norm`, then `apply` with the factor, or `discard` to skip the
/// step. A call out of order is refused with [`Error::Order`](crate::Error::Order) and changes
/// nothing.
///
/// Eviction removes rows at the end of the step, in `sweep` or `apply`, after everything else that
/// these calls do. No row is removed between a pull and the push of the same step, and a step that
/// is discarded removes no row.
///
/// # The caller must
/// * sum the gradients of a row over its occurrences before the push, in a fixed order: one push a
///   step;
/// * push gradients in the plan's shape: one row for each unique key at the layout's stride. The
///   padding after the last segment is ignored;
/// * give the uses of each row with the gradients (`TableRows::uses`) where its table keeps
///   statistics of use, and only there.
///
/// # The implementer must
/// * return the same bits for any number of shards, threads and servers;
/// * never insert on a read: an unknown key pulls as its seeded initial row, and the push creates
///   the row, or refuses it in a table with a fixed vocabulary or at its limit, or counts the key
///   where keys are admitted by their count. Where a step has more new keys than free rows, the
///   keys that come first in the plan get them;
/// * drop a gradient row that is not finite and apply all others;
/// * count everything that is missing, waiting, refused, dropped or evicted.
///
/// [`conformance::run`](crate::conformance::run) tests all of it.
pub trait TrainClient: StepClient + Checkpointing + Publishing {}

impl<T: StepClient + Checkpointing + Publishing> TrainClient for T {}
