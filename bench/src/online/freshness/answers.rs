//! The client: asks for a prediction again and again, and records when each version first answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Serialize;

use super::super::source::now_ms;
use crate::load::answers::named_version;
use crate::load::target::Target;
use crate::server::Asker;

/// The time between two requests.
const INTERVAL: Duration = Duration::from_millis(10);

/// A thread that asks until it is finished.
pub(super) struct Answers {
    stop: Arc<AtomicBool>,
    newest: Arc<AtomicU64>,
    thread: Option<JoinHandle<(BTreeMap<u64, i64>, AnswerFigures)>>,
}

/// The figures of the client.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct AnswerFigures {
    pub(super) requests: u64,
    /// The number of requests that the server refused with status 429, because it was overloaded.
    refused: u64,
    /// The number of requests without an answer for another reason.
    pub(super) failed: u64,
    /// The reasons of all requests without an answer.
    failures: BTreeMap<String, u64>,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl Answers {
    /// Starts to send `body`, a request of one row, to `target`.
    pub(super) fn start(target: Target, body: Bytes) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let newest = Arc::new(AtomicU64::new(0));
        let asker = Asker::new(&format!("http://{}", target.address))?;
        let (stopped, seen) = (stop.clone(), newest.clone());
        let ask = move || ask(&asker, &target, &body, &stopped, &seen);
        let thread = std::thread::Builder::new().name("zillion-bench-client".to_owned());
        Ok(Self { stop, newest, thread: Some(thread.spawn(ask)?) })
    }

    /// Returns the largest number of a version that has answered, or 0 if none has.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Stops the client. Returns the time in milliseconds since 1970 at which each version first
    /// answered.
    pub(super) fn finish(mut self) -> Result<(BTreeMap<u64, i64>, AnswerFigures)> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(answers)) => Ok(answers),
            _ => bail!("the thread that asks the server panicked"),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn ask(
    asker: &Asker,
    target: &Target,
    body: &Bytes,
    stopped: &AtomicBool,
    newest: &AtomicU64,
) -> (BTreeMap<u64, i64>, AnswerFigures) {
    let mut firsts = BTreeMap::new();
    let mut figures = AnswerFigures::default();
    let mut times = Vec::new();
    let sent = std::cell::Cell::new(Instant::now());
    let start = Instant::now();
    let mut count = 0u32;
    let next = || {
        count += 1;
        std::thread::sleep((INTERVAL * count).saturating_sub(start.elapsed()));
        sent.set(Instant::now());
        (!stopped.load(Ordering::Relaxed)).then(|| body.clone())
    };
    asker.post_each(target, next, |answer| {
        figures.requests += 1;
        times.push(sent.get().elapsed().as_secs_f64() * 1e3);
        match read_version(answer) {
            Ok(version) => {
                firsts.entry(version).or_insert_with(now_ms);
                newest.fetch_max(version, Ordering::Relaxed);
            }
            Err((status, reason)) => {
                let count = if status == 429 { &mut figures.refused } else { &mut figures.failed };
                *count += 1;
                *figures.failures.entry(reason).or_default() += 1;
            }
        }
    });
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (times.len() as f64 * share) as usize;
        times.get(place.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    (figures.p50_ms, figures.p99_ms, figures.max_ms) = (at(0.5), at(0.99), at(1.0));
    (firsts, figures)
}

/// Returns the version that an answer names, or its status and the reason why it names none. The
/// status of a request without an answer is 0.
fn read_version(answer: Result<(u16, Bytes)>) -> Result<u64, (u16, String)> {
    let (status, body) = answer.map_err(|error| (0, format!("{error:#}")))?;
    let version = named_version(&body).filter(|_| status == 200).and_then(|text| text.parse().ok());
    version.ok_or_else(|| {
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        (status, format!("status {status}: {text}"))
    })
}
