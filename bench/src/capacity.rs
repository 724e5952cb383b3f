//! The benchmark `zillion bench capacity`: the cost of a table at its limit while new keys arrive
//! all the time.
//!
//! In a batch, four of five keys are drawn by Zipf's law from a fixed set, and the fifth key has
//! never occurred before. Each batch is pulled and pushed, and then its step ends. There are two
//! tables: one table is full and evicts the least frequently used rows, and the other table has no
//! limit. The two tables are measured in alternating turns of a quarter of a second, so that
//! changes in the speed of the machine affect both in the same way. The reported ratio is the
//! median of the ratios of the turns. The time for building plans is not counted.
//!
//! The memory of the limited table is the growth of this process's resident memory, as the system
//! reports it. The measurement begins before the limited table is made, and ends before the other
//! table is made. Later, both tables are in memory, and the table without a limit grows in its
//! turns.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_device::Workers;
use zillion_device::machine::{self, CpuTimes};
use zillion_embedding::{Counters, Rates, TableSet, Update};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, RowBuffer, Step};
use zillion_rows::conformance::plan_of;
use zillion_rows::{ByteSize, DEFAULT_SHARDS, Eviction, TableSpec};

use crate::args::BenchCapacityArgs;
use crate::embedding::{BATCH_VALUES, Zipf, spec};
use crate::print_outcome;
use crate::turns::{TURN, median};
use zillion_console::compute_pool;

/// The distance between two new keys in a batch: every fifth key has never occurred before.
const NEW: u64 = 5;
/// The half-life of pushes for the eviction, in steps. After this number of steps, a push counts
/// half.
const HALF_LIFE: u64 = 1000;

#[derive(Serialize)]
struct Outcome {
    max_bytes: u64,
    threads: usize,
    free: Figures,
    limited: Figures,
    /// The rows per second of the table at its limit, divided by the rows per second of the table
    /// without a limit. The value is the median over the turns.
    rate_ratio: f64,
    /// The resident memory of the table at its limit, divided by the limit. `None` if the system
    /// does not report the memory.
    resident_of_limit: Option<f64>,
    /// The memory that the table itself reports, divided by the limit.
    accounted_of_limit: f64,
    own_cpus: f64,
    other_cpus: Option<f64>,
}

#[derive(Serialize)]
struct Figures {
    unique_mrows_s: f64,
    steps: u64,
    longest_step_ms: f64,
    rows: u64,
    total_bytes: u64,
    largest_total_bytes: u64,
    counters: Counters,
}

pub(crate) fn run(args: &BenchCapacityArgs, is_json: bool) -> Result<()> {
    let workers = compute_pool(Some(args.threads))?;
    let before = CpuTimes::now();
    let max_bytes = args.max_mib << 20;
    let limited = TableSpec {
        max_bytes: Some(ByteSize(max_bytes)),
        eviction: Eviction::Lfu {
            half_life: zillion_rows::Span::Steps(HALF_LIFE),
            below: None,
            every: None,
        },
        ..spec(16)
    };
    // Both tables are filled with about the number of rows that fit into the limit. The accounting
    // of the limit reserves more memory for the index, so the limited table begins to evict before
    // it is filled.
    let rows = max_bytes / limited.bytes_per_row();
    let zipf = Zipf::new(rows);
    let duration = Duration::try_from_secs_f64(args.seconds)
        .with_context(|| format!("--seconds is {}; set it to a positive number", args.seconds))?;

    eprintln!("at the limit of {} MiB", args.max_mib);
    let resident = machine::resident_memory();
    let mut limited = Stream::new(&workers, &zipf, limited)?;
    limited.fill(rows)?;
    limited.run(duration)?;
    let resident =
        machine::resident_memory().zip(resident).map(|(now, then)| now.saturating_sub(then));
    limited.reset_times();

    eprintln!("in turn with a table without a limit");
    let mut free = Stream::new(&workers, &zipf, spec(16))?;
    free.fill(rows)?;
    free.run(TURN)?;
    free.reset_times();
    let mut ratios = Vec::new();
    loop {
        let free_rate = free.run(TURN)?;
        ratios.push(limited.run(TURN)? / free_rate);
        if free.busy >= duration {
            break;
        }
    }

    let use_of_cpus = CpuTimes::now().since(&before);
    let of_limit = |bytes: u64| bytes as f64 / max_bytes as f64;
    let (free, limited) = (free.figures(), limited.figures());
    let outcome = Outcome {
        max_bytes,
        threads: args.threads.get(),
        rate_ratio: median(&mut ratios),
        resident_of_limit: resident.map(of_limit),
        accounted_of_limit: of_limit(limited.largest_total_bytes),
        free,
        limited,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
    };
    print_outcome(&outcome, is_json)
}

/// A table and the stream of keys that it receives.
struct Stream<'a> {
    workers: &'a Workers,
    zipf: &'a Zipf,
    set: TableSet,
    buffer: RowBuffer,
    step: u64,
    /// The next new id. The table has already received all smaller ids.
    next: u64,
    draws: u64,
    busy: Duration,
    unique: usize,
    steps: u64,
    longest: Duration,
    largest: u64,
}

impl<'a> Stream<'a> {
    fn new(workers: &'a Workers, zipf: &'a Zipf, spec: TableSpec) -> Result<Self> {
        Ok(Self {
            workers,
            zipf,
            set: TableSet::new(vec![spec], DEFAULT_SHARDS)?,
            buffer: RowBuffer::default(),
            step: 0,
            next: 0,
            draws: 0,
            busy: Duration::ZERO,
            unique: 0,
            steps: 0,
            longest: Duration::ZERO,
            largest: 0,
        })
    }

    /// Pulls and pushes the keys, ends the step, and returns the time for all of this.
    fn apply(&mut self, keys: Vec<FeatureKey>) -> Result<Duration> {
        self.step += 1;
        let plan = plan_of(&[keys]);
        let update = Update { step: Step(self.step), rates: Rates::default(), scale: 1.0 };
        let began = Instant::now();
        self.set.pull(self.workers, &plan, false, &mut self.buffer)?;
        self.set.push(self.workers, &plan, &self.buffer, update)?;
        self.set.sweep(self.workers, update)?;
        Ok(began.elapsed())
    }

    /// Sends new keys to the table until it has received `rows` keys.
    fn fill(&mut self, rows: u64) -> Result<()> {
        while self.next < rows {
            let end = (self.next + BATCH_VALUES as u64).min(rows);
            self.apply((self.next..end).map(FeatureKey::from_u64).collect())?;
            self.next = end;
        }
        Ok(())
    }

    /// Sends batches to the table for the time `duration`. Returns the rate in unique rows per
    /// second.
    fn run(&mut self, duration: Duration) -> Result<f64> {
        let (mut busy, mut unique) = (Duration::ZERO, 0);
        while busy < duration {
            let keys = self.draw();
            unique += keys.len();
            let took = self.apply(keys)?;
            busy += took;
            self.steps += 1;
            self.longest = self.longest.max(took);
            self.largest = self.set.statistics()[0].total_bytes().max(self.largest);
        }
        self.busy += busy;
        self.unique += unique;
        Ok(unique as f64 / busy.as_secs_f64())
    }

    /// Draws the keys of the next batch, sorted and without duplicates.
    fn draw(&mut self) -> Vec<FeatureKey> {
        let ids = (0..BATCH_VALUES as u64).map(|i| {
            self.draws += 1;
            if i % NEW == 0 {
                self.next += 1;
                self.next
            } else {
                self.zipf.draw(mix64(self.draws))
            }
        });
        let mut keys: Vec<FeatureKey> = ids.map(FeatureKey::from_u64).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Resets the measured times and counts, but keeps the largest memory.
    fn reset_times(&mut self) {
        (self.busy, self.unique, self.steps) = (Duration::ZERO, 0, 0);
        self.longest = Duration::ZERO;
    }

    fn figures(&self) -> Figures {
        let table = self.set.statistics().remove(0);
        Figures {
            unique_mrows_s: self.unique as f64 / self.busy.as_secs_f64() / 1e6,
            steps: self.steps,
            longest_step_ms: self.longest.as_secs_f64() * 1e3,
            rows: table.rows,
            total_bytes: table.total_bytes(),
            largest_total_bytes: self.largest,
            counters: table.counters,
        }
    }
}
