//! The state of spilling that all shards of a set share.

use crate::spill::SpillHome;

/// The memory of the tables that spill, and the number of lookups of the set.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) home: SpillHome,
    /// The bytes that the rows of each table may take in memory; `None` for a table that does not
    /// spill.
    pub(crate) memory: Vec<Option<u64>>,
    /// The number of lookups that were made, for training and for evaluation.
    pub(crate) pulls: u32,
    /// The number of the lookup that will use the latest announced plan.
    pub(crate) announced: u32,
}
