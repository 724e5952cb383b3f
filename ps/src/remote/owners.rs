//! The division of slots among servers.

use std::ops::Range;

use zillion_feature::{LookupPlan, SLOTS, TablePlan};

use crate::error::Result;
use crate::options::TableOptions;

/// The number of slots of the smallest part that a server can own.
const UNIT: usize = 64;

/// The slots that each server owns, for each table.
///
/// # Invariants
/// Each slot of each table has exactly one owner. The owners of a table own contiguous ranges of
/// slots, in the order of the servers. A range can be empty.
#[derive(Debug)]
pub(super) struct Owners {
    /// The bounds of the servers' slots: one more than there are servers.
    bounds: Vec<usize>,
    /// The slots of each table that each server owns, by server and then by table.
    owned: Vec<Vec<Range<usize>>>,
}

impl Owners {
    pub(super) fn new(servers: usize, tables: &TableOptions) -> Result<Self> {
        let bound = |server: usize| SLOTS / UNIT * server / servers * UNIT;
        let bounds: Vec<usize> = (0..=servers).map(bound).collect();
        let owned = bounds
            .windows(2)
            .map(|pair| crate::slots::owned(tables, &(pair[0]..pair[1])))
            .collect::<Result<_>>()?;
        Ok(Self { bounds, owned })
    }

    pub(super) fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// Returns the bounds of the servers' slots of a table.
    pub(super) fn bounds_of(&self, table: usize) -> impl Iterator<Item = usize> {
        self.owned.iter().filter_map(move |owned| owned.get(table)).flat_map(|r| [r.start, r.end])
    }

    /// Returns the first slot of a server, and the slot after its last one.
    pub(super) fn slots(&self, server: usize) -> [usize; 2] {
        [self.bounds[server], self.bounds[server + 1]]
    }

    /// Returns the range of a plan's keys that a server owns, for each table of the plan.
    pub(super) fn ranges(&self, server: usize, plan: &LookupPlan) -> Vec<Range<usize>> {
        let range = |table: &TablePlan| {
            let Some(slots) = self.owned[server].get(table.table.index()) else { return 0..0 };
            let first = |slot: usize| {
                let run = table.slots.partition_point(|&(s, _)| usize::from(s) < slot);
                table.slots.get(run).map_or(table.keys.len(), |&(_, at)| at as usize)
            };
            if slots.is_empty() { 0..0 } else { first(slots.start)..first(slots.end) }
        };
        plan.tables.iter().map(range).collect()
    }

    /// Returns the slots of a table that a server owns.
    pub(super) fn slots_of(&self, server: usize, table: usize) -> Range<usize> {
        self.owned[server].get(table).cloned().unwrap_or(0..0)
    }

    /// Returns the server that owns a slot of a table.
    pub(super) fn owner(&self, table: usize, slot: usize) -> usize {
        let owns = |owned: &Vec<Range<usize>>| owned.get(table).is_some_and(|r| r.contains(&slot));
        self.owned.iter().position(owns).unwrap_or(0)
    }
}
