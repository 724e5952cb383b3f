//! How large the first chunk of a slab is: as much memory as its rows are worth, and never much more.
//!
//! It begins with a page and grows by a quarter. Moving pages costs no copy, so that small steps cost little, and a table
//! whose memory is limited can use three quarters of its limit. Near the size of a chunk it becomes one, a huge page.
//! Where rows go it gives memory back, in steps that are an eighth of it at least: a row at the edge does not move it to
//! and fro.

use super::{CHUNK_BYTES, FIRST_BYTES};

/// From this size on it is a whole chunk.
const NEARLY_WHOLE: usize = CHUNK_BYTES / 8 * 7;

/// The first chunk with its first row.
pub(super) fn first(row_bytes: usize) -> usize {
    holding(1, row_bytes)
}

/// The next size after `bytes`, which are full of rows; a whole chunk at most.
pub(super) fn larger(bytes: usize, row_bytes: usize) -> usize {
    let rows = bytes / row_bytes;
    holding((rows + rows / 4).max(rows + 1), row_bytes)
}

/// Whether rows are so few that their chunk may shrink.
#[inline(always)]
pub(super) fn is_sparse(live: usize, capacity: usize) -> bool {
    3 * live < 2 * capacity
}

/// The size that a sparse chunk of `bytes` bytes shrinks to, with `live` rows, the last of them at `end - 1`; `None` where
/// little would go.
pub(super) fn smaller(bytes: usize, live: usize, end: usize, row_bytes: usize) -> Option<usize> {
    // Room for rows that lie a little beyond their number, and for the next one.
    let fitting = holding(end.max(live + live / 8 + 1), row_bytes);
    (fitting <= bytes / 8 * 7).then_some(fitting)
}

/// What a slab of `rows` rows has mapped that has only grown.
pub(crate) fn mapped(rows: usize, row_bytes: usize) -> usize {
    let whole = CHUNK_BYTES / row_bytes;
    if rows > whole {
        return rows.div_ceil(whole) * CHUNK_BYTES;
    }
    let mut bytes = if rows > 0 { first(row_bytes) } else { 0 };
    while bytes / row_bytes < rows {
        bytes = larger(bytes, row_bytes);
    }
    bytes
}

/// The pages of so many rows; a whole chunk where little is missing, or where they are as many as it holds.
fn holding(rows: usize, row_bytes: usize) -> usize {
    let bytes = (rows * row_bytes).next_multiple_of(FIRST_BYTES);
    let is_whole = bytes >= NEARLY_WHOLE || bytes / row_bytes >= CHUNK_BYTES / row_bytes;
    if is_whole { CHUNK_BYTES } else { bytes }
}
