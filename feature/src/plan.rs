//! The lookup plan of a batch: the unique keys of each table, and the mapping from unique keys to
//! the values of the batch.
//!
//! # Invariants
//! The order of all lists here is a function of the batch alone. Unique keys are sorted by slot,
//! and keys of one slot are sorted by their first occurrence. So the keys of a shard are one
//! contiguous run for *every* number of shards. The order in which rows are inserted, the sums of
//! gradients and the norms do not depend on the number of shards. Plans for scoring
//! ([`LookupPlan::for_scoring`]) have the keys in another order, and some keys twice.
//!
//! # Cost
//! A client can choose the ids of a batch, and it may know how an id becomes a key. So the set of
//! the unique keys uses a hash with a secret seed. If searches become long, it places its keys
//! again with another seed.

mod checked;
mod direct;
mod union;
mod unique;

use std::ops::Range;

use crate::batch::Batch;
use crate::key::{FeatureKey, SLOTS, TableId};
use crate::schema::Schema;
use crate::seeded::SeededHash;
use crate::shard::ShardMap;
use unique::UniqueKeys;

/// The unique keys that one batch looks up in each table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupPlan {
    /// The number of rows of the batch.
    pub rows: usize,
    /// The plan of each table, in the order of the schema.
    pub tables: Vec<TablePlan>,
    /// The plan of each sparse column, in the order of the batch.
    pub columns: Vec<ColumnPlan>,
}

/// The unique keys that one batch looks up in one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TablePlan {
    /// The table that the keys belong to.
    pub table: TableId,
    /// The unique keys, sorted by slot. Keys of the same slot are sorted by their first occurrence.
    pub keys: Vec<FeatureKey>,
    /// The slots of the keys, ascending. Each slot comes with the index of its first key in `keys`.
    pub slots: Vec<(u16, u32)>,
    /// The positions in the batch at which each unique key occurs.
    pub occurrences: Occurrences,
}

/// The positions in the batch at which each unique key occurs, in the form of a compressed sparse
/// matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// The `unique + 1` offsets into `positions`, where `unique` is the number of unique keys.
    pub offsets: Vec<u32>,
    /// The positions of the values of each key, ascending. The values of a table are numbered
    /// column by column in the order of the schema, and inside a column in the order of the batch.
    pub positions: Vec<u32>,
}

/// The mapping from the values of one sparse column to the unique keys of its table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnPlan {
    /// The position of the table in [`LookupPlan::tables`].
    pub table: usize,
    /// The index of the unique key of each value.
    pub inverse: Vec<u32>,
    /// The number of values of the same table in the columns before this one.
    pub base: u32,
}

impl TablePlan {
    /// Returns the range of `keys` that each shard owns, in the order of the shards.
    pub fn shard_ranges(&self, map: &ShardMap) -> Vec<Range<usize>> {
        (0..map.shards()).map(|shard| self.keys_in(map.range(shard))).collect()
    }

    /// Returns the range of `keys` whose slots are in `slots`.
    pub fn keys_in(&self, slots: Range<usize>) -> Range<usize> {
        self.first_key_at_or_after(slots.start)..self.first_key_at_or_after(slots.end)
    }

    fn first_key_at_or_after(&self, slot: usize) -> usize {
        let run = self.slots.partition_point(|&(s, _)| usize::from(s) < slot);
        self.slots.get(run).map_or(self.keys.len(), |&(_, first)| first as usize)
    }
}

/// The maximum number of unique keys for which sorting by comparison is faster than counting the
/// keys in each slot.
const FEW_KEYS: usize = 256;

/// The memory for building plans, which is reused for each batch.
#[derive(Debug, Default)]
pub struct PlanScratch {
    unique: UniqueKeys,
    /// The index of each unique key in slot order. The list is in the order of first occurrence.
    rank: Vec<u32>,
    /// The index of the first key of each slot, which [`PlanScratch::sort_many`] uses.
    slot_starts: Vec<u32>,
    /// The slot of each unique key and the key's index in the order of first occurrence, which
    /// [`PlanScratch::sort_few`] uses.
    order: Vec<(u16, u32)>,
}

impl LookupPlan {
    /// Makes the lookup plan of a batch.
    ///
    /// # Panics
    /// Panics if the batch does not have the columns of `schema`, or if it has 2³¹ values or more
    /// for one table.
    pub fn build(batch: &Batch, schema: &Schema, scratch: &mut PlanScratch) -> Self {
        Self::of_tables(batch, schema, |table, members, columns| {
            scratch.plan_table(table, batch, members, columns)
        })
    }

    /// Calls `plan` for each table with the positions of its columns in the batch. `plan` sets the
    /// plans of these columns, and returns that of the table.
    fn of_tables(
        batch: &Batch,
        schema: &Schema,
        mut plan: impl FnMut(TableId, &[usize], &mut [ColumnPlan]) -> TablePlan,
    ) -> Self {
        let columns_of = schema.sparse_tables();
        assert_eq!(batch.sparse.len(), columns_of.len(), "the batch has the schema's columns");
        let mut columns = vec![ColumnPlan::default(); batch.sparse.len()];
        let tables = (0..schema.tables.len())
            .map(|table| {
                let members: Vec<usize> =
                    (0..columns_of.len()).filter(|&c| columns_of[c].index() == table).collect();
                plan(TableId(table as u16), &members, &mut columns)
            })
            .collect();
        Self { rows: batch.rows, tables, columns }
    }

    /// Returns the sum of the numbers of unique keys over all tables.
    pub fn unique(&self) -> usize {
        self.tables.iter().map(|t| t.keys.len()).sum()
    }
}

impl PlanScratch {
    /// Creates scratch memory whose set of keys uses the given seed instead of a random seed, for
    /// tests and for measurements that must be repeatable. The plans do not depend on the seed.
    pub fn with_seed(seed: u64) -> Self {
        Self { unique: UniqueKeys::new(SeededHash::new(seed)), ..Self::default() }
    }

    /// Returns the number of bytes that the scratch memory holds.
    pub fn bytes(&self) -> usize {
        self.unique.bytes()
            + (self.rank.capacity() + self.slot_starts.capacity()) * size_of::<u32>()
            + self.order.capacity() * size_of::<(u16, u32)>()
    }

    fn plan_table(
        &mut self,
        table: TableId,
        batch: &Batch,
        members: &[usize],
        columns: &mut [ColumnPlan],
    ) -> TablePlan {
        let values: usize = members.iter().map(|&c| batch.sparse[c].keys.len()).sum();
        assert!(values < 1 << 31, "a batch holds fewer than 2^31 values a table");
        self.unique.clear(values);

        let mut base = 0;
        for &c in members {
            let keys = &batch.sparse[c].keys;
            let mut inverse = Vec::with_capacity(keys.len());
            inverse.extend(keys.iter().map(|&key| self.unique.index_of(key)));
            columns[c] = ColumnPlan { table: table.index(), inverse, base };
            base += keys.len() as u32;
        }

        let (keys, slots) = self.sort_by_slot();
        let occurrences = self.occurrences(keys.len(), values, members, columns);
        TablePlan { table, keys, slots, occurrences }
    }

    /// Sorts the unique keys by slot with a stable sort. Returns the sorted keys and the index of
    /// the first key of each slot. Also sets `rank`, with which the inverse indices are converted.
    fn sort_by_slot(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        if self.unique.keys.len() <= FEW_KEYS { self.sort_few() } else { self.sort_many() }
    }

    /// Sorts the unique keys by comparison. This is the faster way for few keys, because counting
    /// would visit all slots.
    fn sort_few(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        let Self { unique, rank, order, .. } = self;
        let first_seen = &unique.keys;
        order.clear();
        order
            .extend((0u32..).zip(first_seen.iter()).map(|(index, key)| (key.slot() as u16, index)));
        // Each index occurs once, so this sort keeps the order of first occurrence inside a slot.
        order.sort_unstable();
        rank.clear();
        rank.resize(order.len(), 0);
        let mut keys = Vec::with_capacity(order.len());
        let mut slots: Vec<(u16, u32)> = Vec::with_capacity(order.len());
        for (position, &(slot, index)) in (0u32..).zip(order.iter()) {
            if slots.last().is_none_or(|&(last, _)| last != slot) {
                slots.push((slot, position));
            }
            rank[index as usize] = position;
            keys.push(first_seen[index as usize]);
        }
        (keys, slots)
    }

    /// Sorts the unique keys by counting the keys of each slot. This is the faster way for many
    /// keys.
    fn sort_many(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        let unique = self.unique.keys.len();
        self.slot_starts.clear();
        self.slot_starts.resize(SLOTS + 1, 0);
        for key in &self.unique.keys {
            self.slot_starts[key.slot() + 1] += 1;
        }
        let mut slots = Vec::with_capacity(unique.min(SLOTS));
        for slot in 0..SLOTS {
            let start = self.slot_starts[slot];
            if self.slot_starts[slot + 1] > 0 {
                slots.push((slot as u16, start));
            }
            self.slot_starts[slot + 1] += start;
        }
        let mut keys = vec![FeatureKey::default(); unique];
        self.rank.clear();
        self.rank.extend(self.unique.keys.iter().map(|&key| {
            let next = &mut self.slot_starts[key.slot()];
            let position = *next;
            *next += 1;
            keys[position as usize] = key;
            position
        }));
        (keys, slots)
    }

    /// Converts the inverse indices of the columns to slot order, and returns the positions of each
    /// key.
    fn occurrences(
        &self,
        unique: usize,
        values: usize,
        members: &[usize],
        columns: &mut [ColumnPlan],
    ) -> Occurrences {
        let mut offsets = vec![0u32; unique + 1];
        for (index, &count) in self.unique.counts.iter().enumerate() {
            offsets[self.rank[index] as usize + 1] = count;
        }
        for i in 0..unique {
            offsets[i + 1] += offsets[i];
        }
        let mut next = offsets.clone();
        let mut positions = vec![0u32; values];
        for &c in members {
            let column = &mut columns[c];
            for (i, index) in column.inverse.iter_mut().enumerate() {
                *index = self.rank[*index as usize];
                let at = &mut next[*index as usize];
                positions[*at as usize] = column.base + i as u32;
                *at += 1;
            }
        }
        Occurrences { offsets, positions }
    }
}

#[cfg(test)]
mod tests;
