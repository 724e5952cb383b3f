//! The memory of caches: what the tables of a set get of the device.

use zillion_feature::LookupPlan;

use crate::error::{Error, Result};
use crate::resident::ResidentTables;
use crate::resident::caching::CacheState;
use crate::resident::device::ResidentOptions;
use crate::resident::moves::Moves;
use crate::resident::room::{free_bytes, kept_free, usable_bytes};
use crate::resident::table::{Places, ResidentTable};
use crate::set::TableSet;

/// The bytes that the memory of a table may need beyond those of its rows.
const TABLE_BYTES: u64 = 4096;

/// The largest number of slots of a table: the top bit of a place has another meaning.
const MOST_SLOTS: usize = 1 << 31;

impl ResidentTables {
    /// Makes tables with caches, for the given reason. The first step gives them memory.
    pub(super) fn with_cache(
        options: &ResidentOptions,
        tables: &TableSet,
        reason: String,
    ) -> Result<Self> {
        // The tables without a cache must fit.
        let slots = vec![0; tables.shapes.len()];
        let mut made = Self::without_rows(options, tables, Places::Cache(&slots))?;
        made.tables.clear();
        made.cache = Some(CacheState::new(reason));
        Ok(made)
    }

    /// Makes sure that the caches have memory, and that a batch fits into them.
    pub(super) fn have_cache(&mut self, tables: &mut TableSet, plan: &LookupPlan) -> Result<()> {
        if self.tables.is_empty() {
            let loaded = self.load_cache(tables, plan);
            if loaded.is_err() {
                self.drop_rows(tables);
                return loaded;
            }
        }
        self.check_batch(tables, plan)?;
        self.make_room(tables, plan)
    }

    /// Allocates the caches and what their steps need. The tables without a cache are copied.
    fn load_cache(&mut self, tables: &mut TableSet, plan: &LookupPlan) -> Result<()> {
        let none = vec![0; tables.shapes.len()];
        self.tables = ResidentTable::all(&self.options, tables, Places::Cache(&none), |_, _| 0)?;
        let present = self.block.layout.tables.iter().map(|table| table.needs.keys);
        let keys: Vec<usize> =
            present.zip(&plan.tables).map(|(n, table)| n.max(table.keys.len())).collect();
        self.lay_out(&keys)?;
        let bytes =
            self.tables.iter().zip(&keys).map(|(table, keys)| table.form.row_bytes() * keys);
        let moves = Moves::new(&self.options, &self.tables, bytes.sum())?;
        if let Some(cache) = &mut self.cache {
            cache.moves = Some(moves);
        }
        let slots = match self.options.cache_rows {
            Some(rows) => vec![rows; keys.len()],
            None => self.share(tables, &keys)?,
        };
        let slots: Vec<usize> = slots
            .iter()
            .enumerate()
            .map(|(index, &slots)| slots.min(most_slots(tables, index)))
            .collect();
        // The memory of the tables without a cache is taken again.
        self.tables.clear();
        self.tables = ResidentTable::all(&self.options, tables, Places::Cache(&slots), |_, _| 0)?;
        self.check_room(tables)?;
        let parts = tables.shards.iter_mut().flat_map(|shard| &mut shard.tables);
        parts.for_each(|part| part.slabs.follow_rows());
        self.generation += 1;
        self.copy_in(tables)
    }

    /// Shares the free memory among the caches. Returns the number of slots of each table.
    fn share(&self, tables: &TableSet, keys: &[usize]) -> Result<Vec<usize>> {
        let free = free_bytes(&self.options)?;
        let kept = kept_free(&self.options, self.own_bytes());
        let of_tables = TABLE_BYTES * keys.len() as u64;
        let left = free.saturating_sub(kept + of_tables);
        let needs = self.tables.iter().zip(keys).enumerate().map(|(index, (table, &keys))| {
            let is_cached = ResidentTable::can_be_cached(tables, index);
            let rows: usize = tables.shards.iter().map(|s| s.tables[index].rows() as usize).sum();
            let rows = if is_cached { rows + rows / 4 + 4 * keys } else { 0 };
            (rows * table.form.row_bytes()) as u64
        });
        let shares = share_bytes(left, &needs.collect::<Vec<_>>());
        let slots = shares.iter().zip(&self.tables);
        Ok(slots
            .map(|(bytes, table)| (*bytes as usize / table.form.row_bytes()).min(MOST_SLOTS))
            .collect())
    }

    /// Checks that each shard has a slot for each of its keys in a batch.
    fn check_batch(&self, tables: &TableSet, plan: &LookupPlan) -> Result<()> {
        let ranges = tables.ranges(plan);
        for (index, table) in self.tables.iter().enumerate() {
            for (shard, places) in table.places.iter().enumerate() {
                let Some(slots) = places.cached_slots() else { continue };
                let keys = ranges[shard][index].len();
                if keys > slots {
                    let reason = format!(
                        "a batch has {keys} keys in one of its {} shards, and the memory of the \
                         GPU that is left for its rows holds {slots} there ({} bytes may be used, \
                         of which {} must stay free for the batches); use more memory of the GPU \
                         (`run.device_memory`), more memory of the host if the table spills \
                         (`run.spill`), a smaller `train.batch_size`, or train with \
                         `run.device = \"cpu\"`",
                        ranges.len(),
                        usable_bytes(&self.options),
                        kept_free(&self.options, self.own_bytes()),
                    );
                    return Err(Error::mismatch(tables.shapes[index].name(), reason));
                }
            }
        }
        Ok(())
    }
}

/// Returns the largest number of slots of a table. The rows with slots stay in the memory of the
/// host, so a table that spills has at most half as many slots as rows there.
fn most_slots(tables: &TableSet, index: usize) -> usize {
    let spills = tables.shards.iter().filter_map(|shard| shard.tables[index].spill.as_ref());
    let budget = spills.map(|spill| spill.budget_rows).min();
    budget.map_or(MOST_SLOTS, |rows| rows as usize / 2 * tables.shards.len())
}

/// Shares bytes among needs. A need below the level gets its bytes, and each other one the same
/// level. If all needs are met, each gets its part of the rest.
fn share_bytes(bytes: u64, needs: &[u64]) -> Vec<u64> {
    let all: u64 = needs.iter().sum();
    if all == 0 {
        return vec![0; needs.len()];
    }
    if all <= bytes {
        let part = |need: u64| (u128::from(bytes) * u128::from(need) / u128::from(all)) as u64;
        return needs.iter().map(|&need| part(need)).collect();
    }
    let mut sorted: Vec<u64> = needs.iter().copied().filter(|need| *need > 0).collect();
    sorted.sort_unstable();
    let (mut left, mut level) = (bytes, 0);
    for (met, need) in sorted.iter().enumerate() {
        level = left / (sorted.len() - met) as u64;
        if *need > level {
            break;
        }
        left -= need;
    }
    needs.iter().map(|&need| need.min(level)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_needs_are_met_and_large_ones_share_the_rest() {
        assert_eq!(share_bytes(100, &[10, 500, 0, 60]), [10, 45, 0, 45]);
        assert_eq!(share_bytes(100, &[10, 40]), [20, 80]);
        assert_eq!(share_bytes(100, &[0, 0]), [0, 0]);
        assert_eq!(share_bytes(0, &[5, 5]), [0, 0]);
        assert_eq!(share_bytes(9, &[3, 3, 4]), [3, 3, 3]);
        for total in 0..60 {
            let shares = share_bytes(total, &[7, 0, 31, 18]);
            assert!(shares.iter().sum::<u64>() <= total, "{total}: {shares:?}");
        }
    }
}
