//! The checkpoints that a checkpoint of changes can stand on.
//!
//! A mark is the snapshot generation that ended when a checkpoint began: rows of later generations
//! have changed since. The tables remember which keys left, or left memory, (see `tombstones`) as
//! far back as the older of two marks, those of the last two finished checkpoints: the caller that
//! has written the files of a checkpoint may yet fail to rename them, and then the next checkpoint
//! stands on the one before.
//!
//! # Invariants
//! * A mark belongs to one history: restoring begins another history, and its own mark is the first
//!   of it.
//! * A checkpoint that was given up leaves no mark and moves none.

/// Marks that are kept.
pub(crate) const KEPT: usize = 2;

/// The moment of a checkpoint that was finished or restored, for one that holds what changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    pub(crate) history: u32,
    pub(crate) generation: u32,
}

/// The marks of a set's checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) history: u32,
    /// The generations that ended with a checkpoint, ascending.
    pub(crate) generations: Vec<u32>,
}
