//! Where a pull has found its keys, for the push of the same keys.
//!
//! A step pulls and pushes the keys of one plan, and of the three random lines that a push waits
//! for the index has one. What the pull has found holds as long as no key has left the index and
//! none leads elsewhere; keys that have come since are looked for again. It is scratch of a step,
//! as its buffers are, and no part of the table.

use zillion_feature::FeatureKey;

use crate::index::{Entry, Index};

/// What one pull has found.
#[derive(Debug, Default)]
pub(crate) struct Known {
    keys: Vec<FeatureKey>,
    /// By key, its entry or [`Entry::NONE`].
    rows: Vec<Entry>,
    /// What the index said of its moves.
    moves: u64,
}

/// Room for what is found for some of a pull's keys.
#[derive(Debug)]
pub(crate) struct KnownRoom<'a> {
    pub(crate) keys: &'a mut [FeatureKey],
    pub(crate) rows: &'a mut [Entry],
}

impl Known {
    /// Makes room for so many keys. All of it must be written before anything is asked: what an
    /// earlier pull has found still stands there, and a pull that fails must drop this.
    pub(crate) fn begin(&mut self, keys: usize, index: &Index) {
        self.keys.resize(keys, FeatureKey(0));
        self.rows.resize(keys, Entry::NONE);
        self.moves = index.moves();
    }

    /// The room.
    pub(crate) fn room(&mut self) -> KnownRoom<'_> {
        KnownRoom { keys: &mut self.keys, rows: &mut self.rows }
    }

    /// The rows of `keys`, where they are those of the last pull and all is where it was.
    pub(crate) fn rows(&self, keys: &[FeatureKey], index: &Index) -> Option<&[Entry]> {
        (self.moves == index.moves() && self.keys == keys).then_some(&self.rows[..])
    }
}

impl<'a> KnownRoom<'a> {
    /// Cuts off the room of the first `keys`.
    pub(crate) fn split_off_first(&mut self, keys: usize) -> KnownRoom<'a> {
        let (first_keys, keys_left) = std::mem::take(&mut self.keys).split_at_mut(keys);
        let (first_rows, rows_left) = std::mem::take(&mut self.rows).split_at_mut(keys);
        (self.keys, self.rows) = (keys_left, rows_left);
        KnownRoom { keys: first_keys, rows: first_rows }
    }
}
