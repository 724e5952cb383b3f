//! One of the two sets that go through the same history, and the checks that must hold at any time.

use std::num::NonZeroUsize;
use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_embedding::testing::checkpoint_oracle;
use zillion_embedding::{Counters, SpillHome, TableSet, TableStatistics};
use zillion_feature::TableId;
use zillion_rows::layer::{Layer, LayerManifest, Unthrottled, verify_layer};
use zillion_rows::{ByteSize, MAX_PART_ROWS, TableParts, TableSpec};

/// The settings with which the sets of one side are created.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) specs: Vec<TableSpec>,
    /// The limit of the memory of all tables together; `None` if there is no limit.
    pub(crate) shared: Option<ByteSize>,
    /// The bytes of memory in each shard for the rows of each table; `None` for a table that does
    /// not spill.
    pub(crate) spill: Vec<Option<u64>>,
    pub(crate) home: Option<SpillHome>,
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) set: TableSet,
    pub(crate) workers: Workers,
    setting: Setting,
    /// The number of rows and the counters of each table at the time when [`Side::begin`] was
    /// called.
    since: Vec<(u64, Counters)>,
}

/// The number of ended epochs for which tables keep lists of changes.
pub(crate) const EPOCHS: usize = 3;

impl Side {
    pub(crate) fn new(setting: Setting, threads: usize, shards: usize) -> Self {
        let workers = Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap();
        let set = Self::empty(&setting, &workers, shards);
        let mut side = Self { set, workers, setting, since: Vec::new() };
        side.begin();
        side
    }

    fn empty(setting: &Setting, workers: &Workers, shards: usize) -> TableSet {
        let count = NonZeroUsize::new(shards).unwrap();
        let mut set = TableSet::new(setting.specs.clone(), count).unwrap();
        set.limit_bytes(setting.shared).unwrap();
        if let Some(home) = &setting.home {
            for (table, memory) in setting.spill.iter().enumerate() {
                if let Some(memory) = memory {
                    set.spill(TableId(table as u16), memory * shards as u64, home).unwrap();
                }
            }
        }
        set.track_changes(workers, EPOCHS).unwrap();
        set
    }

    /// Restores a checkpoint. If `shards` is given, it is restored in a new set with this number of
    /// shards, else in this set.
    pub(crate) fn restore(&mut self, shards: Option<usize>, folder: &Path, parts: &[TableParts]) {
        if let Some(shards) = shards {
            self.set = Self::empty(&self.setting, &self.workers, shards);
        }
        self.set.restore(&self.workers, folder, parts).unwrap();
        self.begin();
    }

    /// Returns the statistics of the same tables before they have any row.
    pub(crate) fn fresh(&self) -> Vec<TableStatistics> {
        let shards = self.set.map().shards();
        Self::empty(&self.setting, &self.workers, shards).statistics()
    }

    /// Records the numbers of rows and the counters. Later checks count from these values.
    pub(crate) fn begin(&mut self) {
        self.since = self.set.statistics().iter().map(|s| (s.rows, s.counters)).collect();
    }

    pub(crate) fn checkpoint(&self, folder: &Path) -> Vec<TableParts> {
        checkpoint_oracle(&self.set, &self.workers, folder, &files(), MAX_PART_ROWS).unwrap()
    }

    pub(crate) fn base(&self, folder: &Path) -> LayerManifest {
        self.set.write_base(&self.workers, &files(), folder, &mut Unthrottled).unwrap()
    }

    pub(crate) fn delta(&self, since: u32, folder: &Path) -> Option<LayerManifest> {
        let delta = self.set.write_delta(&self.workers, since, &files(), folder, &mut Unthrottled);
        let delta = delta.unwrap();
        assert_eq!(delta.is_some(), self.set.knows_changes_since(since));
        delta
    }

    pub(crate) fn open(&self, folder: &Path, manifest: &LayerManifest) -> Layer {
        verify_layer(folder, manifest, self.set.layouts(), &mut Unthrottled).unwrap();
        Layer::open(folder, manifest, self.set.layouts()).unwrap()
    }

    /// Checks that no table exceeds its limit and that the counters add up.
    pub(crate) fn check(&self) {
        let mut total = 0;
        let all = self.set.statistics();
        for ((spec, now), since) in self.setting.specs.iter().zip(&all).zip(&self.since) {
            self.check_table(spec, now, since);
            total += memory(now);
        }
        let is_small = self.setting.home.is_none();
        if let Some(ByteSize(limit)) = self.setting.shared.filter(|_| is_small) {
            assert!(total <= limit, "all tables have {total} bytes of {limit}");
        }
    }

    fn check_table(&self, spec: &TableSpec, now: &TableStatistics, since: &(u64, Counters)) {
        let (rows, before) = since;
        let counted = &now.counters;
        let name = &now.table;
        let made = counted.created - before.created;
        let gone = counted.evicted - before.evicted;
        assert_eq!(now.rows + gone, rows + made, "rows of {name}: {now:?}");
        assert!(counted.displaced <= counted.evicted, "{now:?}");
        assert!(counted.admitted <= counted.created && counted.missing <= counted.pulled);
        if let Some(most) = spec.most_rows() {
            assert!(now.rows <= most, "{name} has {} rows of {most}", now.rows);
        }
        if let Some(spill) = now.spill {
            assert_eq!(spill.hot_rows + spill.cold_rows, now.rows, "{name}: {spill:?}");
            assert!(spill.hot_rows <= spill.budget_rows, "{name}: {spill:?}");
        } else if let Some(ByteSize(limit)) = spec.max_bytes {
            let bytes = memory(now);
            assert!(bytes <= limit, "{name} has {bytes} bytes of {limit}: {now:?}");
        }
    }
}

/// Returns the bytes to which limits apply. These are all bytes without the lists of changes and
/// without the old rows that a checkpoint keeps while it is written.
pub(crate) fn memory(table: &TableStatistics) -> u64 {
    table.total_bytes() - table.change_bytes - table.snapshot_bytes
}

/// Returns a writer of files that does not sync them.
pub(crate) fn files() -> Files {
    Files::new().scratch()
}
