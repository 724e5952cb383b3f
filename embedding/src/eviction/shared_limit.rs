//! A limit of the memory of all tables together.

use crate::error::{Error, Result};
use zillion_rows::TableSpec;
use zillion_rows::memory::{CANDIDATES_PART, candidates_within};
use zillion_rows::{Admission, ByteSize};

/// The memory that the tables of a set may take together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedLimit {
    /// The bytes that rows, indexes and filters may take; `None` if memory is not limited.
    pub(crate) rows: Option<u64>,
    /// The largest number of candidates of a slot, in tables that count keys exactly and have no
    /// limit of their own; `None` if there is no such limit.
    pub(crate) candidates_in_slot: Option<usize>,
}

impl SharedLimit {
    pub(crate) fn new(specs: &[&TableSpec], ByteSize(limit): ByteSize) -> Result<Self> {
        let counting = |spec: &&&TableSpec| {
            matches!(spec.admission, Admission::Count { .. }) && spec.max_bytes.is_none()
        };
        let tables = specs.iter().filter(counting).count() as u64;
        let part = if tables > 0 { limit / CANDIDATES_PART } else { 0 };
        // A candidate takes the same memory in all tables.
        let in_slot = specs.iter().find(counting);
        let in_slot = in_slot.map(|_| candidates_within(part / tables.max(1)));
        let least: u64 = specs.iter().map(|spec| spec.reckoning().memory(1)).sum();
        if limit - part < least || in_slot == Some(0) {
            let reason = format!(
                "{limit} bytes are too few, because {} tables with one row each take {least} bytes{}; raise the limit",
                specs.len(),
                if tables > 0 { ", and an eighth of the limit is kept for candidates" } else { "" }
            );
            return Err(Error::Spec { key: "train.max_table_bytes".to_owned(), reason });
        }
        Ok(Self { rows: Some(limit - part), candidates_in_slot: in_slot })
    }
}

/// Checks that tables can be kept within a limit for all of them together (see
/// [`TableSet::limit_bytes`]).
///
/// # Errors
/// Returns [`Error::Spec`] if the limit is too small for one row of each table.
pub fn check_shared_limit(specs: &[TableSpec], limit: ByteSize) -> Result<()> {
    SharedLimit::new(&specs.iter().collect::<Vec<_>>(), limit).map(|_| ())
}

/// Returns the bytes of a limit that rows, indexes and filters may take. The rest of the limit is
/// for candidates.
pub(crate) fn shared_room(specs: &[TableSpec], limit: ByteSize) -> Result<u64> {
    let shared = SharedLimit::new(&specs.iter().collect::<Vec<_>>(), limit)?;
    Ok(shared.rows.unwrap_or(u64::MAX))
}
