//! The settings for the tracking of changes in a set of tables.

/// The limits of the lists of changed keys, and the generations from which the lists are complete.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// The largest number of lists of ended epochs that are kept.
    pub(crate) epochs: usize,
    /// The number of keys that the lists of a table may always hold.
    pub(crate) fewest: u64,
    /// For each table, the earliest generation after whose end all changes are known.
    pub(crate) reach: Vec<u32>,
}
