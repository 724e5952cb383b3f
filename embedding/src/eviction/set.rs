//! The decisions of a step in tables at their limits: the keys that get a row, and the rows that
//! are evicted to make room.
//!
//! # Invariants
//! * Every decision depends only on sums over one group of slots and on the order of the plan. The
//!   sums are over the rows of the group, over the keys of the step in the group, and over the
//!   ranks of the rows in visited slots of the group. So the numbers of shards and of processes
//!   change nothing.
//! * No group ever has more rows than its part of its table's limit, so no table has more rows than
//!   its limit. All tables together never have more rows than the limit of the set allows. The
//!   only exceptions are the rows of a restored checkpoint and of a version from which training
//!   began, which may be more.

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TablePlan, TableRows};
use zillion_rows::Admission;

use crate::error::Result;
use crate::eviction::capacity::{Demand, Visit};
use crate::eviction::displace::{Foreseen, Ranked};
use crate::eviction::limits::PerGroup;
use crate::eviction::permits::{LimitedRun, Permits};
use crate::groups::Group;
use crate::set::{TableSet, each};
use crate::shard::times;

/// The keys of a plan in one group, and the number of rows that the group may still get.
struct Scarce {
    keys: Range<usize>,
    free: u64,
}

impl TableSet {
    /// Returns the permits of a step for each table. The index entries in them are valid until the
    /// next step.
    pub(crate) fn find_permits(
        &self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        step: u32,
    ) -> Result<Vec<Permits>> {
        let mut permits = vec![Permits::default(); self.shapes.len()];
        let is_limited = self.shared.rows.is_some()
            || plan.tables.iter().any(|t| self.shapes[t.table.index()].most_rows.is_some());
        if !is_limited {
            return Ok(permits);
        }
        let runs: Vec<Vec<Range<usize>>> = plan.tables.iter().map(|t| self.group_runs(t)).collect();
        let rows = self.group_rows();
        let mut needs = rows.clone();
        for (table, runs) in plan.tables.iter().zip(&runs) {
            let needs = &mut needs[table.table.index()];
            needs.iter_mut().zip(runs).for_each(|(needs, run)| *needs += run.len() as u64);
        }
        // No row is evicted in the middle of a step.
        let limits = self.limits(workers, &rows, &needs, |_, _| true);
        for ((table, values), runs) in plan.tables.iter().zip(&gradients.tables).zip(runs) {
            let index = table.table.index();
            // A plan usually names a table once. If it names a table twice, the entries of neither
            // part are recorded.
            let is_only = plan.tables.iter().filter(|t| t.table == table.table).count() == 1;
            let groups = runs.into_iter().zip(&limits[index]).zip(&rows[index]);
            let scarce = groups.filter_map(|((keys, limit), rows)| {
                let free = (*limit)?.saturating_sub(*rows);
                (keys.len() as u64 > free).then_some(Scarce { keys, free })
            });
            let scarce: Vec<Scarce> = scarce.collect();
            if !scarce.is_empty() {
                let found = self.permits(workers, table, values, &scarce, step)?;
                permits[index] = Permits { rows: found.rows.filter(|_| is_only), ..found };
            }
        }
        Ok(permits)
    }

    /// Returns the runs of a plan's keys in each group of the table. The runs of a frozen table are
    /// empty, because a step does not change it.
    fn group_runs(&self, table: &TablePlan) -> Vec<Range<usize>> {
        let index = table.table.index();
        let run = |group: Group| match self.frozen[index] {
            true => 0..0,
            false => table.keys_in(group.slots()),
        };
        Group::all(self.groups[index]).map(run).collect()
    }

    /// Returns the permits of a table in which some groups have less room than keys in the plan.
    fn permits(
        &self,
        workers: &Workers,
        table: &TablePlan,
        values: &TableRows,
        scarce: &[Scarce],
        step: u32,
    ) -> Result<Permits> {
        let index = table.table.index();
        let ranges: Vec<Range<usize>> = table.shard_ranges(&self.map);
        let foreseen = workers.map(self.shards.len(), |i| {
            let range = ranges[i].clone();
            let wanted = scarce.iter().map(|of| {
                let start = of.keys.start.clamp(range.start, range.end);
                start - range.start..of.keys.end.clamp(start, range.end) - range.start
            });
            let wanted: Vec<Range<usize>> = wanted.filter(|wanted| !wanted.is_empty()).collect();
            let times = times(table, values, range.clone());
            self.shards[i].tables[index].foresee(&table.keys[range], times, &wanted, step)
        });
        let (mut new, mut rows) = (Vec::new(), Vec::with_capacity(table.keys.len()));
        for foreseen in foreseen {
            let foreseen: Foreseen = foreseen?;
            new.extend(foreseen.new);
            rows.extend(foreseen.rows);
        }
        // In a filter, keys share counters. So some keys of this step may raise the counters of
        // other keys to the threshold, although the filter lets these other keys wait now. If room
        // is scarce, these other keys wait once more, because they got no room.
        let may_be_more = matches!(self.shapes[index].spec.admission, Admission::Bloom { .. });
        let run = |Scarce { keys, free }: &Scarce| {
            let first = |at: usize| new.partition_point(|&position| (position as usize) < at);
            let mut positions = new[first(keys.start)..first(keys.end)].to_vec();
            let is_limited = positions.len() as u64 > *free || may_be_more;
            positions.truncate(*free as usize);
            is_limited.then(|| LimitedRun { keys: keys.clone(), positions })
        };
        let looked_up: usize = scarce.iter().map(|of| of.keys.len()).sum();
        let rows = (looked_up == table.keys.len()).then_some(rows);
        Ok(Permits { runs: scarce.iter().filter_map(run).collect(), rows })
    }

    /// Ends a step in the groups that are at their limits, by evicting the rows with the lowest
    /// priority.
    pub(crate) fn displace(&mut self, workers: &Workers, step: u32) -> Result<()> {
        if self.shapes.iter().all(|shape| shape.priority.is_none()) {
            return Ok(());
        }
        let visits = self.plan_visits(workers, step);
        let tables = 0..self.shapes.len();
        let is_quiet = |&table: &usize| visits.iter().all(|&(of, _)| of != table);
        let quiet: Vec<usize> = tables.filter(is_quiet).collect();
        if self.shards.iter().any(|s| quiet.iter().any(|&table| s.tables[table].has_free_list())) {
            each(workers, &mut self.shards, |_, shard| {
                quiet.iter().for_each(|&table| shard.tables[table].trim_free_list(0));
                Ok(())
            })?;
        }
        if visits.is_empty() {
            return Ok(());
        }
        // The rows that were visited, by shard and then by visit.
        let ranked: Vec<Vec<Vec<Ranked>>> = workers.map(self.shards.len(), |i| {
            let tables = &self.shards[i].tables;
            visits.iter().map(|(table, visit)| tables[*table].rank_rows(visit)).collect()
        });
        let highest: Vec<Option<(u64, FeatureKey)>> = workers.map(visits.len(), |at| {
            let found: Vec<&[Ranked]> = ranked.iter().map(|of| of[at].as_slice()).collect();
            let seen: usize = found.iter().map(|ranked| ranked.len()).sum();
            lowest(&found, visits[at].1.evictions(seen as u64) as usize)
        });
        each(workers, &mut self.shards, |i, shard| {
            let mut at = 0;
            // The visits of a table follow each other.
            for of_table in visits.chunk_by(|a, b| a.0 == b.0) {
                let table = &mut shard.tables[of_table[0].0];
                let (mut gone, mut is_visited) = (0, false);
                for (_, visit) in of_table {
                    is_visited |= !ranked[i][at].is_empty();
                    // Without a highest rank, all rows that the visit covers are pinned.
                    if let Some(highest) = highest[at] {
                        gone += table.make_room(visit, &ranked[i][at], highest)?;
                    }
                    at += 1;
                }
                // A shard whose groups are visited in other steps keeps its free rows until then.
                if is_visited {
                    table.trim_free_list(2 * gone);
                }
            }
            Ok(())
        })
    }

    /// Returns the visits at the end of a step, each with its table, in the order of tables and
    /// groups. Resets the demand of the step.
    fn plan_visits(&mut self, workers: &Workers, step: u32) -> Vec<(usize, Visit)> {
        let empty = |&groups: &usize| vec![Demand::default(); groups];
        let mut demands: PerGroup<Demand> = self.groups.iter().map(empty).collect();
        for shard in &mut self.shards {
            for (sums, table) in demands.iter_mut().zip(&mut shard.tables) {
                let groups = sums.len();
                table.demand.values(groups).for_each(|(group, &part)| sums[group].add(part));
                table.demand.values_mut().for_each(|(_, demand)| *demand = Demand::default());
            }
        }
        let rows = self.group_rows();
        let needs = rows.iter().zip(&demands).map(|(rows, demands)| {
            let groups = Group::all(rows.len()).zip(rows).zip(demands);
            groups.map(|((group, &rows), demand)| rows + demand.wanted(rows, group)).collect()
        });
        let needs: PerGroup<u64> = needs.collect();
        let limits = self.limits(workers, &rows, &needs, |table, shape| {
            shape.priority.is_none() || shape.spec.dense || self.frozen[table]
        });
        let mut visits = Vec::new();
        for (table, shape) in self.shapes.iter().enumerate() {
            if shape.priority.is_none() || self.frozen[table] {
                continue;
            }
            for group in Group::all(self.groups[table]) {
                let at = group.index;
                let (rows, demand) = (rows[table][at], demands[table][at]);
                let visit = limits[table][at]
                    .and_then(|limit| Visit::new(rows, limit, demand, step, group));
                visits.extend(visit.map(|visit| (table, visit)));
            }
        }
        visits
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
}
