//! The places of a shard's rows in the slab of a device.
//!
//! A table has one slab on the device. The rows of a dynamic table are cut into chunks by their
//! number in their shard, and each chunk of a shard has a chunk of the slab. The rows of a table
//! with a fixed vocabulary are one run in key order, so that a sweep goes over them without gaps.
//! If the device does not hold all rows, each shard has a cache.

use crate::resident::cache::{NONE, ShardCache};

/// The number of rows of a chunk, as a power of two.
const CHUNK_BITS: u32 = 10;
/// The number of rows of a chunk.
pub(super) const CHUNK_ROWS: usize = 1 << CHUNK_BITS;

/// The places of the rows of one shard's part of a table, and which of them are newer on the
/// device than on the host.
#[derive(Debug)]
pub(super) struct ShardPlaces {
    form: Form,
    /// The number of rows for which the shard has places.
    rows: usize,
    /// A bit for each row of the shard that has changed since the last copy to the host.
    dirty: Vec<u64>,
    /// Whether a bit may be set. Without any, nothing goes through the bits.
    is_dirty: bool,
}

#[derive(Debug)]
enum Form {
    /// The number of the slab's chunk of each chunk of the shard.
    Chunks(Vec<u32>),
    /// The first place of the shard's run.
    Run(u32),
    /// The slots of the shard, if the device does not hold all rows.
    Cached(Box<ShardCache>),
}

impl ShardPlaces {
    /// Makes the places of a shard in chunks, without rows.
    pub(super) fn in_chunks() -> Self {
        Self { form: Form::Chunks(Vec::new()), rows: 0, dirty: Vec::new(), is_dirty: false }
    }

    /// Makes the places of a run of rows that begins at `first`.
    pub(super) fn in_a_run(first: u32, rows: usize) -> Self {
        let dirty = vec![0; rows.div_ceil(64)];
        Self { form: Form::Run(first), rows, dirty, is_dirty: false }
    }

    /// Makes the places of a shard whose rows share the slots of a cache.
    pub(super) fn in_a_cache(cache: ShardCache) -> Self {
        let form = Form::Cached(Box::new(cache));
        Self { form, rows: 0, dirty: Vec::new(), is_dirty: false }
    }

    /// Returns the cache of the shard; `None` if the device holds all rows.
    pub(super) fn cache(&mut self) -> Option<&mut ShardCache> {
        match &mut self.form {
            Form::Cached(cache) => Some(cache),
            Form::Chunks(_) | Form::Run(_) => None,
        }
    }

    /// Returns whether the shard has a cache in which a row of the host has a slot.
    pub(super) fn is_cached(&self, row: u32) -> bool {
        matches!(&self.form, Form::Cached(cache) if cache.holds(row))
    }

    /// Returns the number of slots of the shard's cache; `None` if the device holds all rows.
    pub(super) fn cached_slots(&self) -> Option<usize> {
        match &self.form {
            Form::Cached(cache) => Some(cache.len()),
            Form::Chunks(_) | Form::Run(_) => None,
        }
    }

    /// Makes room for `rows` rows in all. New chunks get numbers from `next` on.
    pub(super) fn reserve(&mut self, rows: usize, next: &mut u32) {
        if let Form::Cached(cache) = &mut self.form {
            return cache.reserve(rows);
        }
        if rows <= self.rows {
            return;
        }
        if let Form::Chunks(chunks) = &mut self.form {
            while chunks.len() * CHUNK_ROWS < rows {
                chunks.push(*next);
                *next += 1;
            }
            self.rows = chunks.len() * CHUNK_ROWS;
            self.dirty.resize(self.rows / 64, 0);
        }
    }

    /// Returns the place of a row, if the device holds all rows. A cache gives a row its place with
    /// each step.
    #[inline(always)]
    pub(super) fn slot(&self, row: u32) -> u32 {
        match &self.form {
            Form::Chunks(chunks) => {
                let chunk = chunks[(row >> CHUNK_BITS) as usize];
                chunk << CHUNK_BITS | row & (CHUNK_ROWS as u32 - 1)
            }
            Form::Run(first) => first + row,
            Form::Cached(_) => NONE,
        }
    }

    /// Marks a row as newer on the device.
    #[inline(always)]
    pub(super) fn mark(&mut self, row: u32) {
        self.dirty[row as usize / 64] |= 1 << (row % 64);
        self.is_dirty = true;
    }

    /// Marks all rows of a run as newer on the device.
    pub(super) fn mark_all(&mut self) {
        self.is_dirty = true;
        self.dirty.fill(u64::MAX);
        if let (Some(last), 1..) = (self.dirty.last_mut(), self.rows % 64) {
            *last = (1 << (self.rows % 64)) - 1;
        }
    }

    /// Calls `f` with each marked row, in ascending order, and removes the marks. Costs nothing if
    /// no row was marked since the last call.
    pub(super) fn take_marked(&mut self, mut f: impl FnMut(u32)) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        for (at, word) in self.dirty.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                f((at * 64) as u32 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_grow_in_turn_have_places_of_their_own() {
        let mut next = 0;
        let mut shards = [ShardPlaces::in_chunks(), ShardPlaces::in_chunks()];
        for rows in [1, 700, 1025, 3000] {
            shards.iter_mut().for_each(|shard| shard.reserve(rows, &mut next));
        }
        assert_eq!(next, 6);
        let mut all: Vec<u32> =
            shards.iter().flat_map(|shard| (0..3000).map(|row| shard.slot(row))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all.last()), (6000, Some(&(6 * 1024 - 1 - 72))));
        let run = ShardPlaces::in_a_run(40, 7);
        assert_eq!((run.slot(0), run.slot(6)), (40, 46));
    }

    #[test]
    fn marks_are_taken_once_and_in_order() {
        let mut places = ShardPlaces::in_a_run(0, 200);
        [130, 3, 64, 199, 3].into_iter().for_each(|row| places.mark(row));
        let mut taken = Vec::new();
        places.take_marked(|row| taken.push(row));
        assert_eq!(taken, [3, 64, 130, 199]);
        places.take_marked(|row| panic!("row {row} was taken before"));
        for rows in [0, 1, 63, 64, 200] {
            let mut places = ShardPlaces::in_a_run(0, rows);
            places.mark_all();
            let mut taken = 0..rows as u32;
            places.take_marked(|row| assert_eq!(taken.next(), Some(row)));
            assert_eq!(taken.next(), None);
        }
    }

    #[test]
    fn the_bits_are_looked_at_only_if_a_row_was_marked() {
        let mut places = ShardPlaces::in_a_run(0, 200);
        // A bit without a mark shows whether the bits are looked at.
        places.dirty[1] = 4;
        places.take_marked(|row| panic!("row {row} was found, although nothing was marked"));
        places.mark(7);
        let mut taken = Vec::new();
        places.take_marked(|row| taken.push(row));
        assert_eq!(taken, [7, 66]);
        places.dirty[1] = 4;
        places.take_marked(|row| panic!("row {row} was found after the marks were taken"));
    }
}
