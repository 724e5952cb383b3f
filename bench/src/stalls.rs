//! The benchmark `zillion bench stalls`: the longest of very many small operations on a table. The
//! operations run while the table grows, and while a checkpoint of the whole table is written.
//!
//! An operation is a pull or a push of 1,000 keys. At the beginning the table is empty. It grows
//! because half of the keys of each push are new. Then the same operations are timed alone and
//! during a checkpoint. The ratio of the mean times is the cost of the checkpoint for training.
//!
//! The times are wall times, so they include delays by other work of the machine. A control
//! measures these delays. Between the operations that let the table grow, the control reads memory
//! that was mapped before the first operation. Only the machine can delay these reads.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::{Files, Workers};
use zillion_embedding::{Rates, TableSet, Update};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step};
use zillion_rows::DEFAULT_SHARDS;
use zillion_rows::conformance::plan_of;

use crate::args::BenchStallsArgs;
use crate::embedding::spec;
use crate::print_outcome;
use zillion_console::compute_pool;

/// The number of keys in an operation.
const KEYS: u64 = 1000;
/// The number of plans that are made before the measurement. The operations use these plans.
const PLANS: u64 = 4096;
/// The number of additional rows that the end of a step copies for the snapshot: a twelfth of the
/// rows that the step pushed, as in `ps`.
const COPIED: usize = KEYS as usize / 12;
/// The number of operations that are timed alone before the checkpoint.
const ALONE: u64 = 20_000;

/// The number of words of memory from which the control reads. This memory is much larger than the
/// caches.
const CONTROL_WORDS: u64 = 1 << 24;
/// The number of words that the control reads at a time. These reads take about the time of one
/// operation.
const CONTROL_READS: u64 = 10 * KEYS;

/// The times of one kind of operation, in microseconds.
#[derive(Serialize)]
struct Latency {
    operations: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p9999_us: f64,
    longest_us: f64,
}

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    threads: usize,
    keys_an_operation: u64,
    growth_pull: Latency,
    growth_push: Latency,
    /// The times of the control, which reads memory between the operations and uses no table.
    growth_control: Latency,
    alone: Latency,
    /// The operations per second during the checkpoint, divided by the operations per second alone.
    /// With one thread, the value is `None`, because the checkpoint is then not written at the same
    /// time as the operations.
    throughput_during_checkpoint: Option<f64>,
    #[serde(flatten)]
    checkpoint: Checkpoint,
    own_cpus: f64,
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &BenchStallsArgs, is_json: bool) -> Result<()> {
    let workers = compute_pool(Some(args.threads))?;
    let before = CpuTimes::now();
    let mut bench = Bench {
        set: TableSet::new(vec![spec(16)], DEFAULT_SHARDS)?,
        workers,
        pulled: RowBuffer::default(),
        step: 0,
    };
    eprintln!("growing to {} rows", args.rows);
    let (growth_pull, growth_push, growth_control) = bench.grow(args.rows)?;
    let plans: Vec<LookupPlan> = (0..PLANS)
        .map(|plan| plan_of_ids((0..KEYS).map(|i| mix64(plan * KEYS + i) % args.rows)))
        .collect();
    eprintln!("measuring");
    let mut alone = Vec::new();
    for _ in 0..ALONE {
        bench.operate(&plans, &mut alone)?;
    }
    let checkpoint = bench.checkpoint(&plans, args.threads.get() > 1)?;
    let use_of_cpus = CpuTimes::now().since(&before);
    let alone = latency(&mut alone);
    let outcome = Outcome {
        rows: args.rows,
        threads: args.threads.get(),
        keys_an_operation: KEYS,
        growth_pull,
        growth_push,
        growth_control,
        throughput_during_checkpoint: (args.threads.get() > 1)
            .then(|| alone.mean_us / checkpoint.during.mean_us),
        alone,
        checkpoint,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
    };
    print_outcome(&outcome, is_json)
}

/// The figures of a checkpoint that is written during operations.
#[derive(Serialize)]
struct Checkpoint {
    /// The times of the operations during the checkpoint.
    #[serde(rename = "checkpoint")]
    during: Latency,
    checkpoint_seconds: f64,
    checkpoint_gb: f64,
    /// The time for which the caller must wait at the start of the checkpoint, in microseconds.
    /// `finish_us` is the same time at the end of the checkpoint.
    begin_us: f64,
    finish_us: f64,
    /// The maximum memory of the snapshot. It contains copies of changed rows, and parts that have
    /// not been written to the disk yet.
    snapshot_mb: f64,
}

struct Bench {
    set: TableSet,
    workers: Arc<Workers>,
    pulled: RowBuffer,
    step: u64,
}

fn plan_of_ids(ids: impl Iterator<Item = u64>) -> LookupPlan {
    plan_of(&[ids.map(FeatureKey::from_u64).collect()])
}

impl Bench {
    /// Pulls and pushes known and new keys until the table has `rows` rows. Also times the control
    /// between these operations. Returns the times of the pulls, the pushes and the control.
    fn grow(&mut self, rows: u64) -> Result<(Latency, Latency, Latency)> {
        let (mut pulls, mut pushes, mut controls) = (Vec::new(), Vec::new(), Vec::new());
        let words: Vec<u64> = (0..CONTROL_WORDS).collect();
        let mut known = 0;
        while known < rows {
            let new = (KEYS / 2).min(rows - known);
            let old = (new..KEYS).map(|i| mix64(self.step * KEYS + i) % known.max(1));
            let plan = plan_of_ids((known..known + new).chain(old));
            known += new;
            let began = Instant::now();
            self.set.pull(&self.workers, &plan, false, &mut self.pulled)?;
            pulls.push(began.elapsed());
            pushes.push(self.push(&plan)?);
            controls.push(control(&words, self.step));
        }
        Ok((latency(&mut pulls), latency(&mut pushes), latency(&mut controls)))
    }

    /// Makes one pull and one push, and appends their times to `times`.
    fn operate(&mut self, plans: &[LookupPlan], times: &mut Vec<Duration>) -> Result<()> {
        let plan = &plans[(mix64(self.step) % PLANS) as usize];
        let began = Instant::now();
        self.set.pull(&self.workers, plan, false, &mut self.pulled)?;
        times.push(began.elapsed());
        times.push(self.push(plan)?);
        Ok(())
    }

    /// Pushes the pulled rows as if they were gradients. Returns the time of the push.
    fn push(&mut self, plan: &LookupPlan) -> Result<Duration> {
        self.step += 1;
        let update = Update { step: Step(self.step), rates: Rates::default(), scale: 1.0 };
        let began = Instant::now();
        self.set.push(&self.workers, plan, &self.pulled, update)?;
        self.set.advance_snapshot(&self.workers, COPIED);
        Ok(began.elapsed())
    }

    /// Times operations while a checkpoint is written. With one thread, the checkpoint is not
    /// written at the same time as the operations. It is then ended after the number of operations
    /// that were timed alone.
    fn checkpoint(&mut self, plans: &[LookupPlan], is_beside: bool) -> Result<Checkpoint> {
        let folder = tempfile::tempdir_in(".")?;
        let mut times = Vec::new();
        let mut kept = 0;
        let began = Instant::now();
        self.set.begin_snapshot(&self.workers, folder.path(), &Files::new())?;
        let begin = began.elapsed();
        while !self.set.snapshot_is_ready() && (is_beside || times.len() < 2 * ALONE as usize) {
            self.operate(plans, &mut times)?;
            if times.len().is_multiple_of(1024) {
                kept = self.set.statistics()[0].snapshot_bytes.max(kept);
            }
        }
        let finishing = Instant::now();
        let parts = self.set.finish_snapshot(&self.workers)?;
        let bytes: u64 = parts.iter().flat_map(|table| &table.parts).map(|part| part.bytes).sum();
        Ok(Checkpoint {
            finish_us: micros(finishing.elapsed()),
            checkpoint_seconds: began.elapsed().as_secs_f64(),
            checkpoint_gb: bytes as f64 / 1e9,
            begin_us: micros(begin),
            snapshot_mb: kept as f64 / 1e6,
            during: latency(&mut times),
        })
    }
}

/// Reads words at random places in memory. Returns the time of these reads.
fn control(words: &[u64], step: u64) -> Duration {
    let began = Instant::now();
    let places = (0..CONTROL_READS).map(|i| mix64(step * CONTROL_READS + i) % CONTROL_WORDS);
    black_box(places.map(|place| words[place as usize]).fold(0, u64::wrapping_add));
    began.elapsed()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn latency(times: &mut [Duration]) -> Latency {
    times.sort_unstable();
    let at = |part: f64| {
        let place = (times.len().saturating_sub(1) as f64 * part) as usize;
        times.get(place).map_or(0.0, |&time| micros(time))
    };
    Latency {
        operations: times.len(),
        mean_us: times.iter().map(|&time| micros(time)).sum::<f64>() / times.len().max(1) as f64,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p9999_us: at(0.9999),
        longest_us: at(1.0),
    }
}
