//! The metrics of the run and of the server during a benchmark, which tell what happened when.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};

use super::super::run::RunMetrics;
use super::super::source::now_ms;
use super::figures::Slow;
use crate::server::{Asker, Series, Summary};

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(100);

/// The values whose growth is recorded: the metric, and its name in the figures.
const RUN_VALUES: [(&str, &str); 3] = [
    ("zillion_trainer_checkpoint_seconds_sum", "checkpoint_seconds"),
    ("zillion_trainer_publish_seconds_sum", "publish_seconds"),
    ("zillion_trainer_publish_seconds_count", "publications"),
];
const SERVER_VALUES: [(&str, &str); 3] = [
    ("zillion_serving_load_seconds_sum", "load_seconds"),
    ("zillion_serving_load_seconds_count", "loads"),
    ("zillion_serving_merges_total", "merges"),
];
/// The metric of the seconds of each stage of training.
const STAGES: &str = "zillion_trainer_stage_seconds_total";

/// A thread that takes samples until it is finished.
pub(super) struct Samples {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Taken>>>,
    collections: Vec<Range<i64>>,
}

/// All samples.
pub(super) struct Taken {
    samples: Vec<(i64, BTreeMap<&'static str, f64>)>,
    first: (Series, Series),
    last: (Series, Series),
    /// The times in which files were collected.
    collections: Vec<Range<i64>>,
}

impl Samples {
    /// Begins to take samples of the run and of the server at `url`.
    pub(super) fn start(run: RunMetrics, url: &str) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let server = Asker::new(url)?;
        let stopped = stop.clone();
        let take = move || take(&run, &server, &stopped);
        let thread = std::thread::Builder::new().name("zillion-bench-samples".to_owned());
        Ok(Self { stop, thread: Some(thread.spawn(take)?), collections: Vec::new() })
    }

    /// Records that files were collected in this time.
    pub(super) fn note_collection(&mut self, time: Range<i64>) {
        self.collections.push(time);
    }

    /// Stops, and returns all samples.
    pub(super) fn finish(mut self) -> Result<Taken> {
        self.stop.store(true, Ordering::Relaxed);
        let taken = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(taken)) => taken?,
            _ => bail!("the thread that reads metrics panicked"),
        };
        Ok(Taken { collections: std::mem::take(&mut self.collections), ..taken })
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn take(run: &RunMetrics, server: &Asker, stopped: &AtomicBool) -> Result<Taken> {
    let both = || -> Result<(Series, Series)> {
        let (status, body) = server.get("/metrics")?;
        if status != 200 {
            bail!("the server answered GET /metrics with status {status} instead of 200");
        }
        Ok((run.read()?, Series::parse(&String::from_utf8_lossy(&body))))
    };
    let first = both()?;
    let mut last = first.clone();
    let mut samples = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        std::thread::sleep(INTERVAL);
        last = both()?;
        let of = |series: &Series, values: [(&'static str, &'static str); 3]| {
            values.map(|(metric, name)| (name, series.value(metric)))
        };
        let values = of(&last.0, RUN_VALUES).into_iter().chain(of(&last.1, SERVER_VALUES));
        samples.push((now_ms(), values.collect()));
    }
    Ok(Taken { samples, first, last, collections: Vec::new() })
}

impl Taken {
    /// Returns a histogram of the run, over the time of the samples.
    pub(super) fn online(&self, name: &str) -> Summary {
        self.last.0.histogram(name).since(&self.first.0.histogram(name)).summary()
    }

    /// Returns a histogram of the server, over the time of the samples.
    pub(super) fn server(&self, name: &str) -> Summary {
        self.last.1.histogram(name).since(&self.first.1.histogram(name)).summary()
    }

    /// Returns the number of merges of layers in the server.
    pub(super) fn merges(&self) -> f64 {
        let merges = |series: &Series| series.value("zillion_serving_merges_total");
        merges(&self.last.1) - merges(&self.first.1)
    }

    /// Returns the seconds of each stage of training.
    pub(super) fn stages(&self) -> BTreeMap<String, f64> {
        let seconds = |stage: &str| {
            let series = format!("{STAGES}{{stage=\"{stage}\"}}");
            let spent = self.last.0.sample(&series) - self.first.0.sample(&series);
            (spent * 1e3).round() / 1e3
        };
        ["wait", "pull", "model", "push", "dense", "checkpoint", "publish", "other"]
            .map(|stage| (stage.to_owned(), seconds(stage)))
            .into()
    }

    /// Adds what happened between the event and the answer. Checkpoints, publications, loads and
    /// merges are counted where they end.
    pub(super) fn explain(&self, mut slow: Slow) -> Slow {
        let at = |time: i64| self.samples.partition_point(|(taken, _)| *taken < time);
        // The growth is that between the samples around the time.
        let before = self.samples.get(at(slow.event_ms).saturating_sub(1));
        let after = self.samples.get(at(slow.answered_ms).min(self.samples.len().max(1) - 1));
        if let (Some((_, before)), Some((_, after))) = (before, after) {
            for (name, value) in after {
                let grown = value - before.get(name).copied().unwrap_or_default();
                slow.meanwhile.insert(name, (grown * 1e3).round() / 1e3);
            }
        }
        let is_meanwhile =
            |time: &&Range<i64>| time.start < slow.answered_ms && slow.event_ms < time.end;
        let collections = self.collections.iter().filter(is_meanwhile).count();
        slow.meanwhile.insert("collections", collections as f64);
        slow
    }
}
