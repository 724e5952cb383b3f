//! The lookup plan of a batch: the unique keys of each table, and the mapping from unique keys to
//! the values of the batch.
//!
//! # Invariants
//! The order of all entries depends only on the batch. Unique keys are sorted by slot, and keys of
//! the same slot by their first occurrence. Therefore the keys of a shard are one contiguous run
//! for every number of shards. The order of insertions, the sums of gradients and the norms do not
//! depend on the number of shards.

use std::ops::Range;

use crate::batch::Batch;
use crate::key::{FeatureKey, SLOTS, TableId};
use crate::schema::Schema;
use crate::shard::ShardMap;

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
    /// The table.
    pub table: TableId,
    /// The unique keys, sorted by slot. Keys of the same slot are sorted by their first occurrence.
    pub keys: Vec<FeatureKey>,
    /// The slots of the keys, ascending. Each slot comes with the index of its first key in `keys`.
    pub slots: Vec<(u16, u32)>,
    /// The positions in the batch at which each unique key occurs.
    pub occurrences: Occurrences,
}

/// The mapping from each unique key to the values of the batch, in the form of a compressed sparse
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
        (0..map.shards())
            .map(|shard| {
                let slots = map.range(shard);
                self.first_key_at_or_after(slots.start)..self.first_key_at_or_after(slots.end)
            })
            .collect()
    }

    fn first_key_at_or_after(&self, slot: usize) -> usize {
        let run = self.slots.partition_point(|&(s, _)| usize::from(s) < slot);
        self.slots.get(run).map_or(self.keys.len(), |&(_, first)| first as usize)
    }
}

/// The maximum number of unique keys for which sorting by comparison is faster than counting the
/// keys of all slots.
const FEW_KEYS: usize = 256;

/// The memory for building plans, which is reused for each batch.
#[derive(Debug, Default)]
pub struct PlanScratch {
    /// A hash set of the keys of one table, with open addressing. A cell is empty if its generation
    /// is not `generation`, so the set is cleared by increasing this number.
    cells: Vec<Cell>,
    generation: u32,
    /// The unique keys in the order of their first occurrence. `counts` holds the number of
    /// occurrences of each key.
    first_seen: Vec<FeatureKey>,
    counts: Vec<u32>,
    /// The index in slot order of each unique key, in the order of first occurrence.
    rank: Vec<u32>,
    /// The index of the first key of each slot, which [`PlanScratch::sort_many`] uses.
    slot_starts: Vec<u32>,
    /// The slot of each unique key and the key's index in the order of first occurrence, which
    /// [`PlanScratch::sort_few`] uses.
    order: Vec<(u16, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    key: FeatureKey,
    generation: u32,
    index: u32,
}

impl LookupPlan {
    /// Makes the lookup plan of a batch.
    ///
    /// # Panics
    /// Panics if the batch does not have the columns of `schema`, or if it has 2³¹ values or more
    /// for one table.
    pub fn build(batch: &Batch, schema: &Schema, scratch: &mut PlanScratch) -> Self {
        let columns_of = schema.sparse_tables();
        assert_eq!(batch.sparse.len(), columns_of.len(), "the batch has the schema's columns");
        let mut columns = vec![ColumnPlan::default(); batch.sparse.len()];
        let tables = (0..schema.tables.len())
            .map(|table| {
                let members: Vec<usize> =
                    (0..columns_of.len()).filter(|&c| columns_of[c].index() == table).collect();
                scratch.plan_table(TableId(table as u16), batch, &members, &mut columns)
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
    fn plan_table(
        &mut self,
        table: TableId,
        batch: &Batch,
        members: &[usize],
        columns: &mut [ColumnPlan],
    ) -> TablePlan {
        let values: usize = members.iter().map(|&c| batch.sparse[c].keys.len()).sum();
        assert!(values < 1 << 31, "a batch holds fewer than 2^31 values a table");
        self.clear(values);

        let mut base = 0;
        for &c in members {
            let keys = &batch.sparse[c].keys;
            let mut inverse = Vec::with_capacity(keys.len());
            inverse.extend(keys.iter().map(|&key| self.index_of(key)));
            columns[c] = ColumnPlan { table: table.index(), inverse, base };
            base += keys.len() as u32;
        }

        let (keys, slots) = self.sort_by_slot();
        let occurrences = self.occurrences(keys.len(), values, members, columns);
        TablePlan { table, keys, slots, occurrences }
    }

    fn clear(&mut self, values: usize) {
        let wanted = (values * 2).next_power_of_two().max(64);
        if self.cells.len() < wanted {
            self.cells = vec![Cell::default(); wanted];
            self.generation = 0;
        }
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.cells.fill(Cell::default());
            1
        });
        self.first_seen.clear();
        self.counts.clear();
    }

    #[inline]
    fn index_of(&mut self, key: FeatureKey) -> u32 {
        let mask = self.cells.len() - 1;
        // The low bits are used: the key is already mixed, and its top bits are the slot.
        let mut at = key.0 as usize & mask;
        loop {
            let cell = &mut self.cells[at];
            if cell.generation != self.generation {
                let index = self.first_seen.len() as u32;
                *cell = Cell { key, generation: self.generation, index };
                self.first_seen.push(key);
                self.counts.push(1);
                return index;
            }
            if cell.key == key {
                self.counts[cell.index as usize] += 1;
                return cell.index;
            }
            at = (at + 1) & mask;
        }
    }

    /// Sorts the unique keys by slot with a stable sort. Also sets `rank`, which is needed to
    /// compute the inverse indices.
    fn sort_by_slot(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        if self.first_seen.len() <= FEW_KEYS { self.sort_few() } else { self.sort_many() }
    }

    /// Sorts by comparison, for few keys. A request of a few rows would take too long if all slots
    /// had to be counted.
    fn sort_few(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        let Self { first_seen, rank, order, .. } = self;
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

    /// Sorts by counting the keys of each slot, for many keys.
    fn sort_many(&mut self) -> (Vec<FeatureKey>, Vec<(u16, u32)>) {
        let unique = self.first_seen.len();
        self.slot_starts.clear();
        self.slot_starts.resize(SLOTS + 1, 0);
        for key in &self.first_seen {
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
        self.rank.extend(self.first_seen.iter().map(|&key| {
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
        for (index, &count) in self.counts.iter().enumerate() {
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
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::batch::KeyColumn;

    fn schema() -> Schema {
        let job: toml::Table = toml::from_str(
            r#"
            [features.a]
            kind = "id"
            table = "shared"
            [features.b]
            kind = "ids"
            table = "shared"
            [features.c]
            kind = "id"
            [labels.y]
            "#,
        )
        .unwrap();
        Schema::from_job(&job.into()).unwrap()
    }

    fn batch(a: &[u64], b: &[Vec<u64>], c: &[u64]) -> Batch {
        let mut batch = Batch::empty(&schema());
        batch.rows = a.len();
        let keys = |ids: &[u64]| ids.iter().map(|&i| FeatureKey::from_u64(i)).collect::<Vec<_>>();
        let mut offsets = vec![0];
        for row in b {
            offsets.push(offsets.last().unwrap() + row.len() as i32);
        }
        batch.sparse[0] = KeyColumn::single(keys(a));
        batch.sparse[1] = KeyColumn::ragged(offsets, keys(&b.concat()));
        batch.sparse[2] = KeyColumn::single(keys(c));
        batch
    }

    proptest! {
        #[test]
        fn few_and_many_keys_are_sorted_alike(keys in prop::collection::btree_set(any::<u64>(), 0..600), spread in 0u32..60) {
            let mut scratch = PlanScratch::default();
            // Fewer bits in front: more keys of one slot.
            let keys: std::collections::BTreeSet<u64> = keys.iter().map(|k| k >> spread).collect();
            scratch.first_seen = keys.iter().map(|&k| FeatureKey(k.rotate_right(7))).collect();
            let few = (scratch.sort_few(), scratch.rank.clone());
            let many = (scratch.sort_many(), scratch.rank.clone());
            prop_assert_eq!(few, many);
        }
    }

    fn check(batch: &Batch, plan: &LookupPlan) {
        for (table, members) in [(0usize, vec![0usize, 1]), (1, vec![2])] {
            let plan_table = &plan.tables[table];
            let values: Vec<FeatureKey> =
                members.iter().flat_map(|&c| batch.sparse[c].keys.clone()).collect();
            // Unique, by slot, inside a slot by first occurrence.
            let mut first: BTreeMap<FeatureKey, usize> = BTreeMap::new();
            for (i, &key) in values.iter().enumerate() {
                first.entry(key).or_insert(i);
            }
            let mut expected: Vec<FeatureKey> = first.keys().copied().collect();
            expected.sort_by_key(|k| (k.slot(), first[k]));
            assert_eq!(plan_table.keys, expected);
            // The inverse leads back to each value's key.
            for &c in &members {
                let column = &plan.columns[c];
                assert_eq!(column.table, table);
                for (value, &index) in batch.sparse[c].keys.iter().zip(&column.inverse) {
                    assert_eq!(plan_table.keys[index as usize], *value);
                }
            }
            // Occurrences partition the value order, ascending.
            let occurrences = &plan_table.occurrences;
            for (u, &key) in plan_table.keys.iter().enumerate() {
                let range = occurrences.offsets[u] as usize..occurrences.offsets[u + 1] as usize;
                let wanted: Vec<u32> =
                    (0..values.len()).filter(|&i| values[i] == key).map(|i| i as u32).collect();
                assert_eq!(occurrences.positions[range], wanted);
            }
            for shards in [1, 3, 8] {
                let map = ShardMap::new(NonZeroUsize::new(shards).unwrap());
                let ranges = plan_table.shard_ranges(&map);
                let mut next = 0;
                for (shard, range) in ranges.into_iter().enumerate() {
                    assert_eq!(range.start, next);
                    next = range.end;
                    assert!(plan_table.keys[range].iter().all(|k| map.shard_of(k.slot()) == shard));
                }
                assert_eq!(next, plan_table.keys.len());
            }
        }
    }

    proptest! {
        #[test]
        fn a_plan_is_what_a_naive_one_would_be(
            rows in prop::collection::vec((0u64..50, prop::collection::vec(0u64..50, 0..4), any::<u64>()), 0..80),
            again in prop::collection::vec((0u64..9, prop::collection::vec(any::<u64>(), 0..4), 0u64..3), 0..80),
        ) {
            let mut scratch = PlanScratch::default();
            for rows in [rows, again] {
                let a: Vec<u64> = rows.iter().map(|r| r.0).collect();
                let b: Vec<Vec<u64>> = rows.iter().map(|r| r.1.clone()).collect();
                let c: Vec<u64> = rows.iter().map(|r| r.2).collect();
                let batch = batch(&a, &b, &c);
                check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
            }
        }
    }

    #[test]
    fn scratch_survives_the_wrap_of_its_generation() {
        let mut scratch = PlanScratch::default();
        let batch = batch(&[1, 2, 1], &[vec![], vec![2, 2], vec![3]], &[9, 9, 9]);
        check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
        scratch.generation = u32::MAX - 1;
        for _ in 0..4 {
            check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
        }
    }
}
