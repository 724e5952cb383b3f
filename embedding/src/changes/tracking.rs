//! The settings of change tracking in a set of tables.

/// The limits of the lists of changed keys, and the epochs from which they are complete.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// The largest number of lists of past epochs that are kept.
    pub(crate) epochs: usize,
    /// The number of keys that a table's lists may hold in any case.
    pub(crate) fewest: u64,
    /// For each table, the first generation after whose end every change is known.
    pub(crate) reach: Vec<u32>,
}
