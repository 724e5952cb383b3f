//! The figures of a run: counts and percentiles of the whole run and of each second.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::open_loop::{Done, Outcome, Plan};

/// Percentiles of latencies in milliseconds. A latency counts from the time at which its request
/// was due.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    #[serde(rename = "p99_9_ms")]
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

impl Percentiles {
    /// Computes the percentiles by the nearest-rank method, so each of them is the latency of a
    /// real request.
    pub(crate) fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |share: f64| {
            let rank = (share * latencies.len() as f64).ceil() as usize;
            let found = latencies.get(rank.clamp(1, latencies.len().max(1)) - 1);
            found.map_or(0.0, |latency| round(latency.as_secs_f64() * 1e3))
        };
        Self {
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: at(1.0),
        }
    }
}

/// Rounds a number of milliseconds to whole microseconds.
pub(crate) fn round(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// The figures of the requests that were due within one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Slice {
    /// The start of this second, in seconds from the start of the run.
    pub(crate) second: u64,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    #[serde(flatten)]
    pub(crate) latency: Percentiles,
}

/// The figures of all requests of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// The number of requests that were due. All other figures are relative to this number of
    /// requests.
    pub(crate) requests: u64,
    /// The number of requests that were sent to the server.
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    /// The number of failed requests, by status or by kind of failure.
    pub(crate) failures: BTreeMap<String, u64>,
    /// The number of requests per second that were answered with scores.
    pub(crate) achieved_rate: f64,
    #[serde(flatten)]
    pub(crate) latency: Percentiles,
    pub(crate) slices: Vec<Slice>,
}

impl Figures {
    pub(crate) fn of(done: &[Done], plan: &Plan, elapsed: Duration) -> Self {
        let mut figures = Self { requests: done.len() as u64, ..Self::default() };
        let mut slices: BTreeMap<u64, (Vec<Duration>, u64)> = BTreeMap::new();
        for done in done {
            let (latencies, failed) = slices.entry(plan.due(done.request).as_secs()).or_default();
            latencies.push(done.latency);
            if let Some(failure) = failure(done.outcome) {
                *failed += 1;
                figures.failed += 1;
                *figures.failures.entry(failure).or_default() += 1;
            }
            let was_sent = !matches!(done.outcome, Outcome::NotSent | Outcome::NoConnection);
            figures.sent += u64::from(was_sent);
        }
        figures.ok = figures.requests - figures.failed;
        figures.achieved_rate = figures.ok as f64 / elapsed.as_secs_f64().max(1e-9);
        figures.latency = Percentiles::of(done.iter().map(|done| done.latency).collect());
        let slice = |(second, (latencies, failed)): (u64, (Vec<Duration>, u64))| Slice {
            second,
            requests: latencies.len() as u64,
            failed,
            latency: Percentiles::of(latencies),
        };
        figures.slices = slices.into_iter().map(slice).collect();
        figures
    }
}

/// Returns the name of a failure, or `None` for a success.
pub(crate) fn failure(outcome: Outcome) -> Option<String> {
    Some(match outcome {
        Outcome::Status(200..=299) => return None,
        Outcome::Status(status) => format!("status {status}"),
        Outcome::NoConnection => "no connection".to_owned(),
        Outcome::Broken => "connection broke".to_owned(),
        Outcome::Timeout => "no answer in time".to_owned(),
        Outcome::NotSent => "not sent in time".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_latencies_of_requests() {
        let ms = |ms: std::ops::RangeInclusive<u64>| ms.map(Duration::from_millis).collect();
        let thousand = Percentiles::of(ms(1..=1000));
        let Percentiles { p50_ms, p90_ms, p99_ms, p999_ms, max_ms } = thousand;
        assert_eq!([p50_ms, p90_ms, p99_ms, p999_ms, max_ms], [500.0, 900.0, 990.0, 999.0, 1000.0]);
        let one = Percentiles::of(ms(7..=7));
        assert_eq!([one.p50_ms, one.p999_ms, one.max_ms], [7.0; 3]);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn a_request_counts_in_the_second_that_it_was_due() {
        let plan = Plan {
            rate: 2.0,
            requests: 4,
            connections: 1,
            timeout: Duration::from_secs(10),
            send_within: Duration::MAX,
        };
        let done =
            |request, ms, outcome| Done { request, latency: Duration::from_millis(ms), outcome };
        let all = [
            done(1, 5000, Outcome::Status(200)),
            done(0, 1, Outcome::Status(200)),
            done(2, 3, Outcome::Status(503)),
            done(3, 9000, Outcome::NotSent),
        ];
        let figures = Figures::of(&all, &plan, Duration::from_secs(4));
        assert_eq!((figures.requests, figures.sent, figures.ok, figures.failed), (4, 3, 2, 2));
        assert_eq!(figures.achieved_rate, 0.5);
        let failures: Vec<_> = figures.failures.iter().map(|(k, &n)| (k.as_str(), n)).collect();
        assert_eq!(failures, [("not sent in time", 1), ("status 503", 1)]);
        let slices: Vec<_> = figures
            .slices
            .iter()
            .map(|s| (s.second, s.requests, s.failed, s.latency.max_ms))
            .collect();
        assert_eq!(slices, [(0, 2, 0, 5000.0), (1, 2, 2, 9000.0)]);
    }
}
