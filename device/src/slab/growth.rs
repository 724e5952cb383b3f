//! The size of the first chunk of a slab. It has the memory that its rows need, and not much more.
//!
//! The chunk begins with a page and grows by a quarter each time. Moving pages needs no copy, so
//! small steps cost little, and a table with limited memory can use most of its limit. Near the
//! full size, the chunk becomes a whole chunk, which is a huge page. This step does need a copy.
//! The shards of a table grow at the same pace, so each makes this step at a different size. When
//! rows are freed, the chunk returns memory in steps of at least an eighth. So a single row does
//! not make the chunk grow and shrink repeatedly.

use super::{CHUNK_BYTES, FIRST_BYTES};

/// The smallest size at which the first chunk becomes a whole chunk.
const NEARLY_WHOLE: usize = CHUNK_BYTES / 8 * 7;
/// The last size before a whole chunk, for slab number 0 of a group. For each further slab of the
/// group, [`STAGGER`] is added once more.
const LAST: usize = CHUNK_BYTES / 16 * 11;
const STAGGERS: usize = 8;
const STAGGER: usize = CHUNK_BYTES / 64;

/// Returns the size of a first chunk with a single row.
pub(super) fn first_bytes(row_bytes: usize) -> usize {
    bytes_holding(1, row_bytes)
}

/// Returns the next size of a first chunk of `bytes` bytes that is full of rows. `place` is the
/// number of the slab in its group. The result is at most a whole chunk.
pub(super) fn grown_bytes(bytes: usize, row_bytes: usize, place: usize) -> usize {
    let rows = bytes / row_bytes;
    let next = bytes_holding((rows + rows / 4).max(rows + 1), row_bytes);
    if next < LAST {
        return next;
    }
    let last = LAST + place % STAGGERS * STAGGER;
    // With large rows, there may be no size between this size and a chunk.
    let is_between = (rows + 1..CHUNK_BYTES / row_bytes).contains(&(last / row_bytes));
    if bytes < last && is_between { last } else { CHUNK_BYTES }
}

/// Returns whether a chunk has so few rows that it may shrink.
#[inline(always)]
pub(super) fn is_sparse(live: usize, capacity: usize) -> bool {
    3 * live < 2 * capacity
}

/// Returns the size to which a sparse chunk of `bytes` bytes with `live` rows should shrink. The
/// last row has the index `end - 1`. Returns `None` if shrinking would free little.
pub(super) fn shrunk_bytes(
    bytes: usize,
    live: usize,
    end: usize,
    row_bytes: usize,
) -> Option<usize> {
    // The new size has room for rows whose numbers are slightly above the number of rows, and for
    // one more row.
    let fitting = bytes_holding(end.max(live + live / 8 + 1), row_bytes);
    (fitting <= bytes / 8 * 7).then_some(fitting)
}

/// Returns the largest number of bytes that a slab with `rows` rows can have mapped if no row was
/// freed. The result is valid for every number of the slab in a group.
pub(crate) fn most_mapped_bytes(rows: usize, row_bytes: usize) -> usize {
    let whole = CHUNK_BYTES / row_bytes;
    if rows == 0 || whole == 0 {
        return 0;
    }
    if rows > whole {
        return rows.div_ceil(whole) * CHUNK_BYTES;
    }
    let of_place = |place| {
        let mut bytes = first_bytes(row_bytes);
        while bytes / row_bytes < rows {
            bytes = grown_bytes(bytes, row_bytes, place);
        }
        bytes
    };
    // The slabs between become whole chunks at larger sizes than the first slab, and at smaller
    // sizes than the last slab.
    of_place(0).max(of_place(STAGGERS - 1))
}

/// Returns the size in bytes of a first chunk for `rows` rows. If the rows need nearly a whole
/// chunk or more, the result is a whole chunk.
fn bytes_holding(rows: usize, row_bytes: usize) -> usize {
    let bytes = (rows * row_bytes).next_multiple_of(FIRST_BYTES);
    let is_whole = bytes >= NEARLY_WHOLE || bytes / row_bytes >= CHUNK_BYTES / row_bytes;
    if is_whole { CHUNK_BYTES } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists the sizes of a slab's first chunk until it is a whole chunk.
    fn sizes(row_bytes: usize, place: usize) -> Vec<usize> {
        let next = |&bytes: &usize| {
            (bytes < CHUNK_BYTES)
                .then(|| grown_bytes(bytes, row_bytes, place))
                .filter(|&b| b > bytes)
        };
        std::iter::successors(Some(first_bytes(row_bytes)), next).collect()
    }

    #[test]
    fn every_size_holds_more_rows_with_little_to_spare() {
        for row_bytes in [1, 16, 64, 80, 1000, 5000, 70_000, 300_000, 700_000, CHUNK_BYTES / 2] {
            for place in 0..STAGGERS {
                let sizes = sizes(row_bytes, place);
                assert_eq!(sizes.last(), Some(&CHUNK_BYTES), "{row_bytes} bytes a row");
                for pair in sizes.windows(2) {
                    let full = pair[0] / row_bytes;
                    assert!(pair[1] / row_bytes > full, "{pair:?}, {row_bytes} bytes a row");
                    // The size is checked when there is one more row than fits.
                    let worth = (full + 1) * row_bytes;
                    assert!(pair[1] <= worth * 3 / 2 + FIRST_BYTES, "{pair:?}, {row_bytes}");
                }
            }
        }
    }

    #[test]
    fn staggered_slabs_become_chunks_at_different_times() {
        let last = |place| sizes(80, place).into_iter().rev().nth(1).unwrap();
        let mut lasts: Vec<usize> = (0..STAGGERS).map(last).collect();
        assert!(lasts.iter().all(|bytes| (LAST..NEARLY_WHOLE).contains(bytes)), "{lasts:?}");
        lasts.sort_unstable();
        assert!(lasts.windows(2).all(|pair| pair[1] - pair[0] >= STAGGER), "{lasts:?}");
    }

    #[test]
    fn shrinking_frees_much_and_does_not_grow_again_at_once() {
        for (bytes, rows) in [(1 << 20, 16_384), (CHUNK_BYTES, 32_768), (64 << 10, 1024)] {
            assert!(!is_sparse(rows * 2 / 3 + 1, rows) && is_sparse(rows / 2, rows));
            let live = rows / 2;
            let fitting = shrunk_bytes(bytes, live, live, 64).unwrap();
            assert!(fitting <= bytes / 8 * 7 && fitting / 64 > live + live / 8);
            assert_eq!(shrunk_bytes(bytes, live, rows, 64), None, "the last row stays where it is");
        }
        assert_eq!(shrunk_bytes(FIRST_BYTES, 1, 1, 64), None);
    }
}
