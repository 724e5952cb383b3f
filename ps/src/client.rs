//! The contract between a trainer and its tables, in this process or in another one.
//!
//! The contract has four parts: [`TableAccess`] reads and fills tables between steps,
//! [`StepClient`] is one training step, [`Checkpointing`] writes and restores checkpoints, and
//! [`Publishing`] gives rows to the publisher of a version. A trainer uses all of them, as a
//! [`TrainClient`].

mod checkpointing;
mod publishing;
mod steps;
mod tables;

pub use checkpointing::{CheckpointTicket, Checkpointing};
pub use publishing::{Publishing, Since};
pub use steps::{PullOptions, PushMode, StepClient, StepReport};
pub use tables::TableAccess;

/// The operations on tables that a training run needs.
///
/// # A step
/// The calls of a step without clipping are `begin_step`, `pull`, `push(Apply)`, and `sweep`, which
/// ends the step (`sweep` can be omitted if no table has a whole-table rule and no table evicts).
/// The calls of a step with clipping are `begin_step`, `pull`, `push(Stage)`, `grad_sq_norm`, then
/// `apply` with the factor, or `discard` to skip the step. A call out of order returns
/// [`Error::Order`](crate::Error::Order) and changes nothing.
///
/// Eviction removes rows at the end of the step, after all other work of `sweep` or `apply`. No row
/// is removed between a pull and the push of the same step, and a step that is discarded removes no
/// row.
///
/// # The caller must
/// * sum the gradients of a row over its occurrences before the push, in a fixed order, because a
///   step has one push;
/// * push gradients in the plan's shape: one row for each unique key at the layout's stride. The
///   padding after the last segment is ignored;
/// * give the uses of each row with the gradients (`TableRows::uses`) for tables that keep
///   statistics of use, and only for those.
///
/// # The implementer must
/// * return the same bits for any number of shards, threads and servers;
/// * never insert on a read: a pull of an unknown key returns its seeded initial row, and the push
///   creates the row, or refuses it in a table with a fixed vocabulary or at its limit, or counts
///   the key if keys are admitted by their count. If a step has more new keys than free rows, the
///   first keys of the plan get the rows;
/// * drop a gradient row that is not finite and apply all others;
/// * count all keys and gradients that are missing, waiting, refused, dropped or evicted.
///
/// [`conformance::run`](crate::conformance::run) tests these rules.
pub trait TrainClient: StepClient + Checkpointing + Publishing {}

impl<T: StepClient + Checkpointing + Publishing> TrainClient for T {}
