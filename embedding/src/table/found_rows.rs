//! The entries that a pull has found for its keys, for the push of the same keys.
//!
//! A step pulls and pushes the keys of one plan, and one of the three random cache lines that a
//! push waits for is that of the index. The entries of a pull are valid as long as no key has left
//! the index and no entry was redirected; keys that have been added since are looked up again. The
//! entries are temporary data of a step, like its buffers, and no part of the table.

use zillion_feature::FeatureKey;

use crate::index::{Entry, Index};

/// The index entries that one pull has found.
#[derive(Debug, Default)]
pub(crate) struct FoundRows {
    keys: Vec<FeatureKey>,
    /// The entry of each key, or [`Entry::NONE`].
    rows: Vec<Entry>,
    /// The count of moves of the index ([`Index::moves`]) at the time of the pull.
    moves: u64,
}

/// The buffers for the entries of some of a pull's keys.
#[derive(Debug)]
pub(crate) struct FoundBuffers<'a> {
    pub(crate) keys: &'a mut [FeatureKey],
    pub(crate) rows: &'a mut [Entry],
}

impl FoundRows {
    /// Makes room for `keys` keys. All of it must be written before the entries are read, because
    /// it still holds the entries of an earlier pull. A pull that fails must drop this value.
    pub(crate) fn begin(&mut self, keys: usize, index: &Index) {
        self.keys.resize(keys, FeatureKey(0));
        self.rows.resize(keys, Entry::NONE);
        self.moves = index.moves();
    }

    /// Returns the buffers for the keys and entries.
    pub(crate) fn room(&mut self) -> FoundBuffers<'_> {
        FoundBuffers { keys: &mut self.keys, rows: &mut self.rows }
    }

    /// Returns the entries of `keys`, if these are the keys of the last pull and no entry has
    /// changed since then.
    pub(crate) fn rows(&self, keys: &[FeatureKey], index: &Index) -> Option<&[Entry]> {
        (self.moves == index.moves() && self.keys == keys).then_some(&self.rows[..])
    }
}

impl<'a> FoundBuffers<'a> {
    /// Splits off the buffers of the first `keys` keys.
    pub(crate) fn split_off_first(&mut self, keys: usize) -> FoundBuffers<'a> {
        let (first_keys, keys_left) = std::mem::take(&mut self.keys).split_at_mut(keys);
        let (first_rows, rows_left) = std::mem::take(&mut self.rows).split_at_mut(keys);
        (self.keys, self.rows) = (keys_left, rows_left);
        FoundBuffers { keys: first_keys, rows: first_rows }
    }
}
