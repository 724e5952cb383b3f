//! The functions of a table that copies rows to a borrower, or borrows them.

use zillion_feature::FeatureKey;
use zillion_rows::META_WORDS;
use zillion_rows::row::Meta;

use crate::changes::Changed;
use crate::error::Result;
use crate::index::Entry;
use crate::lending::{LentRows, lent_words};
use crate::table::Table;

/// The number of keys between the prefetch of a key's place in the index and its lookup.
const AHEAD: usize = 16;

/// The dirty epoch of a row that has not changed since it was borrowed. The epochs of a set begin
/// at 1.
const UNCHANGED: u32 = 0;

impl Table {
    /// Appends the rows that the table has of some keys.
    pub(crate) fn copy_lent(&self, keys: &[FeatureKey], rows: &mut LentRows) {
        rows.words.reserve(keys.len() * lent_words(&self.shape));
        self.look_up(keys, |key, entry| {
            let Some(entry) = entry else { return };
            let row = entry.row();
            rows.keys.push(key);
            rows.words.extend_from_slice(self.slabs.weights.words(row));
            rows.words.extend_from_slice(self.slabs.companion.row(row));
        });
    }

    /// Returns the keys that have no row; none of a table that is borrowed whole.
    pub(crate) fn missing(&self, keys: &[FeatureKey]) -> Vec<FeatureKey> {
        let mut missing = Vec::new();
        if self.dense.is_some() {
            return missing;
        }
        self.look_up(keys, |key, entry| {
            if entry.is_none() {
                missing.push(key);
            }
        });
        missing
    }

    fn look_up(&self, keys: &[FeatureKey], mut f: impl FnMut(FeatureKey, Option<Entry>)) {
        for (at, &key) in keys.iter().enumerate() {
            if let Some(soon) = keys.get(at + AHEAD) {
                self.index.prefetch(*soon);
            }
            f(key, self.index.get(key));
        }
    }

    /// Replaces rows by those that a borrower gives back, and adds those that it has created. All
    /// of them have changed in `generation`.
    pub(crate) fn take_lent(
        &mut self,
        keys: &[FeatureKey],
        words: &[u32],
        generation: u32,
    ) -> Result<()> {
        if self.shape.swept
            && let Some(changes) = &mut self.changes
        {
            // A step has changed every row.
            changes.note_everything();
        }
        for (&key, words) in keys.iter().zip(words.chunks_exact(words.len() / keys.len().max(1))) {
            let row = match self.index.get(key) {
                Some(entry) => {
                    let row = entry.row();
                    let (weights, companion) =
                        (self.slabs.weights.words(row), self.slabs.companion.row(row));
                    if let Some(snapshot) = &mut self.snapshot {
                        snapshot.save(false, &self.shape, key, weights, companion);
                    }
                    let before = self.shape.meta(companion).dirty_epoch;
                    if let Some(changes) = &mut self.changes
                        && before != changes.epoch
                    {
                        changes.note(key);
                    }
                    row
                }
                None => {
                    let row = self.allocate_for(key)?;
                    if let Some(changes) = &mut self.changes {
                        changes.note(key);
                    }
                    row
                }
            };
            self.write_lent(row, words, generation);
        }
        Ok(())
    }

    /// Adds borrowed rows of keys that have none.
    pub(crate) fn add_borrowed(&mut self, keys: &[FeatureKey], words: &[u32]) -> Result<()> {
        for (&key, words) in keys.iter().zip(words.chunks_exact(words.len() / keys.len().max(1))) {
            if !self.has(key) {
                let row = self.allocate_for(key)?;
                self.write_lent(row, words, UNCHANGED);
            }
        }
        Ok(())
    }

    /// Writes the words of a row. Padding stays zero, whatever the other process has sent.
    fn write_lent(&mut self, row: u32, words: &[u32], epoch: u32) {
        let shape = &*self.shape;
        let weights = self.slabs.weights.words_mut(row);
        let (of_weights, of_companion) = words.split_at(weights.len());
        weights.copy_from_slice(of_weights);
        let used = shape.width * shape.spec.dtype.bytes();
        bytemuck::cast_slice_mut::<u32, u8>(weights)[used..].fill(0);
        let companion = self.slabs.companion.row_mut(row);
        companion.copy_from_slice(of_companion);
        let used = shape.state_width + META_WORDS + shape.spec.use_words();
        companion[used..].fill(0);
        let meta = Meta { dirty_epoch: epoch, ..shape.meta(companion) };
        shape.set_meta(companion, meta);
    }

    /// Ends an epoch of the loan, and begins epoch `next`.
    pub(crate) fn seal_borrowed(&mut self, next: u32) {
        let Some(changes) = &mut self.changes else { return };
        if changes.open == Changed::Everything {
            let index = &self.index;
            let keys = index.slots().flat_map(|slot| index.slot_entries(slot));
            changes.open = Changed::Keys(keys.map(|(key, _)| key.0).collect());
        }
        changes.seal(next);
    }

    /// Takes up to `most` keys from the lists of changed keys of ended epochs, in ascending order.
    pub(crate) fn take_changed(&mut self, most: usize) -> Vec<FeatureKey> {
        let Some(changes) = &mut self.changes else { return Vec::new() };
        while let Some((_, changed)) = changes.sealed.front_mut() {
            if let Changed::Keys(keys) = changed
                && !keys.is_empty()
            {
                let mut taken = keys.split_off(keys.len() - most.min(keys.len()));
                taken.sort_unstable();
                return taken.into_iter().map(FeatureKey).collect();
            }
            changes.sealed.pop_front();
        }
        Vec::new()
    }

    /// Calls `f` with each key and the time of its last push.
    pub(crate) fn for_each_age(&self, mut f: impl FnMut(FeatureKey, u32)) {
        for slot in self.index.slots() {
            for (key, entry) in self.index.slot_entries(slot) {
                f(key, self.meta_of(entry).last_step);
            }
        }
    }

    /// Removes a borrowed row. The caller must call `tidy` of the index for the key's slot.
    pub(crate) fn release(&mut self, key: FeatureKey) {
        if let Some(entry) = self.index.remove(key) {
            self.slabs.free(entry.row());
        }
    }
}
