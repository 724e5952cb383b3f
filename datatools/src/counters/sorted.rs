//! The counters of rows that are not sorted by time. The rows are sorted in memory, and their
//! counters are kept until the second pass over the files writes them.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::FeatureKey;
use zillion_reader::Result;

use super::{CounterSpec, Counts, Facts};
use crate::history::column::Moments;
use crate::parquet_files::find_column;
use crate::rewrite::RowFiles;

/// The number of rows between two checks of the memory.
const CHECKED: usize = 65_536;

/// The counters of all rows, in the order of the files.
pub(super) struct SortedCounts {
    counters: usize,
    counts: Vec<Option<Counts>>,
    bases: Vec<f64>,
    /// The number of rows whose counters were taken.
    taken: usize,
    /// The number of distinct ids of each column.
    pub(super) ids: Vec<u64>,
}

impl SortedCounts {
    /// Reads all rows, and computes their counters in the order of their times.
    pub(super) fn compute(
        spec: &CounterSpec,
        rows: &RowFiles,
        workers: &Arc<Workers>,
        seen: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let mut all = Facts { owners: vec![Vec::new(); spec.by.len()], ..Facts::default() };
        let mut moments = Moments::in_order(&spec.time, spec.date_order);
        let mut recent = None;
        rows.each_batch(workers, seen, |batch, path| {
            let facts = Facts::read(spec, &mut moments, batch, path)?;
            all.times.extend(facts.times);
            all.labels.extend(facts.labels);
            for (all, owners) in all.owners.iter_mut().zip(facts.owners) {
                all.extend(owners);
            }
            let recent = match &mut recent {
                Some(recent) => recent,
                None => {
                    let time = find_column(batch, &spec.time, "time", path)?.data_type();
                    recent.insert(spec.begin(time)?)
                }
            };
            spec.check_memory(recent, row_bytes(spec).saturating_mul(all.times.len() as u64))
        })?;
        let counters = spec.counters();
        let rows = all.times.len();
        let mut counts = vec![None; rows * counters];
        let mut bases = vec![0.0; rows];
        let mut order: Vec<(i64, usize)> =
            (0..rows).filter_map(|row| Some((all.times[row]?, row))).collect();
        order.sort_unstable();
        let mut ids = Vec::new();
        if let Some(mut recent) = recent {
            for (at, &(time, row)) in order.iter().enumerate() {
                recent.advance(time);
                bases[row] = recent.base_rate();
                let found = recent.count(all.keys(row), time, all.labels[row]);
                counts[row * counters..(row + 1) * counters].copy_from_slice(&found);
                if at % CHECKED == 0 {
                    spec.check_memory(&recent, row_bytes(spec).saturating_mul(rows as u64))?;
                }
            }
            ids = recent.ids();
        }
        Ok(Self { counters, counts, bases, taken: 0, ids })
    }

    /// Returns the base rate and the counters of the next row, in the order of the files.
    pub(super) fn next(&mut self) -> (f64, &[Option<Counts>]) {
        let row = self.taken;
        self.taken += 1;
        let counts = self.counts.get(row * self.counters..(row + 1) * self.counters);
        (self.bases.get(row).copied().unwrap_or_default(), counts.unwrap_or_default())
    }
}

/// Returns the most bytes that a row takes: its facts in vectors that grow, its place in the order,
/// and its counters.
fn row_bytes(spec: &CounterSpec) -> u64 {
    let key = size_of::<Option<FeatureKey>>() * spec.by.len();
    let facts = 3 * (size_of::<Option<i64>>() + size_of::<Option<bool>>() + key);
    let counts = size_of::<Option<Counts>>() * spec.counters();
    (facts + size_of::<(i64, usize)>() + size_of::<f64>() + counts) as u64
}
