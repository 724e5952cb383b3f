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
const RUN_VALUES: [(&str, &str); 2] = [
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

/// The metrics of one moment.
struct Sample {
    taken_ms: i64,
    /// The number of steps that were made.
    steps: f64,
    /// The seconds of all checkpoints that were written.
    checkpoint_seconds: f64,
    /// The values whose growth is recorded.
    values: BTreeMap<&'static str, f64>,
}

/// The samples of a whole benchmark.
pub(super) struct Taken {
    samples: Vec<Sample>,
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
        let of_run = RUN_VALUES.map(|(metric, name)| (name, last.0.value(metric)));
        let of_server = SERVER_VALUES.map(|(metric, name)| (name, last.1.value(metric)));
        samples.push(Sample {
            taken_ms: now_ms(),
            steps: last.0.value("zillion_trainer_step"),
            checkpoint_seconds: last.0.value("zillion_trainer_checkpoint_seconds_sum"),
            values: of_run.into_iter().chain(of_server).collect(),
        });
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

    /// Adds what happened between the event and the answer. Publications, loads and merges are
    /// counted where they end.
    pub(super) fn explain(&self, mut slow: Slow) -> Slow {
        let place = |time: i64| self.samples.partition_point(|sample| sample.taken_ms < time);
        // The growth is that between the samples around the time.
        let before = self.samples.get(place(slow.event_ms).saturating_sub(1));
        let after = self.samples.get(place(slow.answered_ms)).or(self.samples.last());
        if let (Some(before), Some(after)) = (before, after) {
            for (name, value) in &after.values {
                let grown = value - before.values.get(name).copied().unwrap_or_default();
                slow.meanwhile.insert(name, round(grown));
            }
        }
        let trained = self.samples.partition_point(|sample| sample.steps < slow.batch as f64);
        slow.until_trained = self.samples.get(trained).map_or(0.0, |sample| {
            round(
                (sample.taken_ms - slow.event_ms).min(slow.answered_ms - slow.event_ms) as f64
                    / 1e3,
            )
        });
        let during = slow.event_ms..slow.answered_ms;
        let open =
            self.checkpoints().map(|checkpoint| common_ms(&checkpoint, &during)).sum::<i64>();
        slow.meanwhile.insert("checkpoint_seconds", round(open as f64 / 1e3));
        let collecting = self.collections.iter().map(|time| common_ms(time, &during)).sum::<i64>();
        slow.meanwhile.insert("collection_seconds", round(collecting as f64 / 1e3));
        slow
    }

    /// Returns the times in which checkpoints were open.
    fn checkpoints(&self) -> impl Iterator<Item = Range<i64>> {
        self.samples.windows(2).filter_map(|pair| {
            let seconds = pair[1].checkpoint_seconds - pair[0].checkpoint_seconds;
            let end = pair[1].taken_ms;
            (seconds > 0.0).then(|| end - (seconds * 1e3) as i64..end)
        })
    }
}

/// Returns the number of milliseconds that two times have in common.
fn common_ms(one: &Range<i64>, other: &Range<i64>) -> i64 {
    (one.end.min(other.end) - one.start.max(other.start)).max(0)
}

/// Rounds seconds to milliseconds.
fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_between_an_event_and_its_answer_is_found() {
        let sample = |taken_ms, steps, checkpoint_seconds| Sample {
            taken_ms,
            steps,
            checkpoint_seconds,
            values: BTreeMap::from([("merges", steps * 2.0)]),
        };
        let taken = Taken {
            samples: vec![sample(100, 1.0, 0.0), sample(200, 2.0, 0.0), sample(300, 4.0, 0.25)],
            first: Default::default(),
            last: Default::default(),
            collections: vec![0..160, 290..500],
        };
        let mut slow = Slow::default();
        (slow.batch, slow.event_ms, slow.answered_ms) = (2, 110, 295);
        let slow = taken.explain(slow);
        assert_eq!(slow.until_trained, 0.09);
        let found = ["merges", "checkpoint_seconds", "collection_seconds"];
        assert_eq!(found.map(|name| slow.meanwhile[name]), [6.0, 0.185, 0.055]);
    }
}
