//! The slots of each table that a server owns.

use std::ops::Range;

use zillion_embedding::{owned_slots, table_groups};

use crate::error::Result;
use crate::options::TableOptions;

/// Returns the slots of each table that the server with the slots `server` owns: the groups of the
/// table whose first slot is one of them.
pub(crate) fn owned(tables: &TableOptions, server: &Range<usize>) -> Result<Vec<Range<usize>>> {
    let groups = table_groups(&tables.tables, tables.max_bytes)?;
    Ok(groups.into_iter().map(|groups| owned_slots(groups, server.clone())).collect())
}
