//! The merge of the gradients of several batches into the gradients of one step.
//!
//! A step of N batches equals a step of one batch with all their rows. The gradient is that of the
//! mean loss over all rows, so each batch is weighted by its number of rows. The gradient of a
//! table's row is the sum over its occurrences in all batches. Counts, shows and clicks are added.
//! A trainer that accumulates batches and a server that serves several trainers use the same merge,
//! so both get the same bytes.
//!
//! # Invariants
//! Sums begin at 0 and are computed in the order of the batches. Keys are sorted by slot. Inside a
//! slot, they are sorted by their first occurrence over the batches, as in a lookup plan. So the
//! result does not depend on shards, threads and servers.

use std::collections::HashMap;

use zillion_feature::{
    FeatureKey, LookupPlan, MixedHasher, Occurrences, RowBuffer, TableId, TablePlan, Use,
};

/// The sums of the gradients of tables' rows over the batches of one step.
#[derive(Debug, Default)]
pub struct MergedGradients {
    batches: u64,
    rows: usize,
    tables: Vec<MergedTable>,
}

/// The gradients of one table's rows, in the order of the first occurrences of their keys.
#[derive(Debug, Default)]
struct MergedTable {
    place: HashMap<FeatureKey, u32, MixedHasher>,
    keys: Vec<FeatureKey>,
    /// The number of occurrences of each key.
    counts: Vec<u32>,
    uses: Option<Vec<Use>>,
    stride: usize,
    values: Vec<f32>,
}

impl MergedGradients {
    /// Returns the number of batches that were added to the step.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the number of rows of all batches of the step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds the gradients of the next batch, with the batch's number of rows as their weight. A
    /// plan without rows and keys belongs to a trainer without a batch. It adds nothing and is not
    /// counted as a batch.
    pub fn add(&mut self, plan: &LookupPlan, gradients: &RowBuffer) {
        let weight = plan.rows as f32;
        if self.tables.len() < plan.tables.len() {
            self.tables.resize_with(plan.tables.len(), MergedTable::default);
        }
        let sums = self.tables.iter_mut().zip(&plan.tables);
        for ((merged, table), rows) in sums.zip(&gradients.tables) {
            if merged.stride == 0 || !table.keys.is_empty() {
                merged.stride = rows.stride;
            }
            for (i, &key) in table.keys.iter().enumerate() {
                let times = table.occurrences.offsets[i + 1] - table.occurrences.offsets[i];
                let used = rows.uses.as_ref().map(|uses| uses[i]);
                merged.add(key, times, used, rows.row(i), weight);
            }
            if rows.uses.is_some() {
                merged.uses.get_or_insert_default();
            }
        }
        let is_empty = plan.rows == 0 && plan.tables.iter().all(|table| table.keys.is_empty());
        self.batches += u64::from(!is_empty);
        self.rows += plan.rows;
    }

    /// Returns the factor `1 / rows` that turns the sums into the gradients of the mean loss.
    pub fn share(&self) -> f32 {
        share(self.rows)
    }

    /// Returns the lookup plan of the step, and fills `buffer` with the gradients of its rows. A
    /// push does not need the positions of keys in the batches, so the plan has none.
    pub fn finish(&mut self, buffer: &mut RowBuffer) -> LookupPlan {
        let share = self.share();
        buffer.reshape(self.tables.iter().map(|table| (table.keys.len(), table.stride)));
        let filled = self.tables.iter().zip(&mut buffer.tables).enumerate();
        let tables = filled.map(|(index, (merged, rows))| {
            let order = merged.order();
            for (row, &from) in rows.values.chunks_mut(merged.stride.max(1)).zip(&order) {
                let from = &merged.values[from * merged.stride..(from + 1) * merged.stride];
                row.iter_mut().zip(from).for_each(|(to, &from)| *to = from * share);
            }
            let used = |uses: &Vec<Use>| order.iter().map(|&from| uses[from]).collect();
            rows.uses = merged.uses.as_ref().map(used);
            merged.plan(index, &order)
        });
        LookupPlan { rows: self.rows, tables: tables.collect(), columns: Vec::new() }
    }

    /// Resets the sums for the next step, and keeps the memory of the buffers.
    pub fn clear(&mut self) {
        self.batches = 0;
        self.rows = 0;
        for table in &mut self.tables {
            table.place.clear();
            table.keys.clear();
            table.counts.clear();
            table.uses = None;
            table.values.clear();
        }
    }
}

impl MergedTable {
    fn add(&mut self, key: FeatureKey, times: u32, used: Option<Use>, row: &[f32], weight: f32) {
        let next = self.keys.len() as u32;
        let place = *self.place.entry(key).or_insert(next) as usize;
        if place == self.keys.len() {
            self.keys.push(key);
            self.counts.push(0);
            self.values.resize(self.values.len() + self.stride, 0.0);
            if used.is_some() {
                self.uses.get_or_insert_default().push(Use::default());
            }
        }
        self.counts[place] += times;
        let sums = &mut self.values[place * self.stride..(place + 1) * self.stride];
        add_weighted(sums, row, weight);
        if let (Some(used), Some(uses)) = (used, &mut self.uses) {
            uses[place].shows += used.shows;
            uses[place].clicks += used.clicks;
        }
    }

    /// Returns the indices of the keys, sorted by slot, and inside a slot by first occurrence.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by_key(|&place| self.keys[place].slot());
        order
    }

    /// Makes the table's lookup plan for a push: its keys, slots and counts.
    fn plan(&self, table: usize, order: &[usize]) -> TablePlan {
        let keys: Vec<FeatureKey> = order.iter().map(|&place| self.keys[place]).collect();
        let mut slots: Vec<(u16, u32)> = Vec::new();
        for (index, key) in (0..).zip(&keys) {
            let slot = key.slot() as u16;
            if slots.last().is_none_or(|&(last, _)| last != slot) {
                slots.push((slot, index));
            }
        }
        let mut offsets = vec![0];
        let mut sum = 0;
        offsets.extend(order.iter().map(|&place| {
            sum += self.counts[place];
            sum
        }));
        let occurrences = Occurrences { offsets, positions: Vec::new() };
        TablePlan { table: TableId(table as u16), keys, slots, occurrences }
    }
}

/// The sums of the gradients of dense parameters over the batches of one step. The gradients are
/// those of one parameter, of all parameters one after another, or of a part of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedDense {
    sums: Vec<f32>,
}

impl MergedDense {
    /// Adds the gradients of a batch of `rows` rows, with the number of rows as their weight. All
    /// calls of a step have gradients of the same length, except that a trainer without a batch has
    /// no gradients and adds nothing.
    pub fn add(&mut self, rows: usize, gradients: &[f32]) {
        if self.sums.is_empty() {
            self.sums.resize(gradients.len(), 0.0);
        }
        add_weighted(&mut self.sums, gradients, rows as f32);
    }

    /// Multiplies the sums by `1 / rows`, where `rows` is the number of rows of all batches.
    pub fn finish(&mut self, rows: usize) {
        let share = share(rows);
        self.sums.iter_mut().for_each(|g| *g *= share);
    }

    /// Returns the sums. After [`MergedDense::finish`], they are the gradients of the mean loss.
    /// They are empty if no gradients were added.
    pub fn values(&self) -> &[f32] {
        &self.sums
    }

    /// Returns the sums, and drops the value.
    pub fn into_values(self) -> Vec<f32> {
        self.sums
    }

    /// Resets the sums to 0 for the next step, whose gradients have the same length.
    pub fn clear(&mut self) {
        self.sums.fill(0.0);
    }
}

/// Returns the factor that turns weighted sums over batches with together `rows` rows into means.
fn share(rows: usize) -> f32 {
    1.0 / rows.max(1) as f32
}

/// Adds `weight * g` to each sum.
fn add_weighted(sums: &mut [f32], gradients: &[f32], weight: f32) {
    sums.iter_mut().zip(gradients).for_each(|(sum, &g)| *sum += weight * g);
}

#[cfg(test)]
mod tests {
    use zillion_rows::conformance::plan_of;

    use super::*;

    fn keys(ids: &[i64]) -> Vec<FeatureKey> {
        ids.iter().map(|&id| FeatureKey::from_i64(id)).collect()
    }

    /// Makes the plan and the gradients of a batch of one table. The gradients depend only on the
    /// key and on `times`.
    fn batch(ids: &[i64], times: f32) -> (LookupPlan, RowBuffer) {
        let plan = LookupPlan { rows: ids.len(), ..plan_of(&[keys(ids)]) };
        let mut grads = RowBuffer::default();
        grads.reshape([(plan.tables[0].keys.len(), 4)].into_iter());
        let rows = &mut grads.tables[0];
        let mut uses = Vec::new();
        for (i, key) in plan.tables[0].keys.iter().enumerate() {
            for unit in 0..4 {
                rows.values[i * 4 + unit] = times * (key.unmix() as f32 + unit as f32);
            }
            let offsets = &plan.tables[0].occurrences.offsets;
            uses.push(Use { shows: (offsets[i + 1] - offsets[i]) as f32, clicks: times });
        }
        rows.uses = Some(uses);
        (plan, grads)
    }

    #[test]
    fn several_batches_are_pushed_as_one() {
        let lists: [&[i64]; 3] = [&[3, 1, 1, 9], &[9, 2], &[1, 7, 3, 3]];
        let mut merged = MergedGradients::default();
        let mut pushed = RowBuffer::default();
        // Two rounds show that a step leaves nothing for the next step.
        for _ in 0..2 {
            for (ids, times) in lists.iter().zip([1.0, 2.0, 4.0]) {
                let (plan, grads) = batch(ids, times);
                merged.add(&plan, &grads);
            }
            assert_eq!((merged.batches(), merged.rows()), (3, 10));
            let plan = merged.finish(&mut pushed);
            // The plan is that of one batch with all rows, except the positions of a key in it.
            let whole = plan_of(&[keys(&lists.concat())]);
            assert_eq!(plan.rows, 10);
            let (table, expected) = (&plan.tables[0], &whole.tables[0]);
            assert_eq!((&table.keys, &table.slots), (&expected.keys, &expected.slots));
            assert_eq!(table.occurrences.offsets, expected.occurrences.offsets);
            let rows = &pushed.tables[0];
            for (i, key) in table.keys.iter().enumerate() {
                let id = key.unmix() as i64;
                // The weight of each batch is its share of the rows: 4, 2 and 4 of 10.
                let weights = [0.4f32, 0.2 * 2.0, 0.4 * 4.0];
                let has = lists.iter().zip(weights).filter(|(ids, _)| ids.contains(&id));
                let factor: f32 = has.map(|(_, weight)| weight).sum();
                for unit in 0..4 {
                    let expected = factor * (id as f32 + unit as f32);
                    assert!((rows.row(i)[unit] - expected).abs() < 1e-5, "{id}");
                }
                let shows = lists.concat().iter().filter(|&&other| other == id).count();
                assert_eq!(rows.uses.as_ref().unwrap()[i].shows, shows as f32);
            }
            merged.clear();
            assert_eq!((merged.batches(), merged.rows()), (0, 0));
        }
    }

    #[test]
    fn a_trainer_without_a_batch_adds_nothing() {
        let (plan, grads) = batch(&[3, 1], 1.0);
        let (empty, no_grads) = batch(&[], 1.0);
        let merge = |with_empty: bool| {
            let mut merged = MergedGradients::default();
            let mut pushed = RowBuffer::default();
            if with_empty {
                merged.add(&empty, &no_grads);
            }
            merged.add(&plan, &grads);
            if with_empty {
                merged.add(&empty, &no_grads);
                merged.add(&LookupPlan::default(), &RowBuffer::default());
            }
            let plan = merged.finish(&mut pushed);
            (plan, pushed.tables[0].values.clone(), merged.batches())
        };
        assert_eq!(merge(true), merge(false));
        // If no trainer has a batch, the plan of the step still has every table.
        let mut merged = MergedGradients::default();
        let mut pushed = RowBuffer::default();
        merged.add(&empty, &no_grads);
        let plan = merged.finish(&mut pushed);
        assert_eq!((plan.rows, plan.tables.len(), merged.batches()), (0, 1, 0));
        assert!(plan.tables[0].keys.is_empty() && pushed.tables[0].uses.is_some());
    }

    #[test]
    fn parts_of_dense_gradients_have_the_bits_of_the_whole() {
        let batches = [(3, [0.1f32, -0.7, 1e-9]), (5, [0.3, 0.2, 1e9]), (1, [-0.0, 0.9, 7.0])];
        let merge = |range: std::ops::Range<usize>| {
            let mut merged = MergedDense::default();
            for (rows, gradients) in &batches {
                merged.add(*rows, &gradients[range.clone()]);
                merged.add(0, &[]);
            }
            merged.finish(9);
            merged.values().iter().map(|g| g.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(merge(0..3), [merge(0..1), merge(1..3)].concat());
        assert!((f32::from_bits(merge(0..1)[0]) - 0.2).abs() < 1e-6);
    }
}
