//! The benchmark `zillion bench spill`: a table that is larger than its memory. Each batch of the
//! stream is different.
//!
//! First, the table is filled. Then batches are drawn by Zipf's law, planned, announced, pulled and
//! pushed; all of this is timed. Each push adds the same number to all weights of its rows, so the
//! correct values of a row follow from the number of batches that contain it. At the end, all rows
//! are looked up and compared with these values.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::{Workers, machine};
use zillion_embedding::{Rates, SpillHome, SpillStatistics, TableSet, TableStatistics, Update};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::{DEFAULT_SHARDS, InitializerSpec, OptimizerSpec, TableSpec};

use crate::args::BenchSpillArgs;
use crate::embedding::{self, BATCH_VALUES, Planner, Zipf};
use crate::print_outcome;
use zillion_console::{compute_pool, durable_files};

/// The amount by which a push changes each weight. This amount is a power of two, so that sums are
/// exact.
const RATE: f32 = 1.0 / 4096.0;
const MIB: f64 = (1u64 << 20) as f64;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    dim: usize,
    threads: usize,
    memory_share: f64,
    ahead: usize,
    /// Whether reads of the file bypass the page cache.
    direct: bool,
    /// The rate of pulled and pushed values of batches, in millions per second. `unique_mrows_s` is
    /// the same rate for unique rows.
    values_mrows_s: f64,
    unique_mrows_s: f64,
    fill_mrows_s: f64,
    seconds: f64,
    batches: u64,
    /// The share of the unique rows that were in memory when they were needed.
    hit_rate_unique: f64,
    hit_rate_values: f64,
    /// The share of the rows on disk for which reading started before they were needed.
    read_ahead: f64,
    brought_in: u64,
    spilled: u64,
    compacted: u64,
    disk_reads: u64,
    disk_reads_s: f64,
    disk_read_mib: f64,
    disk_writes: u64,
    disk_written_mib: f64,
    /// The number of rows in memory at the end of the measured time.
    hot_rows: u64,
    cold_rows: u64,
    budget_mib: f64,
    /// The maximum size of the reserved slabs over all batches.
    rows_mib: f64,
    index_mib: f64,
    buffers_mib: f64,
    total_mib: f64,
    file_mib: f64,
    live_mib: f64,
    /// The number of rows that were checked at the end. `lost_rows` and `wrong_rows` are the
    /// numbers of missing rows and of wrong rows among them.
    checked_rows: u64,
    lost_rows: u64,
    wrong_rows: u64,
    check_seconds: f64,
    own_cpus: f64,
    other_cpus: Option<f64>,
    peak_rss_mib: Option<f64>,
}

pub(crate) fn run(args: &BenchSpillArgs, is_json: bool) -> Result<()> {
    if !(args.memory_share > 0.0 && args.memory_share <= 1.0) {
        bail!("--memory-share is {}; set it above 0 and at most 1", args.memory_share);
    }
    let workers = compute_pool(Some(args.threads))?;
    let home = SpillHome::open(&durable_files()?, &args.folder)?;
    let mut bench = Bench::new(args, &home)?;
    let spill = bench.spill();
    let direct = spill.cached_files == 0;
    if !direct {
        eprintln!(
            "warning: this file system cannot read past the page cache, so the disk is not measured"
        );
    }
    eprintln!("inserting {} rows into {:.0} MiB", args.rows, spill.budget_bytes as f64 / MIB);
    let fill = bench.fill(&workers)?;
    eprintln!("warming up for {} s", args.warm_up);
    bench.stream(&workers, args.warm_up)?;
    eprintln!("measuring for {} s", args.seconds);
    let (before, cpus) = (bench.spill(), CpuTimes::now());
    let measured = bench.stream(&workers, args.seconds)?;
    let use_of_cpus = CpuTimes::now().since(&cpus);
    let (after, table) = (bench.spill(), bench.statistics());
    eprintln!("checking every row");
    let began = Instant::now();
    let (checked, lost, wrong) = bench.check(&workers)?;

    let brought_in = after.brought_in - before.brought_in;
    let seconds = measured.busy.as_secs_f64();
    let reads = after.reads - before.reads;
    let outcome = Outcome {
        rows: args.rows,
        dim: args.dim,
        threads: args.threads.get(),
        memory_share: args.memory_share,
        ahead: args.ahead.get(),
        direct,
        values_mrows_s: measured.values as f64 / seconds / 1e6,
        unique_mrows_s: measured.unique as f64 / seconds / 1e6,
        fill_mrows_s: fill,
        seconds,
        batches: measured.batches,
        hit_rate_unique: 1.0 - brought_in as f64 / measured.unique as f64,
        hit_rate_values: 1.0 - brought_in as f64 / measured.values as f64,
        read_ahead: (after.ahead - before.ahead) as f64 / brought_in.max(1) as f64,
        brought_in,
        spilled: after.spilled - before.spilled,
        compacted: after.compacted - before.compacted,
        disk_reads: reads,
        disk_reads_s: reads as f64 / seconds,
        disk_read_mib: (after.read_bytes - before.read_bytes) as f64 / MIB,
        disk_writes: after.writes - before.writes,
        disk_written_mib: (after.written_bytes - before.written_bytes) as f64 / MIB,
        hot_rows: after.hot_rows,
        cold_rows: after.cold_rows,
        budget_mib: after.budget_bytes as f64 / MIB,
        rows_mib: bench.largest as f64 / MIB,
        index_mib: table.index_bytes as f64 / MIB,
        buffers_mib: after.buffer_bytes as f64 / MIB,
        total_mib: table.total_bytes() as f64 / MIB,
        file_mib: after.disk_bytes as f64 / MIB,
        live_mib: after.live_bytes as f64 / MIB,
        checked_rows: checked,
        lost_rows: lost,
        wrong_rows: wrong,
        check_seconds: began.elapsed().as_secs_f64(),
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
        peak_rss_mib: machine::peak_resident_memory().map(|b| b as f64 / MIB),
    };
    print_outcome(&outcome, is_json)?;
    if lost + wrong > 0 {
        bail!("the check failed: {lost} rows are lost and {wrong} have wrong weights");
    }
    Ok(())
}

/// The figures of one part of the stream.
#[derive(Default)]
struct Measured {
    busy: Duration,
    batches: u64,
    values: u64,
    unique: u64,
}

struct Bench {
    tables: TableSet,
    planner: Planner,
    zipf: Zipf,
    rows: u64,
    ahead: usize,
    step: u64,
    /// The number of batches of the stream that have been planned.
    drawn: u64,
    /// The plans that have been announced but not looked up yet.
    announced: Vec<LookupPlan>,
    gradients: RowBuffer,
    pulled: RowBuffer,
    /// The maximum number of bytes of the slabs so far.
    largest: u64,
}

impl Bench {
    fn new(args: &BenchSpillArgs, home: &SpillHome) -> Result<Self> {
        let spec = spec(args.dim);
        // The memory of the rows in a table without a limit, without the memory of the index.
        let whole = spec.memory(args.rows, DEFAULT_SHARDS.get()) - spec.index_memory(args.rows);
        let mut tables = TableSet::new(vec![spec], DEFAULT_SHARDS)?;
        tables.spill(TableId(0), (whole as f64 * args.memory_share) as u64, home)?;
        Ok(Self {
            tables,
            planner: Planner::new()?,
            zipf: Zipf::new(args.rows),
            rows: args.rows,
            ahead: args.ahead.get(),
            step: 0,
            drawn: 0,
            announced: Vec::new(),
            gradients: RowBuffer::default(),
            pulled: RowBuffer::default(),
            largest: 0,
        })
    }

    fn statistics(&self) -> TableStatistics {
        self.tables.statistics().swap_remove(0)
    }

    fn spill(&self) -> SpillStatistics {
        self.statistics().spill.unwrap_or_default()
    }

    fn push(&mut self, workers: &Workers, plan: &LookupPlan) -> Result<()> {
        let stride = self.tables.layouts()[0].stride;
        self.gradients.reshape([(plan.tables[0].keys.len(), stride)].into_iter());
        self.gradients.tables[0].values.fill(1.0);
        self.step += 1;
        let update = Update { step: Step(self.step), rates: Rates { scale: 1.0 }, scale: 1.0 };
        self.tables.push(workers, plan, &self.gradients, update)?;
        let table = self.statistics();
        self.largest =
            self.largest.max(table.payload_bytes + table.state_bytes + table.slack_bytes);
        Ok(())
    }

    /// Creates all rows. Returns the rate in millions of rows per second.
    fn fill(&mut self, workers: &Workers) -> Result<f64> {
        let began = Instant::now();
        for first in (0..self.rows).step_by(BATCH_VALUES) {
            let end = (first + BATCH_VALUES as u64).min(self.rows);
            let plan = self.planner.plan(first..end);
            self.push(workers, &plan)?;
        }
        Ok(self.rows as f64 / began.elapsed().as_secs_f64() / 1e6)
    }

    /// Returns the ids of the batch with the number `batch` in the stream.
    fn ids(zipf: &Zipf, batch: u64) -> impl Iterator<Item = u64> {
        let first = batch * BATCH_VALUES as u64;
        (first..first + BATCH_VALUES as u64).map(|i| zipf.draw(mix64(i)))
    }

    /// Makes the next plans of the stream, announces them and returns them.
    fn announce(&mut self, workers: &Workers) -> Result<Vec<LookupPlan>> {
        let mut plans = Vec::with_capacity(self.ahead);
        for _ in 0..self.ahead {
            plans.push(self.planner.plan(Self::ids(&self.zipf, self.drawn)));
            self.drawn += 1;
        }
        self.tables.look_ahead(workers, &plans.iter().collect::<Vec<_>>())?;
        Ok(plans)
    }

    fn stream(&mut self, workers: &Workers, seconds: f64) -> Result<Measured> {
        let mut measured = Measured::default();
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < seconds {
            let next = self.announce(workers)?;
            for plan in std::mem::replace(&mut self.announced, next) {
                self.tables.pull(workers, &plan, false, &mut self.pulled)?;
                self.push(workers, &plan)?;
                measured.batches += 1;
                measured.values += plan.rows as u64;
                measured.unique += plan.tables[0].keys.len() as u64;
            }
        }
        measured.busy = began.elapsed();
        Ok(measured)
    }

    /// Looks up all rows in the order of their keys. Returns the number of all rows, the number of
    /// missing rows, and the number of rows whose weights differ from the sum of their pushes.
    fn check(&mut self, workers: &Workers) -> Result<(u64, u64, u64)> {
        // A row was pushed once while the table was filled. It was also pushed once for each batch
        // that contains the row and that was pushed, and not only announced.
        let mut pushes = vec![1u32; self.rows as usize];
        for batch in 0..self.drawn - self.announced.len() as u64 {
            let mut ids: Vec<u64> = Self::ids(&self.zipf, batch).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.iter().for_each(|&id| pushes[id as usize] += 1);
        }
        let mut keys: Vec<(FeatureKey, u64)> =
            (0..self.rows).map(|id| (FeatureKey::from_u64(id), id)).collect();
        keys.sort_unstable();
        let (mut lost, mut wrong) = (0, 0);
        let mut rows = RowBuffer::default();
        for piece in keys.chunks(BATCH_VALUES) {
            let plan = self.planner.plan(piece.iter().map(|&(_, id)| id));
            lost += self.tables.lookup(workers, &plan, &mut rows)?.total_missing();
            let width = self.tables.layouts()[0].width();
            for (i, key) in plan.tables[0].keys.iter().enumerate() {
                let at = piece.binary_search_by_key(key, |&(key, _)| key);
                let expected = at.map(|at| -(pushes[piece[at].1 as usize] as f32) * RATE);
                let row = &rows.tables[0].row(i)[..width];
                wrong += u64::from(!row.iter().all(|w| Ok(*w) == expected));
            }
        }
        Ok((self.rows, lost, wrong))
    }
}

/// Returns the table of the other benchmarks with another optimizer, whose sums are exact.
fn spec(dim: usize) -> TableSpec {
    let mut spec = embedding::spec(dim);
    spec.segments[0].initializer = InitializerSpec::Constant { value: 0.0 };
    spec.segments[0].optimizer = OptimizerSpec::Sgd { lr: RATE };
    spec
}
