//! The marks of the checkpoints on which a checkpoint of changes can be based.
//!
//! A mark is the snapshot generation that ended when a checkpoint began. Rows with a later
//! generation have changed since then. The marks of the last two finished checkpoints are kept. The
//! tables record which keys were removed or spilled since the older mark (see `tombstones`). Two
//! marks are needed, because a caller may fail to rename the files of a finished checkpoint. The
//! next checkpoint is then based on the older mark.
//!
//! # Invariants
//! * A mark belongs to one history. Restoring a checkpoint begins another history, whose first mark
//!   is that of the restored checkpoint.
//! * An abandoned checkpoint changes no mark.

/// The number of marks that are kept.
pub(crate) const KEPT: usize = 2;

/// The moment at which a finished or restored checkpoint began. A checkpoint of changes can hold
/// the changes since this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    pub(crate) history: u32,
    pub(crate) generation: u32,
}

impl SnapshotMark {
    /// Returns the two numbers of the mark, with which another process can hold it.
    pub fn numbers(self) -> [u32; 2] {
        [self.history, self.generation]
    }

    /// Returns the mark with these numbers, which [`SnapshotMark::numbers`] has returned.
    pub fn of_numbers([history, generation]: [u32; 2]) -> Self {
        Self { history, generation }
    }
}

/// The marks of a set's checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) history: u32,
    /// The generations that ended with a checkpoint, in ascending order.
    pub(crate) generations: Vec<u32>,
}
