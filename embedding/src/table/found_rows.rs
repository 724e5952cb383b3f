//! The entries that a pull has found for its keys, for the push of the same keys.
//!
//! A step pulls and pushes the keys of one plan, and one of the three random cache lines that a
//! push waits for is that of the index. The entries of a pull hold as long as no key has left the
//! index and none was redirected; keys that have come since are looked up again. They are scratch
//! of a step, as its buffers are, and no part of the table.

use zillion_feature::FeatureKey;

use crate::index::{Entry, Index};

/// The entries that one pull has found.
#[derive(Debug, Default)]
pub(crate) struct FoundRows {
    keys: Vec<FeatureKey>,
    /// By key, its entry or [`Entry::NONE`].
    rows: Vec<Entry>,
    /// The number of moves that the index had counted.
    moves: u64,
}

/// Permits for what is found for some of a pull's keys.
#[derive(Debug)]
pub(crate) struct FoundBuffers<'a> {
    pub(crate) keys: &'a mut [FeatureKey],
    pub(crate) rows: &'a mut [Entry],
}

impl FoundRows {
    /// Makes room for so many keys. All of it must be written before anything is asked: what an
    /// earlier pull has found still stands there, and a pull that fails must drop this.
    pub(crate) fn begin(&mut self, keys: usize, index: &Index) {
        self.keys.resize(keys, FeatureKey(0));
        self.rows.resize(keys, Entry::NONE);
        self.moves = index.moves();
    }

    /// Returns the buffers for the keys and entries.
    pub(crate) fn room(&mut self) -> FoundBuffers<'_> {
        FoundBuffers { keys: &mut self.keys, rows: &mut self.rows }
    }

    /// The rows of `keys`, where they are those of the last pull and all is where it was.
    pub(crate) fn rows(&self, keys: &[FeatureKey], index: &Index) -> Option<&[Entry]> {
        (self.moves == index.moves() && self.keys == keys).then_some(&self.rows[..])
    }
}

impl<'a> FoundBuffers<'a> {
    /// Cuts off the room of the first `keys`.
    pub(crate) fn split_off_first(&mut self, keys: usize) -> FoundBuffers<'a> {
        let (first_keys, keys_left) = std::mem::take(&mut self.keys).split_at_mut(keys);
        let (first_rows, rows_left) = std::mem::take(&mut self.rows).split_at_mut(keys);
        (self.keys, self.rows) = (keys_left, rows_left);
        FoundBuffers { keys: first_keys, rows: first_rows }
    }
}
