//! The marks of the checkpoints on which a checkpoint of changes can be based.
//!
//! A mark is the snapshot generation that ended when a checkpoint began: rows of later generations
//! have changed since. The tables record which keys were removed or spilled (see `tombstones`) as
//! far back as the older of two marks, those of the last two finished checkpoints. Two are needed
//! because the caller that has written the files of a checkpoint may still fail to rename them, and
//! then the next checkpoint is based on the one before.
//!
//! # Invariants
//! * A mark belongs to one history. Restoring begins another history, whose first mark is that of
//!   the restored checkpoint.
//! * An abandoned checkpoint changes no mark.

/// The number of marks that are kept.
pub(crate) const KEPT: usize = 2;

/// The moment of a finished or restored checkpoint, from which a checkpoint of changes can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    pub(crate) history: u32,
    pub(crate) generation: u32,
}

/// The marks of a set's checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) history: u32,
    /// The generations that ended with a checkpoint, in ascending order.
    pub(crate) generations: Vec<u32>,
}
