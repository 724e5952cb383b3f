//! The tables of a set that spill, and the number of their lookups.

use crate::spill::SpillHome;

/// The tables that spill, and the number of their lookups.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) home: SpillHome,
    /// By table, the bytes that its rows may take in memory.
    pub(crate) memory: Vec<Option<u64>>,
    /// Lookups so far, of training and of evaluation.
    pub(crate) pulls: u32,
    /// The lookup that the last plan was announced for.
    pub(crate) announced: u32,
}
