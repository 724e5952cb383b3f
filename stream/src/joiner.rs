//! The joiner: impressions and their feedback become rows to learn from.
//!
//! An impression waits for its feedback until the watermark has passed its window, or is emitted at
//! once and corrected later. Pending rows lie on disk. Memory holds an index of them and the
//! feedback.
//!
//! An input is an impression, feedback, or a decision about a partition. After each input, all rows
//! of [`Joiner::next_row`] must be taken. So a caller may stop and write a checkpoint between any
//! two rows, however many rows one input makes due.
//!
//! # Invariants
//! * Rows and counters are a function of the inputs and the settings. They do not depend on time,
//!   on the order of hashes, on where rows lie, or on the moments of checkpoints.
//! * Rows that are due leave by event time, and in the order of arrival at equal times.
//! * Bounds count what pending rows need, not what is allocated. So a restored joiner reaches a
//!   bound at the same input.
//!
//! # Crash consistency
//! The state since the last checkpoint is lost with the process. The log of decisions leads a
//! restored joiner to the same state. After an error of the disk, every further call is refused,
//! because a change may be half done.

mod checkpoint;
mod counters;
mod engine;
mod error;
mod events;
mod feedback;
mod index;
mod inputs;
mod key;
mod memtable;
mod pending;
mod record;
mod segment;
mod settings;
#[cfg(test)]
mod tests;
mod weights;

pub use counters::Counters;
pub use engine::{Extent, Joiner};
pub use error::{JoinError, JoinResult};
pub use events::{Feedback, Impression, JoinedRow, Outcome, Reason, Refusal};
pub use feedback::FeedbackValue;
pub use settings::{Bounds, Emit, Late, Negatives, SamplingCorrection, Settings};
pub use weights::correction_weight;
