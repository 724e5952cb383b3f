//! How long the changed keys of a set of tables are remembered.

/// How long changes are remembered, and since when.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// Lists of past epochs that are kept at most.
    pub(crate) epochs: usize,
    /// Keys that a table's lists may hold in any case.
    pub(crate) fewest: u64,
    /// By table, the first era since whose end every change is known.
    pub(crate) reach: Vec<u32>,
}
