//! The limits of tables over all their shards: the limit of each table in a step, the keys that get
//! a row, and the rows that are evicted to make room.
//!
//! # Invariants
//! * Every decision depends only on sums over all shards and on the order of the plan. The sums are
//!   over numbers of rows, over the keys of a step in slot order, and over the ranks of the rows in
//!   whole slots. So the number of shards changes nothing.
//! * No table ever has more rows than its limit, and all tables together never have more rows than
//!   the limit of the set allows. The only exception is a restored checkpoint, which may have more
//!   rows.

use crate::eviction::shared_limit::SharedLimit;
use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};

use crate::admission::KeyAdmission;
use crate::error::Result;
use crate::eviction::capacity::{Claim, Demand, Visit, shares};
use crate::eviction::displace::{Foreseen, Ranked};
use crate::eviction::permits::Permits;
use crate::set::{TableSet, each};
use crate::shape::TableShape;
use crate::shard::times;
use zillion_rows::TableSpec;
use zillion_rows::{Admission, ByteSize};

impl TableSet {
    /// Limits the memory of all tables together; `None` removes the limit.
    ///
    /// The limit is divided among the tables. First, the memory of dense tables, and of the
    /// existing rows of tables without eviction, is subtracted. Then tables that need less than an
    /// equal part get the memory that they need, and the other tables get equal parts of the rest.
    /// A table that has used its part evicts by its own policy, or refuses new keys.
    ///
    /// # Errors
    /// Returns [`Error::Spec`] if the limit is too small for one row of each table.
    pub fn limit_bytes(&mut self, limit: Option<ByteSize>) -> Result<()> {
        let specs: Vec<&TableSpec> = self.specs().collect();
        self.shared = match limit {
            None => SharedLimit::default(),
            Some(limit) => SharedLimit::new(&specs, limit)?,
        };
        self.limit_candidates();
        Ok(())
    }

    /// Sets the largest number of candidates of a slot, in tables that have no limit of their own
    /// for it.
    pub(crate) fn limit_candidates(&mut self) {
        let Some(most) = self.shared.candidates_in_slot else { return };
        for shard in &mut self.shards {
            for (index, shape) in self.shapes.iter().enumerate() {
                let admission = shard.tables[index].candidates.as_mut();
                if shape.spec.max_bytes.is_none()
                    && let Some(counts) = admission.and_then(KeyAdmission::counts_mut)
                {
                    counts.most = Some(most);
                }
            }
        }
    }

    /// Returns the largest number of rows of each table, or `None` for a table without a limit.
    /// `needs` returns the number of rows that a table could use. `keeps` returns whether the
    /// existing rows of a table must stay.
    fn limits(
        &self,
        needs: impl Fn(usize, u64) -> u64,
        keeps: impl Fn(usize, &TableShape) -> bool,
    ) -> Vec<Option<u64>> {
        let own = |shape: &TableShape| shape.most_rows.unwrap_or(u64::MAX);
        let mut limits: Vec<Option<u64>> = self.shapes.iter().map(|s| s.most_rows).collect();
        let Some(total) = self.shared.rows else { return limits };
        let claims: Vec<Claim> = self
            .shapes
            .iter()
            .enumerate()
            .map(|(table, shape)| {
                let rows = self.rows(TableId(table as u16));
                let bytes = |rows| shape.reckoning.memory(rows);
                let least = if keeps(table, shape) { bytes(rows) } else { bytes(1) };
                let most = bytes(needs(table, rows).min(own(shape)));
                Claim { least, most: most.max(least) }
            })
            .collect();
        if claims.iter().map(|claim| claim.most).sum::<u64>() <= total {
            return limits;
        }
        for (table, share) in shares(total, &claims).into_iter().enumerate() {
            let shape = &self.shapes[table];
            if share < claims[table].most && !shape.spec.dense {
                limits[table] = Some(shape.reckoning.rows_within(share).min(own(shape)));
            }
        }
        limits
    }

    /// Returns the permits of a step for each table. The index entries in them are valid until the
    /// next step.
    pub(crate) fn find_permits(
        &self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        step: u32,
    ) -> Result<Vec<Permits>> {
        let mut rooms = vec![Permits::default(); self.shapes.len()];
        let is_limited = self.shared.rows.is_some()
            || plan.tables.iter().any(|t| self.shapes[t.table.index()].most_rows.is_some());
        if !is_limited {
            return Ok(rooms);
        }
        let mut keys = vec![0; self.shapes.len()];
        let moving = plan.tables.iter().filter(|t| !self.frozen[t.table.index()]);
        moving.for_each(|t| keys[t.table.index()] += t.keys.len() as u64);
        // No row is evicted in the middle of a step.
        let limits = self.limits(|table, rows| rows + keys[table], |_, _| true);
        for (table, values) in plan.tables.iter().zip(&gradients.tables) {
            let index = table.table.index();
            let Some(limit) = limits[index] else { continue };
            let free = limit.saturating_sub(self.rows(table.table));
            if table.keys.len() as u64 <= free {
                continue;
            }
            let ranges: Vec<Range<usize>> = table.shard_ranges(&self.map);
            let foreseen = workers.map(self.shards.len(), |i| {
                let range = ranges[i].clone();
                let (keys, stride) = (&table.keys[range.clone()], values.stride);
                let raw = &values.values[range.start * stride..range.end * stride];
                let times = times(table, values, range);
                self.shards[i].tables[index].foresee(keys, raw, times, step)
            });
            let (mut positions, mut rows) = (Vec::new(), Vec::with_capacity(table.keys.len()));
            for foreseen in foreseen {
                let Foreseen { new, rows: found } = foreseen?;
                positions.extend(new);
                rows.extend(found);
            }
            // In a filter, keys share counters. So some keys of this step may raise the counters of
            // other keys to the threshold, although the filter lets these other keys wait now. If
            // room is scarce, these other keys wait once more, because they got no room.
            let may_be_more = matches!(self.shapes[index].spec.admission, Admission::Bloom { .. });
            if positions.len() as u64 > free || may_be_more {
                positions.truncate(free as usize);
                rooms[index].positions = Some(positions);
            }
            // A plan usually names a table once. If it names a table twice, the entries of neither
            // part are recorded.
            if keys[index] == table.keys.len() as u64 {
                rooms[index].rows = Some(rows);
            }
        }
        Ok(rooms)
    }

    /// Ends a step in the tables that are at their limits, by evicting the rows with the lowest
    /// priority.
    pub(crate) fn displace(&mut self, workers: &Workers, step: u32) -> Result<()> {
        if self.shapes.iter().all(|shape| shape.priority.is_none()) {
            return Ok(());
        }
        let tables = 0..self.shapes.len();
        let mut demands = vec![Demand::default(); self.shapes.len()];
        for shard in &mut self.shards {
            for (sum, table) in demands.iter_mut().zip(&mut shard.tables) {
                let part = std::mem::take(&mut table.demand);
                sum.keys += part.keys;
                sum.rows += part.rows;
            }
        }
        let limits = self.limits(
            |table, rows| rows + demands[table].room(rows),
            |table, shape| shape.priority.is_none() || shape.spec.dense || self.frozen[table],
        );
        let visits: Vec<Option<Visit>> = tables
            .clone()
            .map(|table| {
                self.shapes[table].priority.filter(|_| !self.frozen[table])?;
                let rows = self.rows(TableId(table as u16));
                Visit::new(rows, limits[table]?, demands[table], step)
            })
            .collect();
        let quiet: Vec<usize> = tables.clone().filter(|&table| visits[table].is_none()).collect();
        if self.shards.iter().any(|s| quiet.iter().any(|&table| s.tables[table].has_free_list())) {
            each(workers, &mut self.shards, |_, shard| {
                quiet.iter().for_each(|&table| shard.tables[table].trim_free_list(0));
                Ok(())
            })?;
        }
        if visits.iter().all(Option::is_none) {
            return Ok(());
        }
        // The rows that were visited, by shard and then by table.
        let ranked: Vec<Vec<Vec<Ranked>>> = workers.map(self.shards.len(), |i| {
            let look = |(table, visit): (usize, &Option<Visit>)| {
                visit
                    .as_ref()
                    .map_or_else(Vec::new, |visit| self.shards[i].tables[table].rank_rows(visit))
            };
            visits.iter().enumerate().map(look).collect()
        });
        let highest: Vec<Option<(u64, FeatureKey)>> = tables
            .map(|table| {
                let found: Vec<&[Ranked]> = ranked.iter().map(|of| of[table].as_slice()).collect();
                let seen: usize = found.iter().map(|ranked| ranked.len()).sum();
                lowest(&found, visits[table]?.evictions(seen as u64) as usize)
            })
            .collect();
        each(workers, &mut self.shards, |i, shard| {
            for (table, ranked) in ranked[i].iter().enumerate() {
                match (&visits[table], highest[table]) {
                    (Some(visit), Some(highest)) => {
                        shard.tables[table].make_room(visit, ranked, highest)?;
                    }
                    // All rows that the visit covers are pinned.
                    (Some(_), None) => shard.tables[table].trim_free_list(0),
                    (None, _) => (),
                }
            }
            Ok(())
        })
    }
}

/// Returns the rank number `count` in ascending order, counted from 1, or `None` if `count` is 0.
pub(crate) fn lowest(ranked: &[&[Ranked]], count: usize) -> Option<(u64, FeatureKey)> {
    let last = count.checked_sub(1)?;
    // The first selection compares priorities alone, which takes half of the memory; keys decide
    // among rows of the same priority.
    let rows = || ranked.iter().copied().flatten();
    let mut priorities: Vec<u64> = rows().map(|found| found.rank.0).collect();
    let (before, &mut priority, _) = priorities.select_nth_unstable(last);
    let less = before.iter().filter(|&&before| before < priority).count();
    let mut keys: Vec<FeatureKey> =
        rows().filter(|found| found.rank.0 == priority).map(|found| found.rank.1).collect();
    Some((priority, *keys.select_nth_unstable(last - less).1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::fixtures::*;
    use zillion_rows::OptimizerSpec;

    proptest! {
        #[test]
        fn the_lowest_are_those_that_a_sort_puts_first(
            shards in prop::collection::vec(prop::collection::vec((0u64..6, any::<u64>()), 0..40), 1..5),
            part in 0.0f64..=1.0,
        ) {
            let shards: Vec<Vec<Ranked>> = shards
                .iter()
                .map(|rows| rows.iter().map(|&(priority, key)| Ranked::at(priority, key)).collect())
                .collect();
            let slices: Vec<&[Ranked]> = shards.iter().map(Vec::as_slice).collect();
            let mut ranks: Vec<_> = shards.iter().flatten().map(|found| found.rank).collect();
            ranks.sort_unstable();
            let count = (ranks.len() as f64 * part) as usize;
            prop_assert_eq!(lowest(&slices, count), count.checked_sub(1).map(|last| ranks[last]));
        }
    }

    #[test]
    fn a_limit_that_no_table_fits_is_refused() {
        let spec = table("a", false, vec![segment("v", 8, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)]);
        let other = TableSpec { name: "b".to_owned(), ..spec.clone() };
        let mut set = TableSet::new(vec![spec, other], shards(2)).unwrap();
        let error = set.limit_bytes(Some(ByteSize(1000))).unwrap_err().to_string();
        assert!(error.contains("train.max_table_bytes") && error.contains("2 tables"), "{error}");
        set.limit_bytes(Some(ByteSize(1 << 30))).unwrap();
        set.limit_bytes(None).unwrap();
    }
}
