//! The slots of each table that a server owns.

use std::ops::Range;

use crate::error::Result;
use crate::options::TableOptions;

/// Returns the slots of each table that the server with the slots `server` owns.
pub(crate) fn owned(tables: &TableOptions, server: Range<usize>) -> Result<Vec<Range<usize>>> {
    Ok(tables.tables.iter().map(|_| server.clone()).collect())
}
