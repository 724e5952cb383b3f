//! The limits of tables by group of slots: the largest number of rows that each group may have in a
//! step.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::TableId;
use zillion_rows::memory::Reckoning;
use zillion_rows::{ByteSize, TableSpec};

use crate::admission::KeyAdmission;
use crate::error::Result;
use crate::eviction::capacity::{Claim, shares};
use crate::eviction::shared_limit::SharedLimit;
use crate::groups::{Group, table_groups};
use crate::set::TableSet;
use crate::shape::TableShape;

/// A value for each table and each of its groups.
pub(crate) type PerGroup<T> = Vec<Vec<T>>;

impl TableSet {
    /// Limits the memory of all tables together; `None` removes the limit.
    ///
    /// The limit is divided evenly among groups of slots (see
    /// [`table_groups`](crate::table_groups)), and the part of a group among the tables. First, the
    /// memory of dense tables, and of the existing rows of tables without eviction, is subtracted.
    /// Then tables that need less than an equal part get the memory that they need, and the other
    /// tables get equal parts of the rest. A group of a table that has used its part evicts by the
    /// table's own policy, or refuses new keys.
    ///
    /// # Errors
    /// Returns [`Error::Spec`](crate::Error::Spec) if the limit is too small for one row of each
    /// table.
    pub fn limit_bytes(&mut self, limit: Option<ByteSize>) -> Result<()> {
        let specs: Vec<TableSpec> = self.specs().cloned().collect();
        self.groups = table_groups(&specs, limit)?;
        self.shared = match limit {
            None => SharedLimit::default(),
            Some(limit) => SharedLimit::new(&specs.iter().collect::<Vec<_>>(), limit)?,
        };
        self.limit_candidates();
        Ok(())
    }

    /// Returns the number of groups of slots of each table. Every limit of a table is a limit of
    /// its groups.
    pub fn groups(&self) -> &[usize] {
        &self.groups
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

    /// Returns the number of rows of each group of each table.
    pub(crate) fn group_rows(&self) -> PerGroup<u64> {
        let of_table = |(table, &groups): (usize, &usize)| {
            if groups == 1 {
                return vec![self.rows(TableId(table as u16))];
            }
            let mut rows = vec![0; groups];
            for shard in &self.shards {
                shard.tables[table].index.group_lens(groups).for_each(|(at, n)| rows[at] += n);
            }
            rows
        };
        self.groups.iter().enumerate().map(of_table).collect()
    }

    /// Returns the largest number of rows of each group of each table, or `None` for a group
    /// without a limit. `rows` has the number of rows of each group, and `needs` the number of rows
    /// that it could use. `keeps` returns whether the existing rows of a table must stay.
    pub(crate) fn limits(
        &self,
        workers: &Workers,
        rows: &PerGroup<u64>,
        needs: &PerGroup<u64>,
        keeps: impl Fn(usize, &TableShape) -> bool + Sync,
    ) -> PerGroup<Option<u64>> {
        let own = |(shape, &groups): (&Arc<TableShape>, &usize)| {
            let part = |group: Group| shape.most_rows.map(|most| group.part(most));
            Group::all(groups).map(part).collect()
        };
        let mut limits: PerGroup<Option<u64>> =
            self.shapes.iter().zip(&self.groups).map(own).collect();
        let Some(total) = self.shared.rows else { return limits };
        let groups = self.groups.first().copied().unwrap_or(1);
        let total = total / groups as u64;
        let within_group = |group: usize| {
            let claim = |(table, shape): (usize, &Arc<TableShape>)| {
                let bytes = |rows| group_bytes(&shape.reckoning, rows, groups);
                let is_kept = keeps(table, shape);
                let least = bytes(if is_kept { rows[table][group] } else { 1 });
                let could = needs[table][group].min(limits[table][group].unwrap_or(u64::MAX));
                Claim { least, most: bytes(could).max(least) }
            };
            let claims: Vec<Claim> = self.shapes.iter().enumerate().map(claim).collect();
            if claims.iter().map(|claim| claim.most).sum::<u64>() <= total {
                return vec![None; claims.len()];
            }
            let limit = |(table, share): (usize, u64)| {
                let shape = &self.shapes[table];
                // The share is below the memory of the rows that the table could use.
                let most = needs[table][group].min(limits[table][group].unwrap_or(u64::MAX));
                let is_short = share < claims[table].most && !shape.spec.dense;
                is_short.then(|| group_rows_within(&shape.reckoning, share, most, groups))
            };
            shares(total, &claims).into_iter().enumerate().map(limit).collect::<Vec<_>>()
        };
        for (group, shared) in workers.map(groups, within_group).into_iter().enumerate() {
            for (limits, shared) in limits.iter_mut().zip(shared) {
                limits[group] = shared.or(limits[group]);
            }
        }
        limits
    }
}

/// Returns the bytes of a group of `rows` rows: its part of the memory of a table in which each of
/// `groups` groups has so many rows.
fn group_bytes(reckoning: &Reckoning, rows: u64, groups: usize) -> u64 {
    reckoning.memory(rows * groups as u64).div_ceil(groups as u64)
}

/// Returns the largest number of rows, below `most`, that a group may have in `share` bytes.
fn group_rows_within(reckoning: &Reckoning, share: u64, most: u64, groups: usize) -> u64 {
    let (mut low, mut high) = (0, most);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if group_bytes(reckoning, middle, groups) <= share { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::*;
    use zillion_rows::OptimizerSpec;

    fn spec(name: &str) -> TableSpec {
        table(name, false, vec![segment("v", 8, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)])
    }

    #[test]
    fn a_limit_that_no_table_fits_is_refused() {
        let mut set = TableSet::new(vec![spec("a"), spec("b")], shards(2)).unwrap();
        let error = set.limit_bytes(Some(ByteSize(1000))).unwrap_err().to_string();
        assert!(error.contains("train.max_table_bytes") && error.contains("2 tables"), "{error}");
        set.limit_bytes(Some(ByteSize(1 << 30))).unwrap();
        set.limit_bytes(None).unwrap();
    }

    #[test]
    fn a_shared_limit_is_divided_inside_each_group() {
        let mut set = TableSet::new(vec![spec("a"), spec("b"), spec("c")], shards(2)).unwrap();
        for (mib, groups) in [(2, 1), (256, 64)] {
            set.limit_bytes(Some(ByteSize(mib << 20))).unwrap();
            assert_eq!(set.groups(), [groups; 3]);
            let total = set.shared.rows.unwrap();
            let bytes = |rows: u64| spec("a").reckoning().memory(rows);
            let most = spec("a").reckoning().rows_within(total);
            let group_most = most / groups as u64;
            // In the first group, table `b` needs little and the others need much.
            let mut needs = vec![vec![1; groups]; 3];
            let rows = vec![vec![0; groups]; 3];
            (needs[0][0], needs[1][0], needs[2][0]) = (group_most, 10, group_most);
            let limits = set.limits(&workers(2), &rows, &needs, |_, _| true);
            assert_eq!(limits[1][0], None);
            let limit = limits[0][0].unwrap();
            assert_eq!(limits[2][0], Some(limit));
            let groups = groups as u64;
            assert!(limit * 4 > group_most && limit * 2 < group_most, "{limit} {group_most}");
            assert!(2 * bytes(limit * groups) + bytes(10 * groups) <= total);
            assert!(2 * bytes((limit + 1) * groups) + bytes(10 * groups) > total);
            // The other groups have all the room that they need.
            assert!(limits.iter().all(|of| of[1..].iter().all(Option::is_none)));
        }
    }
}
