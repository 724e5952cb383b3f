//! The accumulation of the gradients of several batches into one step (`train.accumulate`).
//!
//! A step of N batches equals a step of one batch with all their rows. The gradient is that of the
//! mean loss over all rows, so each batch is weighted by its number of rows. The gradient of a
//! table's row is the sum over its occurrences in all batches. Counts, shows and clicks are added.
//! Every batch of a step reads the same weights. Some values still depend on one batch only: the
//! statistics of batch norm, a loss that is averaged over weights or labels, and the items of a
//! softmax.
//!
//! # Invariants
//! Sums are computed in the order of the batches. Keys are sorted by slot. Inside a slot, they are
//! sorted by their first occurrence over the batches, as in a lookup plan. So the result does not
//! depend on shards and threads. A checkpoint is written between steps and never holds a part of a
//! step.

use std::collections::HashMap;

use zillion_feature::random::combine;
use zillion_feature::{
    FeatureKey, LookupPlan, MixedHasher, Occurrences, RowBuffer, TablePlan, Use,
};
use zillion_nn::{Executor, ParamId};

/// The sums of the gradients of a step's batches so far.
#[derive(Debug, Default)]
pub(super) struct Accumulated {
    batches: u64,
    rows: usize,
    /// The gradient of each parameter; empty if the loss does not depend on the parameter.
    dense: Vec<Vec<f32>>,
    tables: Vec<Summed>,
}

/// The gradients of one table's rows, in the order of the first occurrences of their keys.
#[derive(Debug, Default)]
struct Summed {
    place: HashMap<FeatureKey, u32, MixedHasher>,
    keys: Vec<FeatureKey>,
    /// The number of occurrences of each key.
    counts: Vec<u32>,
    uses: Option<Vec<Use>>,
    stride: usize,
    values: Vec<f32>,
}

impl Accumulated {
    /// Returns the number of batches in the step so far.
    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the seed for the random numbers of the next batch. Each batch of a step has a
    /// different seed.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        if self.batches == 0 { seed } else { combine(seed, self.batches) }
    }

    /// Adds the gradients of the batch that `executor` ran last.
    pub(super) fn add(&mut self, plan: &LookupPlan, grads: &RowBuffer, executor: &Executor) {
        let weight = plan.rows as f32;
        for (param, grad) in executor.param_grads() {
            let index = param.0 as usize;
            if self.dense.len() <= index {
                self.dense.resize_with(index + 1, Vec::new);
            }
            let sum = &mut self.dense[index];
            if sum.is_empty() {
                sum.resize(grad.len(), 0.0);
            }
            sum.iter_mut().zip(grad).for_each(|(sum, &g)| *sum += weight * g);
        }
        self.add_rows(plan, grads);
        self.batches += 1;
        self.rows += plan.rows;
    }

    fn add_rows(&mut self, plan: &LookupPlan, grads: &RowBuffer) {
        let weight = plan.rows as f32;
        self.tables.resize_with(plan.tables.len(), Summed::default);
        for ((summed, table), rows) in self.tables.iter_mut().zip(&plan.tables).zip(&grads.tables) {
            summed.stride = rows.stride;
            for (i, &key) in table.keys.iter().enumerate() {
                let times = table.occurrences.offsets[i + 1] - table.occurrences.offsets[i];
                let used = rows.uses.as_ref().map(|uses| uses[i]);
                summed.add(key, times, used, rows.row(i), weight);
            }
            if rows.uses.is_some() {
                summed.uses.get_or_insert_default();
            }
        }
    }

    /// Returns the lookup plan of the step, and fills `buffer` with the gradients of its rows.
    /// [`Accumulated::param_grad`] then returns the gradients of parameters.
    pub(super) fn finish(&mut self, buffer: &mut RowBuffer) -> LookupPlan {
        let share = 1.0 / self.rows.max(1) as f32;
        self.dense.iter_mut().flatten().for_each(|g| *g *= share);
        buffer.reshape(self.tables.iter().map(|t| (t.keys.len(), t.stride)));
        let filled = self.tables.iter().zip(&mut buffer.tables).enumerate();
        let tables = filled.map(|(index, (summed, rows))| {
            let order = summed.order();
            for (row, &from) in rows.values.chunks_mut(summed.stride.max(1)).zip(&order) {
                let from = &summed.values[from * summed.stride..(from + 1) * summed.stride];
                row.iter_mut().zip(from).for_each(|(to, &from)| *to = from * share);
            }
            let used = |uses: &Vec<Use>| order.iter().map(|&from| uses[from]).collect();
            rows.uses = summed.uses.as_ref().map(used);
            summed.plan(index, &order)
        });
        LookupPlan { rows: self.rows, tables: tables.collect(), columns: Vec::new() }
    }

    /// Returns the gradient of a parameter, after [`Accumulated::finish`] has ended the step.
    pub(super) fn param_grad(&self, id: ParamId) -> Option<&[f32]> {
        self.dense.get(id.0 as usize).filter(|sum| !sum.is_empty()).map(Vec::as_slice)
    }

    /// Resets the sums for the next step, and keeps the memory of the buffers.
    pub(super) fn clear(&mut self) {
        self.batches = 0;
        self.rows = 0;
        self.dense.iter_mut().flatten().for_each(|g| *g = 0.0);
        for table in &mut self.tables {
            table.place.clear();
            table.keys.clear();
            table.counts.clear();
            table.uses = None;
            table.values.clear();
        }
    }
}

impl Summed {
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
        sums.iter_mut().zip(row).for_each(|(sum, &g)| *sum += weight * g);
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

    /// Makes the table's lookup plan for a push: its keys, slots and counts. A push does not need
    /// the positions in a batch.
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
        TablePlan { table: zillion_feature::TableId(table as u16), keys, slots, occurrences }
    }
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
        let mut accumulated = Accumulated::default();
        let mut pushed = RowBuffer::default();
        // Two rounds show that a step leaves nothing for the next step.
        for _ in 0..2 {
            for (ids, times) in lists.iter().zip([1.0, 2.0, 4.0]) {
                let (plan, grads) = batch(ids, times);
                accumulated.add_rows(&plan, &grads);
                accumulated.batches += 1;
                accumulated.rows += plan.rows;
            }
            let plan = accumulated.finish(&mut pushed);
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
            accumulated.clear();
            assert_eq!(accumulated.seed(5), 5);
        }
        accumulated.batches = 1;
        assert_ne!(accumulated.seed(5), 5);
    }
}
