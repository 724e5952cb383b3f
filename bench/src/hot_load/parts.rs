//! The latencies of requests, separately for each part of the run.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use crate::load::figures::{Figures, Percentiles};
use crate::load::open_loop::{Done, Plan};

/// The figures of the requests that were due in one part of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Part {
    /// The length of the part in seconds.
    seconds: f64,
    requests: u64,
    failed: u64,
    #[serde(flatten)]
    latency: Percentiles,
}

impl Part {
    /// Computes the figures of the requests that were due in the range `time`, which counts from
    /// the start of the run.
    pub(crate) fn of(done: &[Done], plan: &Plan, time: Range<Duration>) -> Self {
        let is_in = |done: &&Done| time.contains(&plan.due(done.request));
        let own: Vec<Done> = done.iter().filter(is_in).copied().collect();
        let length = time.end.saturating_sub(time.start);
        let figures = Figures::of(&own, plan, length);
        Self {
            seconds: (length.as_secs_f64() * 10.0).round() / 10.0,
            requests: figures.requests,
            failed: figures.failed,
            latency: figures.latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::open_loop::Outcome;

    #[test]
    fn a_request_belongs_to_the_part_in_which_it_was_due() {
        let plan = Plan {
            rate: 1.0,
            requests: 4,
            connections: 1,
            timeout: Duration::MAX,
            send_within: Duration::MAX,
        };
        let done = |request| Done {
            request,
            // The request ends long after the part of the run in which it was due.
            latency: Duration::from_secs(10 + request),
            outcome: Outcome::Status(if request == 2 { 503 } else { 200 }),
        };
        let all: Vec<Done> = (0..4).map(done).collect();
        let part = Part::of(&all, &plan, Duration::from_secs(1)..Duration::from_secs(3));
        assert_eq!((part.requests, part.failed, part.latency.max_ms), (2, 1, 12_000.0));
    }
}
