//! The candidates of a checkpoint: keys that have occurred and have no row yet, with their counts.

use zillion_feature::SLOTS;

/// The largest admission threshold that exact counts support. The index stores a count in the 12
/// bits where it otherwise stores the slot bits of a key.
pub const LARGEST_THRESHOLD: u32 = SLOTS as u32;

/// The count and the last step of a candidate, as a checkpoint stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of occurrences that have been counted: at least 1, and below the threshold of the
    /// table.
    pub count: u32,
    /// The step in which the key was last seen.
    pub last_step: u32,
}
