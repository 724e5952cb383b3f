//! The index entries that a pull has found for its keys, kept for the push of the same keys.
//!
//! A step pulls and pushes the keys of one plan. Without this list, a push waits for three random
//! cache lines for each key. One of them is the line of the index, which the entries of the pull
//! make unnecessary. The entries are valid until a key is removed from the index or an entry is
//! redirected. Keys that had no row at the pull are looked up again, because they may have one now.
//! The entries are temporary data of a step, like its buffers, and do not belong to the table.

use zillion_feature::FeatureKey;

use crate::index::{Entry, Index};

/// The index entries that one pull has found.
#[derive(Debug, Default)]
pub(crate) struct FoundRows {
    keys: Vec<FeatureKey>,
    /// The index entry of each key, or [`Entry::NONE`] for a key without a row.
    rows: Vec<Entry>,
    /// The value of [`Index::moves`] at the time of the pull.
    moves: u64,
}

/// The buffers into which a pull writes some of its keys and their index entries.
#[derive(Debug)]
pub(crate) struct FoundBuffers<'a> {
    pub(crate) keys: &'a mut [FeatureKey],
    pub(crate) rows: &'a mut [Entry],
}

impl FoundRows {
    /// Makes room for `keys` keys and their entries. The room still holds the entries of an earlier
    /// pull, so the caller must write all of it before the entries are read. If a pull fails, the
    /// caller must drop this value.
    pub(crate) fn begin(&mut self, keys: usize, index: &Index) {
        self.keys.resize(keys, FeatureKey(0));
        self.rows.resize(keys, Entry::NONE);
        self.moves = index.moves();
    }

    /// Returns the buffers for the keys and entries.
    pub(crate) fn room(&mut self) -> FoundBuffers<'_> {
        FoundBuffers { keys: &mut self.keys, rows: &mut self.rows }
    }

    /// Returns the index entries of `keys`, or `None` if these are not the keys of the last pull or
    /// if entries may have changed since the pull.
    pub(crate) fn rows(&self, keys: &[FeatureKey], index: &Index) -> Option<&[Entry]> {
        (self.moves == index.moves() && self.keys == keys).then_some(&self.rows[..])
    }
}

impl<'a> FoundBuffers<'a> {
    /// Removes the buffers of the first `keys` keys from the beginning, and returns them.
    pub(crate) fn split_off_first(&mut self, keys: usize) -> FoundBuffers<'a> {
        let (first_keys, keys_left) = std::mem::take(&mut self.keys).split_at_mut(keys);
        let (first_rows, rows_left) = std::mem::take(&mut self.rows).split_at_mut(keys);
        (self.keys, self.rows) = (keys_left, rows_left);
        FoundBuffers { keys: first_keys, rows: first_rows }
    }
}
