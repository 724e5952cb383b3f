//! The benchmark `zillion bench reader`: the number of rows per second that are read from a file,
//! to columns and to batches of 4,096 rows.
//!
//! The time for opening the file is included. The time for computing the statistics of transforms
//! is not included, because they are computed once for a job, and the compared systems compute no
//! statistics. Rows are not shuffled.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::machine::{self, CpuTimes};
use zillion_feature::Cursor;
use zillion_reader::{BatchOrder, DataConfig, Dataset, Labels, Paths};
use zillion_trainer::Job;

use crate::args::BenchReaderArgs;
use crate::{print_outcome, turns};
use zillion_console::compute_pool;
use zillion_console::job_file;

/// The number of rows in a batch.
const BATCH: usize = 4096;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    threads: usize,
    columns_read: usize,
    /// The median of the rows that are read per second of wall time. `batches_rows_per_second` is
    /// the same figure for batches.
    columns_rows_per_second: f64,
    batches_rows_per_second: f64,
    /// The median of the rows that are read per second of this process's CPU time, which other
    /// programs disturb less. `batches_rows_per_cpu_second` is the same figure for batches.
    columns_rows_per_cpu_second: f64,
    batches_rows_per_cpu_second: f64,
    other_cpus: Option<f64>,
    resident_mib: Option<u64>,
}

pub(crate) fn run(
    args: &BenchReaderArgs,
    is_json: bool,
    draft: impl FnOnce(&Path) -> Result<Job>,
) -> Result<()> {
    let files = DataConfig::default().files(&Paths::from(args.data.as_str()))?;
    let job = match (&args.job, files.first()) {
        (Some(path), _) => Job::from_value(job_file::load(path, std::env::vars(), &[])?)?,
        (None, Some(file)) => draft(file)?,
        (None, None) => bail!("--data `{}` names no file; correct the path", args.data),
    };
    let workers = compute_pool(Some(args.threads))?;
    let open = || Dataset::open_with(&job.data, &files, &job.schema, Labels::Optional);
    let statistics = match job.schema.features.iter().any(|f| f.needs_statistics()) {
        true => Some(zillion_reader::statistics(&open()?, &workers)?),
        false => None,
    };
    let open = || -> Result<Dataset> {
        let dataset = open()?;
        Ok(match &statistics {
            Some(statistics) => dataset.with_statistics(statistics.clone()),
            None => dataset,
        })
    };
    let order = BatchOrder { seed: 0, shuffle: false, batch_rows: BATCH, drop_last: false };
    let before = CpuTimes::now();
    let mut columns = Vec::new();
    let mut batches = Vec::new();
    // The two figures are measured alternately, so that disturbances of the machine affect both in
    // the same way.
    for _ in 0..args.repeat.get() {
        columns.push(timed(|| Ok(zillion_reader::decode_columns(&open()?, &workers)?))?);
        batches.push(timed(|| {
            let mut rows = 0;
            for item in open()?.batches(order, Cursor::default(), workers.clone())? {
                rows += item?.0.rows as u64;
            }
            Ok(rows)
        })?);
    }
    let cpus = CpuTimes::now().since(&before);
    let outcome = Outcome {
        rows: columns[0].0,
        threads: args.threads.get(),
        columns_read: job.schema.features.len() + job.schema.labels.len(),
        columns_rows_per_second: median(&columns, |run| run.1),
        batches_rows_per_second: median(&batches, |run| run.1),
        columns_rows_per_cpu_second: median(&columns, |run| run.2),
        batches_rows_per_cpu_second: median(&batches, |run| run.2),
        other_cpus: cpus.other_cpus,
        resident_mib: machine::resident_memory().map(|bytes| bytes >> 20),
    };
    print_outcome(&outcome, is_json)
}

/// Runs `read`. Returns the number of rows, the seconds of wall time and the seconds of CPU time.
fn timed(read: impl FnOnce() -> Result<u64>) -> Result<(u64, f64, f64)> {
    let (start, cpu) = (Instant::now(), CpuTimes::now().own);
    let rows = read()?;
    let cpu = CpuTimes::now().own.saturating_sub(cpu);
    Ok((rows, start.elapsed().as_secs_f64(), cpu.as_secs_f64()))
}

/// Returns the median of the rows per second over all runs. `seconds` selects the time of a run.
fn median(runs: &[(u64, f64, f64)], seconds: impl Fn(&(u64, f64, f64)) -> f64) -> f64 {
    let mut rates: Vec<f64> =
        runs.iter().map(|run| run.0 as f64 / seconds(run).max(1e-9)).collect();
    turns::median(&mut rates)
}
