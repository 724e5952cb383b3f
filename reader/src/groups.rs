//! Batches of whole groups.
//!
//! A loss that compares the rows of a group needs all of them in one batch. The rows of a group
//! must stand beside each other in the data. Files and their row groups then keep their order,
//! because a group may go over the end of one of them. Of the rows of a window, whole groups are
//! shuffled. The first and the last group of a window keep their places, because their other rows
//! may be in the windows before and after it. So groups are whole in the order of the epoch, and
//! windows and cursors are those of any other order.

use std::collections::HashSet;

use zillion_feature::random::{combine, permutation};
use zillion_feature::{FeatureKey, MixedHasher};

use crate::block::Piece;
use crate::error::{ReaderError, Result};

/// Returns the positions in a window at which its groups begin, in file order. `column` is the
/// index of the column of groups. `places` are the positions of the rows that the pieces hold;
/// `None`: all rows. `start` is the position of the window in the order of the epoch.
///
/// # Errors
/// Returns an error if the rows of a group do not stand beside each other.
pub(crate) fn find_groups(
    pieces: &[Piece],
    column: usize,
    places: Option<&[u32]>,
    start: u64,
) -> Result<Vec<u32>> {
    let (mut begins, mut last) = (Vec::new(), None);
    let mut seen: HashSet<FeatureKey, MixedHasher> = HashSet::default();
    let keys = pieces.iter().flat_map(|piece| group_keys(piece, column));
    for (row, &key) in keys.enumerate() {
        if last == Some(key) {
            continue;
        }
        last = Some(key);
        let place = places.map_or(row as u32, |places| places[row]);
        if !seen.insert(FeatureKey(key)) {
            let row = start + u64::from(place) + 1;
            return Err(ReaderError::GroupTwice { group: describe(key), row });
        }
        // Rows that are left out before the first group belong to it.
        begins.push(if begins.is_empty() { 0 } else { place });
    }
    Ok(begins)
}

/// Returns the keys of the groups of a piece's rows.
pub(crate) fn group_keys(piece: &Piece, column: usize) -> &[u64] {
    &piece.block.columns[column].view::<[u64]>()[piece.start..][..piece.rows]
}

/// Returns the row at each position of a window of `rows` rows whose groups begin at `begins`. The
/// groups between the first and the last one are shuffled.
pub(crate) fn shuffle_groups(seed: u64, begins: &[u32], rows: usize) -> Vec<u32> {
    let ends = begins.iter().skip(1).copied().chain([rows as u32]);
    let groups: Vec<(u32, u32)> = begins.iter().copied().zip(ends).collect();
    let [first, middle @ .., last] = &groups[..] else { return (0..rows as u32).collect() };
    let order = permutation(combine(seed, middle.len() as u64), middle.len() as u32);
    let shuffled = order.iter().map(|&at| &middle[at as usize]);
    let groups = std::iter::once(first).chain(shuffled).chain([last]);
    groups.flat_map(|&(begin, end)| begin..end).collect()
}

/// Returns the number of rows of the whole groups at the beginning of `keys`, at most `most`.
/// `keys` has more than `most` rows.
///
/// # Errors
/// Returns an error if the first group has more rows.
pub(crate) fn count_whole(keys: &[u64], most: usize) -> Result<usize> {
    let is_end = |&rows: &usize| keys[rows] != keys[rows - 1];
    (1..=most)
        .rev()
        .find(is_end)
        .ok_or_else(|| ReaderError::GroupTooLarge { group: describe(keys[0]), rows: most })
}

/// Returns the name of a group for a message.
fn describe(key: u64) -> String {
    let number = FeatureKey(key).unmix() as i64;
    format!("`{number}` (if the column has texts, the one with the key {key:016x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_whole_and_the_outer_ones_in_their_places() {
        let begins = [0, 3, 4, 9, 10, 14];
        let order = shuffle_groups(5, &begins, 20);
        assert_eq!((&order[..3], &order[14..]), (&[0, 1, 2][..], &[14, 15, 16, 17, 18, 19][..]));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<u32>>());
        let begun = |row: &u32| begins.contains(row);
        let follows = |rows: &[u32]| rows[1] == rows[0] + 1 || begun(&rows[1]);
        assert!(order.windows(2).all(follows), "{order:?}");
        assert!((0..20).any(|seed| shuffle_groups(seed, &begins, 20) != order));
        assert_eq!(shuffle_groups(1, &[0], 3), [0, 1, 2]);
        assert_eq!(shuffle_groups(1, &[0, 2], 3), [0, 1, 2]);
        assert_eq!(shuffle_groups(1, &[], 0), [0; 0]);
    }

    #[test]
    fn a_batch_ends_at_the_end_of_a_group() {
        let keys = [1, 1, 2, 2, 2, 3, 4];
        for (most, rows) in [(2, 2), (3, 2), (4, 2), (5, 5), (6, 6)] {
            assert_eq!(count_whole(&keys, most).unwrap(), rows);
        }
        let error = count_whole(&[7, 7, 7], 2).unwrap_err().to_string();
        assert!(
            error.contains("more than 2 rows") && error.contains("train.batch_size"),
            "{error}"
        );
    }
}
