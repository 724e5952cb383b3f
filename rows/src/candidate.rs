//! A key that has been seen and does not have a row yet, as a checkpoint keeps it.

use zillion_feature::SLOTS;

/// The largest threshold that exact counts can be compared with: a count takes the place of the
/// bits of a slot's number.
pub const LARGEST_THRESHOLD: u32 = SLOTS as u32;

/// A key that waits to be admitted, as a checkpoint keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of occurrences so far: at least one, and fewer than the table asks for.
    pub count: u32,
    /// The step in which the key was last seen.
    pub last_step: u32,
}
