//! The benchmark `zillion bench online catchup`: the rate at which a run learns from a backlog.
//!
//! All events are written before the run starts. The run publishes and writes checkpoints as ever.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use zillion_device::machine::CpuTimes;

use super::job::{EVENTS, JobSettings};
use super::run::OnlineRun;
use super::source::write_backlog;
use crate::args::OnlineCatchupArgs;
use crate::{print_outcome, scratch_folder};

/// The time between two looks at the number of rows.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct Outcome {
    /// The number of events of the backlog.
    events: u64,
    /// The time from the start of the process until it had learned from all events.
    seconds: f64,
    /// The time from the start of the process until it had learned from the first batch.
    first_batch_seconds: f64,
    /// The rate after the first batch.
    rows_per_second: f64,
    /// The rate after the first batch as a multiple of the rate at which events happen.
    times_real_time: f64,
    /// The processors that the run used.
    run_cpus: Option<f64>,
    /// The number of processors that other programs kept busy.
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &OnlineCatchupArgs, is_json: bool) -> Result<()> {
    let folder = scratch_folder(args.place.folder.as_deref())?;
    let folder = folder.path();
    eprintln!("writing {} seconds of events", args.seconds);
    let events = write_backlog(&folder.join(EVENTS), args.rate.get(), args.seconds)?;
    JobSettings { threads: args.place.threads, ..JobSettings::default() }.write(folder)?;
    let before = CpuTimes::now();
    let mut run = OnlineRun::start(folder, "online")?;
    let metrics = run.metrics()?;
    let mut first: Option<(Instant, f64)> = None;
    let (end, all) = loop {
        let rows = metrics.read()?.value("zillion_trainer_samples_total");
        let now = Instant::now();
        if rows > 0.0 && first.is_none() {
            first = Some((now, rows));
        }
        if rows >= events as f64 {
            break (now, rows);
        }
        run.check()?;
        std::thread::sleep(PAUSE);
    };
    let run_cpu = run.cpu_seconds();
    let cpus = CpuTimes::now().since(&before);
    let (first_at, first_rows) = first.unwrap_or((end, all));
    let seconds = (end - run.started).as_secs_f64();
    let rows_per_second = (all - first_rows) / (end - first_at).as_secs_f64().max(1e-9);
    let run_cpus = run_cpu.map(|used| used / seconds);
    let outcome = Outcome {
        events,
        seconds,
        first_batch_seconds: (first_at - run.started).as_secs_f64(),
        rows_per_second: rows_per_second.round(),
        times_real_time: rows_per_second / args.rate.get() as f64,
        run_cpus,
        other_cpus: cpus.other_cpus.zip(run_cpus).map(|(all, own)| (all - own).max(0.0)),
    };
    run.stop()?;
    print_outcome(&outcome, is_json)
}
