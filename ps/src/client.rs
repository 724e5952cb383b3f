//! The contract between a trainer and its tables. The tables can be in this process or in another
//! one.
//!
//! The contract has seven parts. [`TableAccess`] reads and fills tables between steps,
//! [`StepClient`] does training steps, [`Exchanging`] joins the parts of several trainers in a
//! step, [`Pacing`] sends the pushes of trainers that do not wait for each other,
//! [`Checkpointing`] writes and restores checkpoints, [`Publishing`] gives rows to the publisher of
//! a version, and [`Residency`] keeps rows on a GPU. A trainer uses all of them, as a
//! [`TrainClient`]. A holder of tables whose rows a trainer borrows also is a [`Lending`].

mod checkpointing;
mod exchange;
mod lending;
mod pacing;
mod publishing;
mod residency;
mod steps;
mod tables;

pub use checkpointing::{CheckpointTicket, Checkpointing};
pub use exchange::{Contribution, Exchanged, Exchanging, TrainerPlace};
pub use lending::Lending;
pub(crate) use lending::{Answered, PIECE_WORDS};
pub use pacing::{Arrival, Continued, MOST_STALENESS, Pace, Pacing, Shared};
pub use publishing::{LayerTarget, Publishing, Since};
pub use residency::{Residency, ResidentStep};
pub use steps::{PullOptions, PushMode, StepClient, StepReport};
pub use tables::TableAccess;

/// The operations on tables that a training run needs.
///
/// # A step
/// A step without clipping makes the calls `begin_step`, `pull`, `push(Apply)` and `sweep`, in this
/// order. `sweep` ends the step; it can be omitted if no table has a whole-table rule and no table
/// evicts. A step with clipping makes the calls `begin_step`, `pull`, `push(Stage)` and
/// `grad_sq_norm`, and then either `apply` with the factor of the gradients, or `skip` if their
/// norm is not finite. `discard` ends a step without any change. A call out of order returns
/// [`Error::Order`](crate::Error::Order) and changes nothing.
///
/// Eviction removes rows at the end of the step, after all other work of `sweep`, `apply` or
/// `skip`. It removes no row between the pull and the push of the same step, and no row in a step
/// that is discarded.
///
/// # The caller must
/// * sum the gradients of a row over its occurrences before the push, in a fixed order. A step has
///   only one push;
/// * push gradients in the plan's shape: one row of floats for each unique key, at the stride of
///   the table's layout. The padding after the last segment is ignored;
/// * give the shows and clicks of each row with the gradients (`TableRows::uses`) for tables that
///   keep statistics of use, and for no other table.
///
/// # The implementer must
/// * return the same bits for any number of shards, threads and servers;
/// * never insert a row on a read. A pull of an unknown key returns the seeded initial row of the
///   key. The push of the key then creates the row, with two exceptions. If the table has a fixed
///   vocabulary or is at its limit, the push refuses the key. If admission needs more occurrences
///   of the key, the push only counts them. If a step has more new keys than the table has room
///   for, the first new keys of the plan get the rows;
/// * drop the gradient of a row if one of its numbers is not finite, and apply all other gradients.
///   The row keeps its weights and its optimizer state, and all else is as for other gradients. So
///   the keys of a row, and what is counted of them, never depend on a gradient;
/// * count the unknown keys, the evicted rows, and the gradients that are dropped. A gradient is
///   dropped if its key waits for admission, if its key is refused, or if the gradient is not
///   finite.
///
/// [`conformance::run`](crate::conformance::run) tests these rules.
pub trait TrainClient:
    StepClient + Exchanging + Pacing + Checkpointing + Publishing + Residency
{
}

impl<T: StepClient + Exchanging + Pacing + Checkpointing + Publishing + Residency> TrainClient
    for T
{
}
