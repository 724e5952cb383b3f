//! The benchmark `zillion bench embedding`: rows pulled and pushed per second, compared with the
//! limits of this machine's memory.
//!
//! Lookup plans (unique keys in the order of slots, as in training) are built before the
//! measurement, so the figures show only the work of the table. Keys are drawn uniformly or by
//! Zipf's law. The Zipf figures count unique rows, except for the figures `*_raw`, which count the
//! values of the batches.
//!
//! The figures `push_*` are for plans that were not pulled before. The figures `push_after_pull_*`
//! are for pushes like those of a training step. First the plan is pulled, so the places of its
//! rows are known. Then other data passes through the caches of all threads, like the data of a
//! model. Then the plan is pushed.
//!
//! With several threads, each figure of pulls and pushes is measured in alternating turns with one
//! thread and with all threads, on the same table. The figure `*_speedup` is the median of the
//! ratios of the turns. The turns are needed because other guests of the host use a part of the
//! memory bandwidth that changes from second to second.

mod check;
mod limits;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::{Workers, machine};
use zillion_embedding::{Rates, TableSet, Update};
use zillion_feature::random::mix64;
use zillion_feature::{
    Batch, FeatureKey, KeyColumn, LookupPlan, PlanScratch, RowBuffer, Schema, Step,
};
use zillion_rows::{DEFAULT_SHARDS, Dtype, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::args::BenchEmbeddingArgs;
use crate::print_outcome;
use crate::turns::{TURN, median};
use check::{Checked, Pushes};
use limits::Limits;
use zillion_console::compute_pool;

/// The number of values in a batch: 26 fields for 4,096 rows.
pub(crate) const BATCH_VALUES: usize = 26 * 4096;
/// The number of batches that are planned before the measurement. Each figure uses these plans in a
/// cycle.
const PLANS: usize = 64;
/// The gradient of each weight in all pushes.
const GRADIENT: f32 = 1e-3;
/// The number of bytes that pass through the caches of a thread between a pull and its push. It is
/// larger than the caches.
const OTHER_DATA_BYTES: usize = 64 << 20;
/// The number of words of this other data that a thread processes at a time.
const OTHER_PIECE: usize = 1 << 16;
/// The exponent of Zipf's law for the drawn keys.
const ZIPF: f64 = 1.05;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    dim: usize,
    dtype: Dtype,
    threads: usize,
    pull_uniform_mrows_s: f64,
    pull_zipf_mrows_s: f64,
    pull_zipf_raw_mrows_s: f64,
    push_uniform_mrows_s: f64,
    push_zipf_mrows_s: f64,
    push_zipf_raw_mrows_s: f64,
    push_after_pull_uniform_mrows_s: f64,
    push_after_pull_zipf_mrows_s: f64,
    /// The rates with all threads divided by the rates with one thread. The keys are the names of
    /// the rates with `_speedup` at the end. The map is empty if there is only one thread.
    #[serde(flatten)]
    speedups: BTreeMap<String, f64>,
    insert_mrows_s: f64,
    bytes_per_row: f64,
    /// The maximum number of bytes per row while the table grew from half of its rows to all of
    /// them.
    bytes_per_row_worst: f64,
    /// The maximum number of bytes per row while the table grew from a thousandth of its rows to
    /// all of them.
    bytes_per_row_worst_small: f64,
    limit_read_mrows_s: f64,
    limit_rmw_mrows_s: f64,
    own_cpus: f64,
    other_cpus: Option<f64>,
    peak_rss_mib: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    checked: Option<Checked>,
}

pub(crate) fn run(args: &BenchEmbeddingArgs, is_json: bool) -> Result<()> {
    let pools = Pools::new(args.threads)?;
    let workers = &pools.all;
    let before = CpuTimes::now();
    let duration = Duration::try_from_secs_f64(args.seconds)
        .with_context(|| format!("--seconds is {}; set it to a positive number", args.seconds))?;
    let mut bench = Bench::new(args, duration)?;

    eprintln!("inserting {} rows", args.rows);
    let insert = bench.insert(workers)?;
    let bytes_per_row = bench.bytes_per_row();
    eprintln!("measuring");
    let uniform = bench.plans(|draw| draw % args.rows);
    let zipf = Zipf::new(args.rows);
    let zipf = bench.plans(|draw| zipf.draw(draw));
    let pull_uniform = bench.pull(&pools, &uniform)?;
    let push_uniform = bench.push(&pools, &uniform)?;
    let pull_zipf = bench.pull(&pools, &zipf)?;
    let push_zipf = bench.push(&pools, &zipf)?;
    let step_uniform = bench.push_after_pull(&pools, &uniform)?;
    let step_zipf = bench.push_after_pull(&pools, &zipf)?;
    let use_of_cpus = CpuTimes::now().since(&before);
    let (worst, worst_small) = (bench.worst, bench.worst_small);
    let mut checked = None;
    if args.check {
        eprintln!("checking every row");
        let mut pushes = Pushes::of_filled(args.rows);
        pushes.add(&uniform, push_uniform.calls);
        pushes.add(&zipf, push_zipf.calls);
        pushes.add(&uniform, step_uniform.calls);
        pushes.add(&zipf, step_zipf.calls);
        checked = Some(bench.check(workers, &pushes)?);
    }
    drop(bench);

    let limits = Limits::probe(workers, u32::try_from(args.rows)?, duration)?;
    let speedups = [
        ("pull_uniform_speedup", pull_uniform.speedup),
        ("pull_zipf_speedup", pull_zipf.speedup),
        ("push_uniform_speedup", push_uniform.speedup),
        ("push_zipf_speedup", push_zipf.speedup),
        ("push_after_pull_uniform_speedup", step_uniform.speedup),
        ("push_after_pull_zipf_speedup", step_zipf.speedup),
        ("limit_read_speedup", limits.read.speedup),
        ("limit_rmw_speedup", limits.rmw.speedup),
    ]
    .into_iter();
    let outcome = Outcome {
        rows: args.rows,
        dim: args.dim,
        dtype: args.dtype,
        threads: args.threads.get(),
        pull_uniform_mrows_s: pull_uniform.unique,
        pull_zipf_mrows_s: pull_zipf.unique,
        pull_zipf_raw_mrows_s: pull_zipf.values,
        push_uniform_mrows_s: push_uniform.unique,
        push_zipf_mrows_s: push_zipf.unique,
        push_zipf_raw_mrows_s: push_zipf.values,
        push_after_pull_uniform_mrows_s: step_uniform.unique,
        push_after_pull_zipf_mrows_s: step_zipf.unique,
        speedups: speedups.filter_map(|(name, ratio)| Some((name.to_owned(), ratio?))).collect(),
        insert_mrows_s: insert,
        bytes_per_row,
        bytes_per_row_worst: worst,
        bytes_per_row_worst_small: worst_small,
        limit_read_mrows_s: limits.read.mrows_s,
        limit_rmw_mrows_s: limits.rmw.mrows_s,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
        peak_rss_mib: machine::peak_resident_memory().map(|b| b as f64 / f64::from(1 << 20)),
        checked,
    };
    print_outcome(&outcome, is_json)?;
    let Some(Checked { checked_rows, lost_rows, miscounted_rows, wrong_rows }) = checked else {
        return Ok(());
    };
    if lost_rows + miscounted_rows + wrong_rows > 0 {
        bail!(
            "the check failed: of {checked_rows} rows, {lost_rows} are lost, {miscounted_rows} have a \
             wrong count and {wrong_rows} have wrong weights"
        );
    }
    Ok(())
}

/// The pool that is measured. If it has several threads, there is also a pool with one thread for
/// comparison.
struct Pools {
    all: Arc<Workers>,
    one: Option<Arc<Workers>>,
}

impl Pools {
    fn new(threads: NonZeroUsize) -> Result<Self> {
        let is_one = threads == NonZeroUsize::MIN;
        let one = (!is_one).then(|| compute_pool(Some(NonZeroUsize::MIN))).transpose()?;
        Ok(Self { all: compute_pool(Some(threads))?, one })
    }
}

/// A measured rate, in millions per second.
struct Rate {
    unique: f64,
    values: f64,
    /// The rate with all threads divided by the rate with one thread. `None` if there is only one
    /// thread.
    speedup: Option<f64>,
    /// The total number of plans that both pools have processed. The plans are used in a cycle that
    /// starts with the first plan.
    calls: u64,
}

/// An amount of work, and the time of this work.
#[derive(Default)]
struct Work {
    unique: usize,
    values: usize,
    busy: Duration,
}

impl Work {
    fn add(&mut self, other: &Self) {
        self.unique += other.unique;
        self.values += other.values;
        self.busy += other.busy;
    }

    /// Returns the rate in millions per second for `of` units of work in the measured time.
    fn rate(&self, of: usize) -> f64 {
        of as f64 / self.busy.as_secs_f64() / 1e6
    }
}

/// A buffer with the same gradient for each weight in the rows of a plan.
struct Gradients(RowBuffer);

impl Gradients {
    /// Allocates a buffer that is large enough for each of the plans.
    fn new(stride: usize, plans: &[LookupPlan]) -> Self {
        let unique = plans.iter().map(|p| p.tables[0].keys.len()).max().unwrap_or(0);
        let mut gradients = RowBuffer::default();
        gradients.reshape([(unique, stride)].into_iter());
        gradients.tables[0].values.fill(GRADIENT);
        Self(gradients)
    }

    /// Returns the buffer after resizing it to the number of rows of a plan.
    fn resize(&mut self, plan: &LookupPlan) -> &RowBuffer {
        let table = &mut self.0.tables[0];
        let before = table.values.len();
        table.reshape(plan.tables[0].keys.len(), table.stride);
        // A smaller plan shortens the buffer. The values that are added again are zeros, so the
        // gradient is written to them.
        let kept = before.min(table.values.len());
        table.values[kept..].fill(GRADIENT);
        &self.0
    }
}

struct Bench {
    tables: TableSet,
    spec: TableSpec,
    planner: Planner,
    rows: u64,
    duration: Duration,
    step: u64,
    worst: f64,
    worst_small: f64,
}

impl Bench {
    fn new(args: &BenchEmbeddingArgs, duration: Duration) -> Result<Self> {
        let spec = TableSpec { dtype: args.dtype, ..spec(args.dim) };
        Ok(Self {
            tables: TableSet::new(vec![spec.clone()], DEFAULT_SHARDS)?,
            spec,
            planner: Planner::new()?,
            rows: args.rows,
            duration,
            step: 0,
            worst: 0.0,
            worst_small: 0.0,
        })
    }

    fn plans(&mut self, id: impl Fn(u64) -> u64) -> Vec<LookupPlan> {
        (0..PLANS)
            .map(|plan| {
                let first = (plan * BATCH_VALUES) as u64;
                self.planner.plan((first..first + BATCH_VALUES as u64).map(|i| id(mix64(i))))
            })
            .collect()
    }

    fn update(&mut self) -> Update {
        self.step += 1;
        Update { step: Step(self.step), rates: Rates { scale: 1.0 }, scale: 1.0 }
    }

    fn bytes_per_row(&self) -> f64 {
        let table = &self.tables.statistics()[0];
        table.total_bytes() as f64 / table.rows as f64
    }

    fn insert(&mut self, workers: &Workers) -> Result<f64> {
        let mut rows = RowBuffer::default();
        let mut busy = Duration::ZERO;
        let mut next = 0;
        while next < self.rows {
            let end = (next + BATCH_VALUES as u64).min(self.rows);
            let plan = self.planner.plan(next..end);
            rows.reshape(
                [(plan.tables[0].keys.len(), self.tables.layouts()[0].stride)].into_iter(),
            );
            rows.tables[0].values.fill(GRADIENT);
            let update = self.update();
            let began = Instant::now();
            self.tables.push(workers, &plan, &rows, update)?;
            busy += began.elapsed();
            next = end;
            if next * 1000 >= self.rows {
                self.worst_small = self.worst_small.max(self.bytes_per_row());
            }
            if next * 2 >= self.rows {
                self.worst = self.worst.max(self.bytes_per_row());
            }
        }
        Ok(self.rows as f64 / busy.as_secs_f64() / 1e6)
    }

    fn pull(&mut self, pools: &Pools, plans: &[LookupPlan]) -> Result<Rate> {
        let mut rows = RowBuffer::default();
        self.measure(pools, plans, |tables, workers, plan, _| {
            let began = Instant::now();
            tables.pull(workers, plan, false, &mut rows)?;
            Ok(began.elapsed())
        })
    }

    fn push(&mut self, pools: &Pools, plans: &[LookupPlan]) -> Result<Rate> {
        let mut gradients = Gradients::new(self.tables.layouts()[0].stride, plans);
        self.measure(pools, plans, |tables, workers, plan, update| {
            let gradients = gradients.resize(plan);
            let began = Instant::now();
            tables.push(workers, plan, gradients, update)?;
            Ok(began.elapsed())
        })
    }

    /// Measures pushes, each after a pull of the same plan. Only the pushes are timed.
    fn push_after_pull(&mut self, pools: &Pools, plans: &[LookupPlan]) -> Result<Rate> {
        let mut gradients = Gradients::new(self.tables.layouts()[0].stride, plans);
        let mut rows = RowBuffer::default();
        let words = OTHER_DATA_BYTES / size_of::<u64>() * pools.all.threads();
        let mut other_data = vec![0u64; words];
        self.measure(pools, plans, |tables, workers, plan, update| {
            tables.pull(workers, plan, false, &mut rows)?;
            workers.for_each_block(&mut other_data, OTHER_PIECE, |_, piece| {
                piece.iter_mut().for_each(|word| *word += 1);
            });
            let gradients = gradients.resize(plan);
            let began = Instant::now();
            tables.push(workers, plan, gradients, update)?;
            Ok(began.elapsed())
        })
    }

    /// Calls `work` with one plan after another, and adds the times that it returns for the pool of
    /// all threads. Stops when the sum reaches the duration of a figure. If a pool with one thread
    /// exists, both pools take alternating turns of the same length.
    fn measure(
        &mut self,
        pools: &Pools,
        plans: &[LookupPlan],
        mut work: impl FnMut(&mut TableSet, &Workers, &LookupPlan, Update) -> Result<Duration>,
    ) -> Result<Rate> {
        let duration = self.duration;
        let length = TURN.min(duration);
        let mut calls = 0;
        let mut turn = |workers: &Workers, length: Duration| -> Result<Work> {
            let mut done = Work::default();
            loop {
                let plan = &plans[calls as usize % plans.len()];
                let update = self.update();
                let busy = work(&mut self.tables, workers, plan, update)?;
                calls += 1;
                done.add(&Work { unique: plan.tables[0].keys.len(), values: plan.rows, busy });
                if done.busy >= length {
                    return Ok(done);
                }
            }
        };
        // The first turn warms the buffers. Its time is not counted.
        turn(&pools.all, Duration::ZERO)?;
        let (mut sum, mut speedups) = (Work::default(), Vec::new());
        loop {
            let all = turn(&pools.all, length)?;
            if let Some(one) = &pools.one {
                let one = turn(one, length)?;
                speedups.push(all.rate(all.unique) / one.rate(one.unique));
            }
            sum.add(&all);
            if sum.busy >= duration {
                break;
            }
        }
        Ok(Rate {
            unique: sum.rate(sum.unique),
            values: sum.rate(sum.values),
            speedup: pools.one.as_ref().map(|_| median(&mut speedups)),
            calls,
        })
    }

    /// Checks that all rows have the result of the pushes that were made.
    fn check(&mut self, workers: &Workers, pushes: &Pushes) -> Result<Checked> {
        let Self { tables, spec, planner, .. } = self;
        pushes.check(workers, tables, (spec, GRADIENT), BATCH_VALUES, |ids| planner.plan(ids))
    }
}

/// A maker of lookup plans for batches with one column of ids.
pub(crate) struct Planner {
    schema: Schema,
    scratch: PlanScratch,
}

impl Planner {
    pub(crate) fn new() -> Result<Self> {
        let job: toml::Table = "[features.ids]\nkind = 'id'\n[labels.y]".parse()?;
        Ok(Self { schema: Schema::from_job(&job.into())?, scratch: PlanScratch::default() })
    }

    pub(crate) fn plan(&mut self, ids: impl Iterator<Item = u64>) -> LookupPlan {
        let keys: Vec<FeatureKey> = ids.map(FeatureKey::from_u64).collect();
        let mut batch = Batch::empty(&self.schema);
        batch.rows = keys.len();
        batch.sparse[0] = KeyColumn::single(keys);
        LookupPlan::build(&batch, &self.schema, &mut self.scratch)
    }
}

/// Returns the specification of the table that several benchmarks fill.
pub(crate) fn spec(dim: usize) -> TableSpec {
    let segment = SegmentSpec::new(
        "vector",
        dim,
        InitializerSpec::Normal { mean: 0.0, std: 0.01 },
        OptimizerSpec::rowwise_adagrad(0.02),
    );
    TableSpec { seed: 1, ..TableSpec::new("ids", vec![segment]) }
}

/// A source of ids that follow Zipf's law. It inverts the continuous distribution; the difference
/// from the discrete distribution does not matter for these measurements.
#[derive(Debug)]
pub(crate) struct Zipf {
    rows: u64,
    total: f64,
}

impl Zipf {
    pub(crate) fn new(rows: u64) -> Self {
        Self { rows, total: Self::mass(rows as f64 + 1.0) }
    }

    /// Returns the integral of t^-s for t from 1 to `x`, where s is [`ZIPF`].
    fn mass(x: f64) -> f64 {
        (1.0 - x.powf(1.0 - ZIPF)) / (ZIPF - 1.0)
    }

    pub(crate) fn draw(&self, random: u64) -> u64 {
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (1.0 - share * self.total * (ZIPF - 1.0)).powf(-1.0 / (ZIPF - 1.0));
        (rank as u64 - 1).min(self.rows - 1)
    }
}
