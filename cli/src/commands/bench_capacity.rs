//! `zillion bench capacity`: what a table at its limit costs, under a stream in which new keys never end.
//!
//! Batches are four parts keys of a fixed set by Zipf's law and one part keys that were never seen. They are pulled and
//! pushed, and the step is ended, in a table without a limit, then in one that is full and evicts the least
//! frequently used. Plans are built outside of the clock. Memory is what the system says of this process, above
//! what it had before the table was there.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use zillion_device::Workers;
use zillion_device::machine::{self, CpuTimes};
use zillion_embedding::conformance::plan_of;
use zillion_embedding::{
    ByteSize, Counters, DEFAULT_SHARDS, Eviction, Rates, TableSet, TableSpec, Update,
};
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, RowBuffer, Step};

use super::bench_embedding::{BATCH_VALUES, Zipf, spec};
use super::{print_json, workers};
use crate::args::BenchCapacityArgs;

/// One key in so many is new.
const NEW: u64 = 5;
/// Steps after which a row's pushes count half.
const HALF_LIFE: u64 = 1000;

#[derive(Serialize)]
struct Outcome {
    max_bytes: u64,
    threads: usize,
    free: Figures,
    limited: Figures,
    /// Rows a second of the table at its limit against those of the one without.
    rate_ratio: f64,
    /// Resident memory of the table at its limit against the limit.
    resident_of_limit: Option<f64>,
    /// The same by the table's own accounts.
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
    resident_bytes: Option<u64>,
    counters: Counters,
}

pub(crate) fn run(args: &BenchCapacityArgs) -> Result<()> {
    let workers = workers(Some(args.threads))?;
    let before = CpuTimes::now();
    let max_bytes = args.max_mib << 20;
    let limited = TableSpec {
        max_bytes: Some(ByteSize(max_bytes)),
        eviction: Eviction::Lfu { half_life: HALF_LIFE, below: None, every: None },
        ..spec(16)
    };
    // The rows that fit are what both tables are filled with.
    let rows = max_bytes / limited.bytes_per_row();
    eprintln!("at the limit of {} MiB", args.max_mib);
    let limited = measure(&workers, limited, rows, args.seconds)?;
    eprintln!("without a limit");
    let free = measure(&workers, spec(16), rows, args.seconds)?;
    let use_of_cpus = CpuTimes::now().since(&before);
    let of_limit = |bytes: u64| bytes as f64 / max_bytes as f64;
    let outcome = Outcome {
        max_bytes,
        threads: args.threads.get(),
        rate_ratio: limited.unique_mrows_s / free.unique_mrows_s,
        resident_of_limit: limited.resident_bytes.map(of_limit),
        accounted_of_limit: of_limit(limited.largest_total_bytes),
        free,
        limited,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    Ok(())
}

/// Fills a table with `rows` rows, then runs the stream for a time.
fn measure(workers: &Workers, spec: TableSpec, rows: u64, seconds: f64) -> Result<Figures> {
    let resident = machine::resident();
    let mut set = TableSet::new(vec![spec], DEFAULT_SHARDS)?;
    let mut buffer = RowBuffer::default();
    let mut step = 0;
    let mut longest = Duration::ZERO;
    let mut apply = |set: &mut TableSet, keys: Vec<FeatureKey>| -> Result<(Duration, usize)> {
        step += 1;
        let plan = plan_of(&[keys]);
        let update = Update { step: Step(step), rates: Rates::default(), scale: 1.0 };
        let began = Instant::now();
        set.pull(workers, &plan, false, &mut buffer)?;
        set.push(workers, &plan, &buffer, update)?;
        set.sweep(workers, update)?;
        Ok((began.elapsed(), plan.tables[0].keys.len()))
    };
    let mut next = 0;
    while next < rows {
        let end = (next + BATCH_VALUES as u64).min(rows);
        apply(&mut set, (next..end).map(FeatureKey::from_u64).collect())?;
        next = end;
    }
    let zipf = Zipf::new(rows);
    let (mut busy, mut unique, mut steps, mut largest) = (Duration::ZERO, 0, 0, 0);
    let mut draws = 0;
    while busy.as_secs_f64() < seconds {
        let ids = (0..BATCH_VALUES as u64).map(|i| {
            draws += 1;
            if i % NEW == 0 {
                next += 1;
                next
            } else {
                zipf.draw(mix64(draws))
            }
        });
        let mut keys: Vec<FeatureKey> = ids.map(FeatureKey::from_u64).collect();
        keys.sort_unstable();
        keys.dedup();
        let (took, rows) = apply(&mut set, keys)?;
        busy += took;
        unique += rows;
        steps += 1;
        longest = longest.max(took);
        largest = set.statistics()[0].total_bytes().max(largest);
    }
    let table = set.statistics().remove(0);
    Ok(Figures {
        unique_mrows_s: unique as f64 / busy.as_secs_f64() / 1e6,
        steps,
        longest_step_ms: longest.as_secs_f64() * 1e3,
        rows: table.rows,
        total_bytes: table.total_bytes(),
        largest_total_bytes: largest,
        resident_bytes: machine::resident()
            .zip(resident)
            .map(|(now, before)| now.saturating_sub(before)),
        counters: table.counters,
    })
}
