//! The count of a key that has occurred and has no row yet, as a checkpoint stores it.

use zillion_feature::SLOTS;

/// The largest admission threshold that exact counts support: a count is stored in the 12 bits of a
/// key that give its slot.
pub const LARGEST_THRESHOLD: u32 = SLOTS as u32;

/// The count and the last step of a key that waits for admission, as a checkpoint stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of occurrences so far: at least 1, and below the threshold of the table.
    pub count: u32,
    /// The step in which the key was last seen.
    pub last_step: u32,
}
