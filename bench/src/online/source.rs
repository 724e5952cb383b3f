//! Sources of events: threads that write files into the partitions of a followed folder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use zillion_feature::random::combine;

use super::events::{Events, share};
use super::writer::PartitionWriter;

/// The number of partitions of a source.
pub(super) const PARTITIONS: usize = 4;
/// The time between two files of a partition of a steady source.
const STEADY: Duration = Duration::from_millis(100);
/// The time between two moments at which a source with pauses writes or pauses.
const BURST: Duration = Duration::from_millis(250);
/// The time for which the last partition of a source with pauses has events, or has none.
const QUIET: Duration = Duration::from_secs(4);
/// The rows of a file of a backlog.
const BACKLOG_ROWS: u64 = 1000;

/// A source that writes until its time is over, or until this value is dropped.
#[derive(Debug)]
pub(super) struct Source {
    stop: Arc<AtomicBool>,
    events: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<Vec<PartitionWriter>>>>,
}

impl Source {
    /// Starts a source with a constant rate of events per second over all partitions. The events of
    /// a file happen evenly in the time since the file before it. Files are removed after `kept`.
    pub(super) fn steady(root: &Path, rate: u64, seconds: f64, kept: Duration) -> Result<Self> {
        let mut writers = create(root, true)?;
        Self::start(move |stop, count| {
            let mut events = Events::new(1);
            let (start, start_ms) = (Instant::now(), now_ms());
            let each = rate as f64 / PARTITIONS as f64;
            let step = STEADY / PARTITIONS as u32;
            let mut until = [0.0; PARTITIONS];
            for tick in 1u32.. {
                let due = step * tick;
                if stop.load(Ordering::Relaxed) || due.as_secs_f64() > seconds {
                    break;
                }
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                let partition = tick as usize % PARTITIONS;
                let (from, to) = (until[partition], start.elapsed().as_secs_f64());
                until[partition] = to;
                // The number of events up to a time is exact, whatever the lengths of the ticks.
                let numbers = (from * each) as u64..(to * each) as u64;
                let writer = &mut writers[partition];
                let times = numbers.map(|number| start_ms + (number as f64 / each * 1e3) as i64);
                writer.write_lines(times.map(|time| events.draw(time)))?;
                writer.remove_older(kept)?;
                count.store(writers.iter().map(|w| w.events).sum(), Ordering::Relaxed);
            }
            Ok(writers)
        })
    }

    /// Starts a source that writes bursts of events with random pauses, until it has written
    /// `bytes` in about this many seconds. The last partition is without events half of the time.
    pub(super) fn with_pauses(root: &Path, bytes: u64, seconds: f64, seed: u64) -> Result<Self> {
        let mut writers = create(root, false)?;
        Self::start(move |stop, count| {
            let mut events = Events::new(seed);
            let start = Instant::now();
            let ticks = (seconds / BURST.as_secs_f64()).ceil().max(1.0) as u32;
            let written = |writers: &[PartitionWriter]| -> u64 {
                writers.iter().map(|writer| writer.bytes).sum()
            };
            // The size of an event is known after the first burst.
            let mut event_bytes = 270.0;
            for tick in 0..ticks {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep((BURST * tick).saturating_sub(start.elapsed()));
                let random = combine(seed, u64::from(tick));
                let is_last = tick + 1 == ticks;
                if random & 1 == 0 && !is_last {
                    continue;
                }
                // What pauses leave out is made up for in the ticks that are left.
                let left = bytes.saturating_sub(written(&writers)) as f64;
                let bursts = if is_last { 1.0 } else { f64::from(ticks - tick).max(2.0) / 2.0 };
                let active = match (start.elapsed().as_secs() / QUIET.as_secs()) % 2 {
                    0 => PARTITIONS,
                    _ => PARTITIONS - 1,
                };
                let rows = left / bursts / event_bytes;
                for writer in &mut writers[..active] {
                    let own = (rows / active as f64 * (0.5 + share(random))).ceil() as u64;
                    let time = now_ms();
                    writer.write_lines((0..own).map(|_| events.draw(time)))?;
                }
                let all: u64 = writers.iter().map(|writer| writer.events).sum();
                event_bytes = written(&writers) as f64 / (all as f64).max(1.0);
                count.store(all, Ordering::Relaxed);
            }
            Ok(writers)
        })
    }

    fn start(
        run: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<Vec<PartitionWriter>> + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (stop.clone(), events.clone());
        let thread = std::thread::Builder::new().name("zillion-bench-source".to_owned());
        let thread = thread.spawn(move || run(&stopped, &count))?;
        Ok(Self { stop, events, thread: Some(thread) })
    }

    /// Returns the number of events that were written so far.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Returns whether the source has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the source. Returns what it has written.
    pub(super) fn finish(mut self) -> Result<Vec<PartitionWriter>> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            _ => bail!("the thread of the source panicked"),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The error or the panic of a source that nobody waits for has no reader.
            let _ = thread.join();
        }
    }
}

/// Writes events of `seconds` seconds before now. Returns their number.
pub(super) fn write_backlog(root: &Path, rate: u64, seconds: f64) -> Result<u64> {
    let mut writers = create(root, false)?;
    let mut events = Events::new(1);
    let all = (rate as f64 * seconds) as u64;
    let begin = now_ms() - (seconds * 1e3) as i64;
    let mut number = 0;
    while number < all {
        for writer in &mut writers {
            let rows = number..(number + BACKLOG_ROWS).min(all);
            number = rows.end;
            let times = rows.map(|number| begin + (number as f64 / rate as f64 * 1e3) as i64);
            writer.write_lines(times.map(|time| events.draw(time)))?;
        }
    }
    Ok(all)
}

fn create(root: &Path, is_recorded: bool) -> Result<Vec<PartitionWriter>> {
    (0..PARTITIONS).map(|number| PartitionWriter::create(root, number, is_recorded)).collect()
}

/// Returns the time in milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as i64
}
