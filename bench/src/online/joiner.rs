//! The drill `zillion bench online joiner`: the memory of a joiner to which more rows come than its
//! bound of memory allows, and its rate.
//!
//! The joiner is in this process, which does nothing else. Impressions come until their number is
//! several times that of the rows for which the bound has room. No window ends meanwhile, so every
//! row stays pending until the bound makes it leave. Some of the pending rows get feedback.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use zillion_console::durable_files;
use zillion_device::machine::{CpuTimes, resident_memory};
use zillion_stream::joiner::{
    self, Bounds, Emit, Feedback, FeedbackValue, Impression, Joiner, Negatives, SamplingCorrection,
    Settings,
};
use zillion_stream::watermark::TimeRules;
use zillion_stream::{EventTime, Partition};

use crate::args::OnlineJoinerArgs;
use crate::{print_outcome, scratch_folder};

/// The number of events between two feedback events.
const FEEDBACK_EVERY: u64 = 33;
/// The number of events between two looks at the memory.
const LOOK_EVERY: u64 = 10_000;
/// The share of the bound by which the resident memory may exceed it.
const TOLERANCE: f64 = 0.1;
const PARTITION: Partition = Partition { stream: 0, number: 0 };

#[derive(Serialize)]
struct Outcome {
    /// The bound of memory in bytes.
    bound_bytes: u64,
    /// The number of rows for which the bound has room, and the number that came.
    rows_in_bound: u64,
    rows: u64,
    /// The number of rows that left at the bound.
    evicted_rows: u64,
    /// The most bytes of memory that the joiner counted.
    counted_bytes: u64,
    /// The resident memory of the process before the joiner was created.
    baseline_bytes: u64,
    /// The most resident memory, less the baseline.
    growth_bytes: u64,
    /// The growth divided by the bound.
    growth_by_bound: f64,
    events: u64,
    /// The number of events per second of processor time of this process.
    events_per_cpu_second: f64,
    events_per_second: f64,
    other_cpus: Option<f64>,
}

/// A joiner under load, with its highest figures.
struct Drill {
    joiner: Joiner,
    row: Vec<u8>,
    counted: u64,
    resident: u64,
}

pub(crate) fn run(args: &OnlineJoinerArgs, is_json: bool) -> Result<()> {
    let folder = scratch_folder(args.folder.as_deref())?;
    let row_bytes = args.row_bytes.get();
    let settings = settings(args.memory.0, row_bytes);
    let (rows_in_bound, bound) = (settings.rows_in_memory(), settings.bounds.max_memory_bytes);
    let rows = rows_in_bound.saturating_mul(args.times.get());
    let row = vec![7; row_bytes.max(size_of::<u64>())];
    // The first look allocates nothing that a later one does not need too.
    read_resident()?;
    let baseline = read_resident()?;
    let mut joiner = Joiner::create(folder.path(), durable_files()?, settings)?;
    joiner.add_partition(PARTITION)?;
    while joiner.next_row()?.is_some() {}
    let mut drill = Drill { joiner, row, counted: 0, resident: baseline };
    eprintln!("{rows} rows come to a joiner that has room for {rows_in_bound}");
    let before = CpuTimes::now();
    let (events, wall) = drill.feed(rows)?;
    let used = CpuTimes::now().since(&before);
    let cpu = CpuTimes::now().own.saturating_sub(before.own);
    let growth = drill.resident.saturating_sub(baseline);
    let rate = |time: Duration| (events as f64 / time.as_secs_f64().max(1e-9)).round();
    let outcome = Outcome {
        bound_bytes: bound,
        rows_in_bound,
        rows,
        evicted_rows: drill.joiner.counters().evicted_rows,
        counted_bytes: drill.counted,
        baseline_bytes: baseline,
        growth_bytes: growth,
        growth_by_bound: (growth as f64 / bound as f64 * 1000.0).round() / 1000.0,
        events,
        events_per_cpu_second: rate(cpu),
        events_per_second: rate(wall),
        other_cpus: used.other_cpus,
    };
    print_outcome(&outcome, is_json)?;
    let is_bounded = drill.counted <= bound && growth as f64 <= (1.0 + TOLERANCE) * bound as f64;
    ensure!(
        is_bounded,
        "the joiner counted {} bytes and the process grew by {growth} bytes, but the bound is \
         {bound} bytes; report this with the output",
        drill.counted
    );
    Ok(())
}

/// Returns the settings of a joiner whose only bound that matters is that of memory.
fn settings(max_memory_bytes: u64, row_bytes: usize) -> Settings {
    let times = TimeRules {
        disorder: 0,
        max_ahead: 60_000,
        accept_jump_after: NonZeroU32::MAX,
        start: None,
    };
    // Rows take more bytes on the disk than in memory, and pending ones fill at most half of it.
    let max_disk_bytes = (max_memory_bytes / 16).saturating_mul(row_bytes as u64 + 64);
    Settings {
        times,
        wait: 1 << 46,
        emit: Emit::Window,
        negatives: Negatives { keep: 1.0, correction: SamplingCorrection::Weight },
        bounds: Bounds {
            max_rows: u64::MAX,
            max_disk_bytes: max_disk_bytes.min(max_memory_bytes.saturating_mul(1024)),
            max_memory_bytes,
        },
    }
}

fn read_resident() -> Result<u64> {
    resident_memory().context("this system does not tell the resident memory of a process")
}

/// Checks that the joiner has not refused an event. Events that it gives up at its bounds are part
/// of the drill.
fn check_use(outcome: joiner::Outcome) -> Result<()> {
    ensure!(
        !matches!(outcome, joiner::Outcome::Refused(_)),
        "the joiner has refused an event: {outcome:?}"
    );
    Ok(())
}

impl Drill {
    /// Gives rows and feedback to the joiner, and takes all rows that leave. Returns the number of
    /// events and the time.
    fn feed(&mut self, rows: u64) -> Result<(u64, Duration)> {
        let (start, mut events) = (std::time::Instant::now(), 0);
        for number in 0..rows {
            let time = Some(EventTime(number as i64));
            let key = number.to_le_bytes();
            self.row[..key.len()].copy_from_slice(&key);
            let impression = Impression { key: &key, time, row: &self.row, weight: 1.0 };
            check_use(self.joiner.add_impression(PARTITION, impression)?)?;
            self.drain()?;
            events += 1;
            if number % FEEDBACK_EVERY == 0 {
                // The impression came a while ago, and is pending still.
                let key = (number - number.min(1000)).to_le_bytes();
                let value = FeedbackValue { kind: 0, value: 1.0 };
                let feedback = Feedback { key: &key, time, value };
                check_use(self.joiner.add_feedback(PARTITION, feedback)?)?;
                self.drain()?;
                events += 1;
            }
            if number % LOOK_EVERY == 0 {
                self.look()?;
            }
        }
        self.look()?;
        Ok((events, start.elapsed()))
    }

    fn drain(&mut self) -> Result<()> {
        while let Some(row) = self.joiner.next_row()? {
            std::hint::black_box(row.row);
        }
        Ok(())
    }

    /// Compares the memory with the highest figures so far.
    fn look(&mut self) -> Result<()> {
        self.counted = self.counted.max(self.joiner.extent().memory_bytes);
        self.resident = self.resident.max(read_resident()?);
        Ok(())
    }
}
