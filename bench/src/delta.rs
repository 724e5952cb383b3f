//! The benchmark `zillion bench delta`: the cost of writing the rows of a version after a small
//! share of the rows of a large table has changed.
//!
//! The changed keys are drawn uniformly from a table that was filled in another order, so each row
//! is a cache miss, as in training. The time of a layer includes finding, copying, hashing, writing
//! and syncing its rows.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_device::{Files, Workers, machine};
use zillion_embedding::{Rates, TableSet, Update};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, RowBuffer, Step};
use zillion_rows::DEFAULT_SHARDS;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{Layer, LayerManifest, Unthrottled, difference};

use crate::args::BenchDeltaArgs;
use crate::embedding::{BATCH_VALUES, spec};
use crate::print_outcome;
use zillion_console::{compute_pool, durable_files};

/// The numbers of keys to draw, in thousandths of the number of rows in the table. Some keys are
/// drawn twice.
const SHARES: [u64; 3] = [1, 10, 100];

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    dim: usize,
    threads: NonZeroUsize,
    base: Written,
    deltas: Vec<Changed>,
    /// The figures of writing the last delta again, this time by a comparison of two bases.
    difference: Written,
    peak_rss_mib: Option<f64>,
}

#[derive(Serialize)]
struct Changed {
    /// The rate of the pushes that changed the rows, in millions of rows per second. The time
    /// includes the listing of the changed keys.
    push_mrows_s: f64,
    /// The size of the lists of changed keys, in bytes.
    listed_bytes: u64,
    delta: Written,
}

#[derive(Serialize)]
struct Written {
    rows: u64,
    seconds: f64,
    mrows_s: f64,
    bytes: u64,
}

pub(crate) fn run(args: &BenchDeltaArgs, is_json: bool) -> Result<()> {
    let workers = compute_pool(Some(args.threads))?;
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let mut bench = Bench {
        tables: TableSet::new(vec![spec(args.dim)], DEFAULT_SHARDS)?,
        workers: &workers,
        files: durable_files()?,
        folder: folder.path(),
        step: 0,
    };

    eprintln!("inserting {} rows", args.rows);
    bench.push(0..args.rows)?;
    bench.tables.track_changes(&workers, SHARES.len())?;
    eprintln!("writing all rows");
    let (mut was, base) = bench.write(|b, folder| b.base(folder))?;
    bench.tables.advance_dirty_epoch();
    let mut deltas = Vec::new();
    for (number, share) in (1..).zip(SHARES) {
        let since = bench.tables.advance_dirty_epoch();
        if number == SHARES.len() {
            was = bench.write(|b, folder| b.base(folder))?.0;
        }
        let changed = args.rows * share / 1000;
        let first = number as u64 * args.rows;
        let rate = bench.push((first..first + changed).map(|i| mix64(i) % args.rows))?;
        let listed_bytes = bench.tables.statistics()[0].change_bytes;
        eprintln!("writing the changes of {changed} pushes");
        let (_, delta) = bench.write(|b, folder| b.delta(since, folder))?;
        deltas.push(Changed { push_mrows_s: rate, listed_bytes, delta });
    }
    let (now, _) = bench.write(|b, folder| b.base(folder))?;
    eprintln!("comparing all rows");
    let (_, difference) = bench.write(|b, folder| b.difference(&was, &now, folder))?;
    let outcome = Outcome {
        rows: args.rows,
        dim: args.dim,
        threads: args.threads,
        base,
        deltas,
        difference,
        peak_rss_mib: machine::peak_resident_memory().map(|b| b as f64 / f64::from(1 << 20)),
    };
    print_outcome(&outcome, is_json)
}

struct Bench<'a> {
    tables: TableSet,
    workers: &'a Workers,
    files: Files,
    folder: &'a Path,
    step: u64,
}

impl Bench<'_> {
    /// Pushes ids in batches. Returns the rate in millions of unique rows per second, without the
    /// time for building plans.
    fn push(&mut self, ids: impl Iterator<Item = u64>) -> Result<f64> {
        let mut ids = ids.peekable();
        let stride = self.tables.layouts()[0].stride;
        let (mut rows, mut seconds) = (0, 0.0);
        while ids.peek().is_some() {
            let keys: Vec<FeatureKey> =
                ids.by_ref().take(BATCH_VALUES).map(FeatureKey::from_u64).collect();
            let plan = plan_of(&[keys]);
            let unique = plan.tables[0].keys.len();
            let mut gradients = RowBuffer::default();
            gradients.reshape([(unique, stride)].into_iter());
            gradients.tables[0].values.fill(1e-3);
            self.step += 1;
            let rates = Rates { scale: 1.0 };
            let update = Update { step: Step(self.step), rates, scale: 1.0 };
            let began = Instant::now();
            self.tables.push(self.workers, &plan, &gradients, update)?;
            seconds += began.elapsed().as_secs_f64();
            rows += unique;
        }
        Ok(rows as f64 / seconds / 1e6)
    }

    fn base(&self, folder: &Path) -> Result<LayerManifest> {
        Ok(self.tables.write_base(self.workers, &self.files, folder, &mut Unthrottled)?)
    }

    fn delta(&self, since: u32, folder: &Path) -> Result<LayerManifest> {
        let delta =
            self.tables.write_delta(self.workers, since, &self.files, folder, &mut Unthrottled)?;
        delta.context(
            "the list of changes overflowed, because it holds at most a million keys; lower --rows",
        )
    }

    fn difference(&self, was: &Layer, now: &Layer, folder: &Path) -> Result<LayerManifest> {
        let layouts = self.tables.layouts();
        Ok(difference(&self.files, folder, layouts, &[was], now, &mut Unthrottled)?)
    }

    /// Measures the writing of a layer. `write` receives a new folder, because an existing file
    /// would not be written again. The folder is removed afterwards, but the returned layer keeps
    /// its files mapped.
    fn write(
        &self,
        write: impl FnOnce(&Self, &Path) -> Result<LayerManifest>,
    ) -> Result<(Layer, Written)> {
        let folder = tempfile::tempdir_in(self.folder)?;
        let began = Instant::now();
        let manifest = write(self, folder.path())?;
        let seconds = began.elapsed().as_secs_f64();
        let rows = manifest.rows();
        let bytes = manifest.files().map(|file| file.bytes).sum();
        let layer = Layer::open(folder.path(), &manifest, self.tables.layouts())?;
        Ok((layer, Written { rows, seconds, mrows_s: rows as f64 / seconds / 1e6, bytes }))
    }
}
