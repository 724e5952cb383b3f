//! The time for which the changed keys of a set of tables are remembered.

/// The time for which changes are remembered, and its beginning.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// Lists of past epochs that are kept at most.
    pub(crate) epochs: usize,
    /// Keys that a table's lists may hold in any case.
    pub(crate) fewest: u64,
    /// By table, the first generation since whose end every change is known.
    pub(crate) reach: Vec<u32>,
}
