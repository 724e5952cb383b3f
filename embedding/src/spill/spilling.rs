//! The tables of a set that spill, and the number of their lookups.

use crate::spill::SpillHome;

/// The tables that spill, and the number of their lookups.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) home: SpillHome,
    /// The bytes that the rows of each table may take in memory; `None` for a table that does not
    /// spill.
    pub(crate) memory: Vec<Option<u64>>,
    /// The number of lookups so far, of training and of evaluation.
    pub(crate) pulls: u32,
    /// The number of the lookup for which the last plan was announced.
    pub(crate) announced: u32,
}
