//! Which checkpoints a checkpoint of changes can stand on.
//!
//! A mark is the era that ended when a checkpoint began: rows of later eras have changed since.
//! What went, or left memory, is remembered by the tables (see `table::departed`) as far back as
//! the older of two marks, those of the last two checkpoints that were finished: whoever has
//! written files may yet fail to give them their name, and then the next checkpoint stands on the
//! one before.
//!
//! # Invariants
//! * A mark is of one history: what is restored begins another one, and its own mark is the first
//!   of it.
//! * A checkpoint that was given up leaves no mark and moves none.

/// Marks that are kept.
pub(crate) const KEPT: usize = 2;

/// The moment of a checkpoint that was finished or restored, for one that holds what changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    pub(crate) history: u32,
    pub(crate) era: u32,
}

/// The marks of a set's checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) history: u32,
    /// Ascending.
    pub(crate) eras: Vec<u32>,
}
