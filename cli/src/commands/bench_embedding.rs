//! `zillion bench embedding`: rows pulled and pushed a second, beside what this machine's memory gives.
//!
//! Plans (unique keys in slot order, as training makes them) are built before the clock runs: the
//! figures are those of the table. A key of the table is drawn uniformly, or by Zipf's law; the Zipf
//! figures count unique rows, and `*_raw` the values of the batch that they stand for.
//!
//! `push_*` push plans that nobody has pulled. `push_after_pull_*` push as a training step does: the plan has been
//! pulled, so that its rows are known, and then other data has gone through the caches, as a model's would.

mod check;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::probe::RowProbe;
use zillion_device::{Workers, machine};
use zillion_embedding::{
    Admission, DEFAULT_SHARDS, Dtype, Eviction, InitializerSpec, OptimizerSpec, Rates, SegmentSpec,
    TableSet, TableSpec, Unknown, Update,
};
use zillion_feature::random::mix64;
use zillion_feature::{
    Batch, FeatureKey, KeyColumn, LookupPlan, PlanScratch, RowBuffer, Schema, Step,
};

use super::{print_json, workers};
use crate::args::BenchEmbeddingArgs;
use check::{Checked, Pushes};

/// Values of a batch: what 26 fields of 4,096 rows come to.
pub(super) const BATCH_VALUES: usize = 26 * 4096;
/// Batches that are planned before the clock runs; the figures cycle through them.
const PLANS: usize = 64;
/// The gradient of every weight in every push.
const GRADIENT: f32 = 1e-3;
/// What goes through the caches between a pull and its push: more than they hold.
const OTHER_DATA_BYTES: usize = 64 << 20;
/// The exponent of the skewed draws.
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
    insert_mrows_s: f64,
    bytes_per_row: f64,
    /// The largest seen while the table grew from half of its rows to all.
    bytes_per_row_worst: f64,
    /// The same from a thousandth of its rows on.
    bytes_per_row_worst_small: f64,
    limit_read_mrows_s: f64,
    limit_rmw_mrows_s: f64,
    own_cpus: f64,
    other_cpus: Option<f64>,
    peak_rss_mib: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    checked: Option<Checked>,
}

pub(crate) fn run(args: &BenchEmbeddingArgs) -> Result<()> {
    let workers = workers(Some(args.threads))?;
    let before = CpuTimes::now();
    let mut bench = Bench::new(args)?;

    eprintln!("inserting {} rows", args.rows);
    let insert = bench.insert(&workers)?;
    let bytes_per_row = bench.bytes_per_row();
    eprintln!("measuring");
    let uniform = bench.plans(|draw| draw % args.rows);
    let zipf = Zipf::new(args.rows);
    let zipf = bench.plans(|draw| zipf.draw(draw));
    let pull_uniform = bench.pull(&workers, &uniform)?;
    let push_uniform = bench.push(&workers, &uniform)?;
    let pull_zipf = bench.pull(&workers, &zipf)?;
    let push_zipf = bench.push(&workers, &zipf)?;
    let step_uniform = bench.push_after_pull(&workers, &uniform)?;
    let step_zipf = bench.push_after_pull(&workers, &zipf)?;
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
        checked = Some(bench.check(&workers, &pushes)?);
    }
    drop(bench);

    let (limit_read, limit_rmw) = limits(&workers, u32::try_from(args.rows)?, args.seconds)?;
    let outcome = Outcome {
        rows: args.rows,
        dim: args.dim,
        dtype: args.dtype.into(),
        threads: args.threads.get(),
        pull_uniform_mrows_s: pull_uniform.unique,
        pull_zipf_mrows_s: pull_zipf.unique,
        pull_zipf_raw_mrows_s: pull_zipf.values,
        push_uniform_mrows_s: push_uniform.unique,
        push_zipf_mrows_s: push_zipf.unique,
        push_zipf_raw_mrows_s: push_zipf.values,
        push_after_pull_uniform_mrows_s: step_uniform.unique,
        push_after_pull_zipf_mrows_s: step_zipf.unique,
        insert_mrows_s: insert,
        bytes_per_row,
        bytes_per_row_worst: worst,
        bytes_per_row_worst_small: worst_small,
        limit_read_mrows_s: limit_read,
        limit_rmw_mrows_s: limit_rmw,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
        peak_rss_mib: machine::peak_resident().map(|b| b as f64 / f64::from(1 << 20)),
        checked,
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    let Some(Checked { checked_rows, lost_rows, miscounted_rows, wrong_rows }) = checked else {
        return Ok(());
    };
    if lost_rows + miscounted_rows + wrong_rows > 0 {
        bail!(
            "of {checked_rows} rows {lost_rows} were lost, {miscounted_rows} miscounted and {wrong_rows} wrong"
        );
    }
    Ok(())
}

/// What the memory gives for random 64-byte rows, all threads at once: reads and updates, in million
/// rows a second.
fn limits(workers: &Workers, rows: u32, seconds: f64) -> Result<(f64, f64)> {
    let duration = Duration::from_secs_f64(seconds);
    let mut probes = Vec::new();
    for _ in 0..workers.threads() {
        probes.push((RowProbe::new(rows)?, 0.0, 0.0));
    }
    workers
        .for_each_mut(&mut probes, |_, (probe, read, _)| *read = probe.reads_per_second(duration));
    workers
        .for_each_mut(&mut probes, |_, (probe, _, rmw)| *rmw = probe.updates_per_second(duration));
    let sum = |pick: fn(&(RowProbe, f64, f64)) -> f64| probes.iter().map(pick).sum::<f64>() / 1e6;
    Ok((sum(|p| p.1), sum(|p| p.2)))
}

/// Million rows a second.
struct Rate {
    unique: f64,
    values: f64,
    /// Plans that were worked on, one after another from the first, with the one that warmed the buffers.
    calls: u64,
}

/// The same gradient for every weight of a plan's rows.
struct Gradients(RowBuffer);

impl Gradients {
    /// Room for the gradients of each of the plans.
    fn new(stride: usize, plans: &[LookupPlan]) -> Self {
        let unique = plans.iter().map(|p| p.tables[0].keys.len()).max().unwrap_or(0);
        let mut gradients = RowBuffer::default();
        gradients.reshape([(unique, stride)].into_iter());
        gradients.tables[0].values.fill(GRADIENT);
        Self(gradients)
    }

    fn of(&mut self, plan: &LookupPlan) -> &RowBuffer {
        let table = &mut self.0.tables[0];
        let before = table.values.len();
        table.reshape(plan.tables[0].keys.len(), table.stride);
        // What a smaller plan has cut off comes back as zeros.
        let kept = before.min(table.values.len());
        table.values[kept..].fill(GRADIENT);
        &self.0
    }
}

struct Bench {
    tables: TableSet,
    spec: TableSpec,
    schema: Schema,
    scratch: PlanScratch,
    rows: u64,
    duration: Duration,
    step: u64,
    worst: f64,
    worst_small: f64,
}

impl Bench {
    fn new(args: &BenchEmbeddingArgs) -> Result<Self> {
        let job: toml::Table = "[features.ids]\nkind = 'id'\n[labels.y]".parse()?;
        let spec = TableSpec { dtype: args.dtype.into(), ..spec(args.dim) };
        Ok(Self {
            tables: TableSet::new(vec![spec.clone()], DEFAULT_SHARDS)?,
            spec,
            schema: Schema::from_job(&job.into())?,
            scratch: PlanScratch::default(),
            rows: args.rows,
            duration: Duration::from_secs_f64(args.seconds),
            step: 0,
            worst: 0.0,
            worst_small: 0.0,
        })
    }

    fn plan(&mut self, ids: impl Iterator<Item = u64>) -> LookupPlan {
        let keys: Vec<FeatureKey> = ids.map(FeatureKey::from_u64).collect();
        let mut batch = Batch::empty(&self.schema);
        batch.rows = keys.len();
        batch.sparse[0] = KeyColumn::single(keys);
        LookupPlan::build(&batch, &self.schema, &mut self.scratch)
    }

    fn plans(&mut self, id: impl Fn(u64) -> u64) -> Vec<LookupPlan> {
        (0..PLANS)
            .map(|plan| {
                let first = (plan * BATCH_VALUES) as u64;
                self.plan((first..first + BATCH_VALUES as u64).map(|i| id(mix64(i))))
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
            let plan = self.plan(next..end);
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

    fn pull(&mut self, workers: &Workers, plans: &[LookupPlan]) -> Result<Rate> {
        let mut rows = RowBuffer::default();
        self.measure(plans, |tables, plan, _| {
            let began = Instant::now();
            tables.pull(workers, plan, false, &mut rows)?;
            Ok(began.elapsed())
        })
    }

    fn push(&mut self, workers: &Workers, plans: &[LookupPlan]) -> Result<Rate> {
        let mut gradients = Gradients::new(self.tables.layouts()[0].stride, plans);
        self.measure(plans, |tables, plan, update| {
            let gradients = gradients.of(plan);
            let began = Instant::now();
            tables.push(workers, plan, gradients, update)?;
            Ok(began.elapsed())
        })
    }

    /// Pushes alone are on the clock.
    fn push_after_pull(&mut self, workers: &Workers, plans: &[LookupPlan]) -> Result<Rate> {
        let mut gradients = Gradients::new(self.tables.layouts()[0].stride, plans);
        let mut rows = RowBuffer::default();
        let mut other_data = vec![0u64; OTHER_DATA_BYTES / size_of::<u64>()];
        self.measure(plans, |tables, plan, update| {
            tables.pull(workers, plan, false, &mut rows)?;
            other_data.iter_mut().for_each(|word| *word += 1);
            let gradients = gradients.of(plan);
            let began = Instant::now();
            tables.push(workers, plan, gradients, update)?;
            Ok(began.elapsed())
        })
    }

    /// Works on plan after plan until the times that `work` says have filled the time there is.
    fn measure(
        &mut self,
        plans: &[LookupPlan],
        mut work: impl FnMut(&mut TableSet, &LookupPlan, Update) -> Result<Duration>,
    ) -> Result<Rate> {
        let (mut unique, mut values, mut calls) = (0, 0, 0);
        let mut busy = Duration::ZERO;
        for plan in plans.iter().cycle() {
            let update = self.update();
            let took = work(&mut self.tables, plan, update)?;
            calls += 1;
            // The first batch warms the buffers.
            if calls > 1 {
                busy += took;
                unique += plan.tables[0].keys.len();
                values += plan.rows;
            }
            if busy >= self.duration {
                break;
            }
        }
        let rate = |n: usize| n as f64 / busy.as_secs_f64() / 1e6;
        Ok(Rate { unique: rate(unique), values: rate(values), calls })
    }

    /// Holds every row against what was pushed.
    fn check(&mut self, workers: &Workers, pushes: &Pushes) -> Result<Checked> {
        // The table is put back: planning needs the rest of this.
        let mut tables = std::mem::replace(
            &mut self.tables,
            TableSet::new(vec![self.spec.clone()], DEFAULT_SHARDS)?,
        );
        let spec = self.spec.clone();
        let checked = pushes
            .check(workers, &mut tables, (&spec, GRADIENT), BATCH_VALUES, |ids| self.plan(ids));
        self.tables = tables;
        checked
    }
}

/// The table that the benchmarks of tables fill.
pub(super) fn spec(dim: usize) -> TableSpec {
    let segment = SegmentSpec {
        name: "vector".to_owned(),
        dim,
        initializer: InitializerSpec::Normal { mean: 0.0, std: 0.01 },
        optimizer: OptimizerSpec::rowwise_adagrad(0.02),
        l2: 0.0,
        l2_scope: None,
        clip: None,
        bounds: None,
    };
    TableSpec {
        name: "ids".to_owned(),
        segments: vec![segment],
        dense: false,
        max_rows: None,
        unknown: Unknown::Seeded,
        admission: Admission::All,
        eviction: Eviction::Never,
        dtype: Dtype::F32,
        pinned: Vec::new(),
        statistics: None,
        grow: None,
        max_bytes: None,
        seed: 1,
    }
}

/// Draws ids by Zipf's law: inversion of the continuous distribution, close enough for a load.
pub(super) struct Zipf {
    rows: u64,
    total: f64,
}

impl Zipf {
    pub(super) fn new(rows: u64) -> Self {
        Self { rows, total: Self::mass(rows as f64 + 1.0) }
    }

    /// The integral of x^-s from 1 to x.
    fn mass(x: f64) -> f64 {
        (1.0 - x.powf(1.0 - ZIPF)) / (ZIPF - 1.0)
    }

    pub(super) fn draw(&self, random: u64) -> u64 {
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (1.0 - share * self.total * (ZIPF - 1.0)).powf(-1.0 / (ZIPF - 1.0));
        (rank as u64 - 1).min(self.rows - 1)
    }
}
