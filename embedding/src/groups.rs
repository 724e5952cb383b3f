//! The groups of slots by which tables decide.
//!
//! A rule about many rows, such as a limit, is a rule of a *group*: a range of slots of fixed size.
//! It depends on sums over the group alone, and a group is always held by one process. So no
//! decision depends on the number of processes that hold a table, and no step needs a sum over
//! several processes.
//!
//! A table has a power of two of groups, at most [`GROUPS`]. Their number depends on the limit of
//! the table alone. A small limit is one group, so that it is exact: keys are mixed, and the number
//! of keys in a group of `n` differs by about `√n` from group to group. In a table at its limit,
//! some groups are therefore full a little before the others. With [`LEAST_ROWS`] rows in a group
//! this is 1.6 % of the rows, and 0.8 % with 16,384 rows.

use std::ops::Range;

use zillion_feature::SLOTS;
use zillion_rows::{ByteSize, TableSpec};

use crate::error::Result;
use crate::eviction::shared_limit::shared_room;

/// The largest number of groups of a table, and the number of groups of a table without a limit.
pub const GROUPS: usize = 64;
/// The smallest number of rows of a group's part of a limit, in a table of several groups.
const LEAST_ROWS: u64 = 4096;
/// The number of slots of the smallest group.
const FINEST: usize = SLOTS / GROUPS;

/// Returns the number of groups of each table, if all tables together may take `limit` bytes (see
/// [`TableSet::limit_bytes`](crate::TableSet::limit_bytes)).
///
/// Without a shared limit, a table has the largest number of groups for which each group may have
/// 4,096 rows by the table's own limit, or 64 groups if it has none. A shared limit is divided
/// among the tables in each group, so all tables then have the same number of groups: the largest
/// number that is enough for every own limit, and for which the shared limit holds 4,096 rows of
/// each table in each group.
///
/// # Errors
/// Returns [`Error::Spec`](crate::Error::Spec) if the limit is too small for one row of each table.
pub fn table_groups(specs: &[TableSpec], limit: Option<ByteSize>) -> Result<Vec<usize>> {
    let own = specs.iter().map(|spec| groups_of_limit(spec.most_rows()));
    let Some(limit) = limit else { return Ok(own.collect()) };
    let total = shared_room(specs, limit)?;
    let reckonings: Vec<_> = specs.iter().map(TableSpec::reckoning).collect();
    let fits = |&groups: &usize| {
        let rows = LEAST_ROWS * groups as u64;
        reckonings.iter().map(|reckoning| reckoning.memory(rows)).sum::<u64>() <= total
    };
    let most = own.min().unwrap_or(GROUPS);
    Ok(vec![sizes().filter(|&groups| groups <= most).find(fits).unwrap_or(1); specs.len()])
}

/// Returns the slots of a table of `groups` groups whose rows belong to the server of the slots
/// `server`. A key belongs to the server of the first slot of its group. So these are the slots of
/// the groups whose first slot is in `server`; there may be none. If servers divide all slots among
/// them, each group belongs to exactly one of them.
pub fn owned_slots(groups: usize, server: Range<usize>) -> Range<usize> {
    let width = SLOTS / groups;
    let bound = |slot: usize| slot.div_ceil(width) * width;
    bound(server.start)..bound(server.end)
}

/// Returns the number of groups of a table with this limit of rows.
fn groups_of_limit(limit: Option<u64>) -> usize {
    let fits = |&groups: &usize| limit.is_none_or(|limit| limit / groups as u64 >= LEAST_ROWS);
    sizes().find(fits).unwrap_or(1)
}

/// Returns the possible numbers of groups, in descending order.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=GROUPS.ilog2()).rev().map(|power| 1 << power)
}

/// A group of slots of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The number of the group in its table, counted from 0.
    pub(crate) index: usize,
    /// The number of groups of the table.
    pub(crate) count: usize,
}

impl Group {
    /// Returns all groups of a table of `count` groups, in the order of their slots.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns whether the group is the whole table.
    pub(crate) fn is_whole(self) -> bool {
        self.count == 1
    }

    /// Returns the number of slots of the group.
    pub(crate) fn width(self) -> usize {
        SLOTS / self.count
    }

    /// Returns the slots of the group.
    pub(crate) fn slots(self) -> Range<usize> {
        self.index * self.width()..(self.index + 1) * self.width()
    }

    /// Returns the group's part of a number of rows. The parts of all groups add up to the number.
    pub(crate) fn part(self, rows: u64) -> u64 {
        let up_to = |groups: usize| u128::from(rows) * groups as u128 / self.count as u128;
        (up_to(self.index + 1) - up_to(self.index)) as u64
    }
}

/// A value for each of the smallest groups that one shard's slots are in. A value of a larger group
/// is the sum of the values of the smallest groups in it.
#[derive(Clone, Debug)]
pub(crate) struct ByGroup<T> {
    /// The number of the first group.
    first: usize,
    values: Vec<T>,
}

impl<T: Default> ByGroup<T> {
    pub(crate) fn new(slots: &Range<usize>) -> Self {
        let groups = slots.start / FINEST..slots.end.div_ceil(FINEST);
        Self { first: groups.start, values: groups.map(|_| T::default()).collect() }
    }

    /// Returns the value of the group of a slot.
    #[inline(always)]
    pub(crate) fn of_slot(&mut self, slot: usize) -> &mut T {
        &mut self.values[slot / FINEST - self.first]
    }

    /// Returns the values in the order of their groups. Each value comes with the number of its
    /// group in a table of `groups` groups.
    pub(crate) fn values(&self, groups: usize) -> impl Iterator<Item = (usize, &T)> {
        (self.first..).zip(&self.values).map(move |(at, value)| (at * groups / GROUPS, value))
    }

    /// Returns the values in the order of their groups, each with the slots of its group.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut T)> {
        let slots = |at: usize| at * FINEST..(at + 1) * FINEST;
        (self.first..).zip(&mut self.values).map(move |(at, value)| (slots(at), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::{segment, table};
    use zillion_rows::{Admission, OptimizerSpec};

    fn spec(max_rows: Option<u64>) -> TableSpec {
        let sgd = OptimizerSpec::Sgd { lr: 0.1 };
        TableSpec { max_rows, ..table("ids", false, vec![segment("v", 16, sgd, 0.0)]) }
    }

    #[test]
    fn the_number_of_groups_follows_from_the_limit() {
        for (limit, groups) in
            [(1, 1), (8191, 1), (8192, 2), (40_000, 8), (262_143, 32), (262_144, 64), (1 << 31, 64)]
        {
            assert_eq!(groups_of_limit(Some(limit)), groups, "{limit}");
        }
        let specs = [spec(None), spec(Some(20_000)), spec(Some(7))];
        assert_eq!(table_groups(&specs, None).unwrap(), [64, 4, 1]);
        // A dense table has a vocabulary in place of a limit.
        let dense = TableSpec { dense: true, ..spec(Some(20_000)) };
        assert_eq!(table_groups(&[dense], None).unwrap(), [64]);
    }

    #[test]
    fn under_a_shared_limit_all_tables_have_the_same_groups() {
        let groups = |specs: &[TableSpec], limit: u64| {
            let groups = table_groups(specs, Some(ByteSize(limit))).unwrap();
            assert_eq!(groups.len(), specs.len());
            assert!(groups.iter().all(|&of| of == groups[0]), "{groups:?}");
            groups[0]
        };
        let two = [spec(None), spec(None)];
        assert_eq!(groups(&two, 1 << 34), 64);
        assert_eq!(groups(&two, 1 << 20), 1);
        let mut most = 1;
        for limit in (2..200).map(|mib| mib << 20) {
            let found = groups(&two, limit);
            assert!(found >= most, "{limit} bytes: {found} groups after {most}");
            let needed = |groups: u64| 2 * spec(None).reckoning().memory(4096 * groups);
            assert!(found == 1 || needed(found as u64) <= limit, "{limit}");
            assert!(found == 64 || needed(2 * found as u64) > limit, "{limit}");
            most = found;
        }
        assert_eq!(most, 64);
        // The smallest limit of a table decides for all, and a filter leaves room for fewer rows.
        assert_eq!(groups(&[spec(None), spec(Some(20_000))], 1 << 34), 4);
        let admission = Admission::Bloom { at_least: 2, keys: 10_000_000, error: 0.01 };
        let filter = TableSpec { admission, ..spec(None) };
        let bytes = filter.reckoning().memory(100);
        assert_eq!(groups(&[filter], bytes), 1);
        assert!(table_groups(&two, Some(ByteSize(1000))).is_err());
        assert!(table_groups(&[], Some(ByteSize(1000))).unwrap().is_empty());
    }

    #[test]
    fn the_parts_of_a_limit_add_up_to_it() {
        for count in sizes() {
            for limit in [1, 63, 4096 * count as u64, 1_000_003, (1 << 31) - 1, u64::MAX] {
                let parts: Vec<u64> = Group::all(count).map(|group| group.part(limit)).collect();
                assert_eq!(parts.iter().map(|&part| u128::from(part)).sum::<u128>(), limit.into());
                assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
            }
            let slots: Vec<usize> = Group::all(count).flat_map(Group::slots).collect();
            assert!(slots.into_iter().eq(0..SLOTS), "{count}");
        }
    }

    #[test]
    fn every_group_belongs_to_the_server_of_its_first_slot() {
        for bounds in [vec![0, SLOTS], vec![0, 1344, 2752, SLOTS], vec![0, 64, 128, 4032, SLOTS]] {
            for groups in sizes() {
                let mut next = 0;
                for server in bounds.windows(2) {
                    let owned = owned_slots(groups, server[0]..server[1]);
                    assert_eq!(owned.start, next);
                    let first =
                        |group: &Group| (server[0]..server[1]).contains(&group.slots().start);
                    let expected = Group::all(groups).filter(first).flat_map(Group::slots);
                    assert!(owned.clone().eq(expected), "{groups} groups, {server:?}");
                    next = owned.end;
                }
                assert_eq!(next, SLOTS);
            }
        }
    }

    #[test]
    fn values_of_small_groups_belong_to_larger_ones() {
        let mut counts = ByGroup::<u64>::new(&(100..300));
        (100..300).for_each(|slot| *counts.of_slot(slot) += 1);
        let found: Vec<(usize, u64)> = counts.values(64).map(|(at, &count)| (at, count)).collect();
        assert_eq!(found, [(1, 28), (2, 64), (3, 64), (4, 44)]);
        let found: Vec<(usize, u64)> = counts.values(32).map(|(at, &count)| (at, count)).collect();
        assert_eq!(found, [(0, 28), (1, 64), (1, 64), (2, 44)]);
        let slots: Vec<Range<usize>> = counts.values_mut().map(|(slots, _)| slots).collect();
        assert_eq!((slots[0].clone(), slots[3].clone()), (64..128, 256..320));
        assert_eq!(ByGroup::<u64>::new(&(0..0)).values(1).count(), 0);
    }
}
