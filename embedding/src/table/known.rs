//! Where a pull has found its keys, for the push of the same keys.
//!
//! A step pulls and pushes the keys of one plan, and of the three random lines that a push waits for the index has
//! one. What the pull has found holds as long as no key has left the index and none leads elsewhere; keys that have
//! come since are looked for again. It is scratch of a step, as its buffers are, and no part of the table.

use zillion_feature::FeatureKey;

use crate::ahead::NO_ROW;
use crate::index::Index;

#[derive(Debug, Default)]
pub(super) struct Known {
    keys: Vec<FeatureKey>,
    /// By key, its row or [`NO_ROW`].
    rows: Vec<u32>,
    /// What the index said of its moves.
    moves: u64,
}

impl Known {
    /// Where the rows of `keys` go, each of which must be written.
    pub(super) fn begin(&mut self, keys: &[FeatureKey], index: &Index) -> &mut [u32] {
        self.keys.clear();
        self.keys.extend_from_slice(keys);
        self.rows.resize(keys.len(), NO_ROW);
        self.moves = index.moves();
        &mut self.rows
    }

    /// The rows of `keys`, where they are those of the last pull and all is where it was.
    pub(super) fn rows(&self, keys: &[FeatureKey], index: &Index) -> Option<&[u32]> {
        (self.moves == index.moves() && self.keys == keys).then_some(&self.rows[..])
    }
}
