//! The ratio of the time that passes in a crowded server to the work that it estimated.

use std::time::{Duration, Instant};

/// The work of the last requests that decides the ratio: older work counts for less and less.
const REMEMBERED: Duration = Duration::from_millis(100);

/// The largest ratio. Above it, the server does something else than its requests.
const MOST: f64 = 8.0;

/// The measured ratio. Only the time from one request to the next counts, and only if the queue had
/// requests all along: that of an idle server says nothing.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time in which the queue was never empty, and the time that was estimated for its work.
    passed: Duration,
    estimated: Duration,
    /// The time when the last request was taken, and its estimate, if other requests waited.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Records that a request was taken, with the estimated time until the next one is. `others`
    /// says whether other requests wait.
    pub(super) fn take(&mut self, now: Instant, estimate: Duration, others: bool) {
        if let Some((then, estimate)) = self.last {
            self.passed += now.saturating_duration_since(then);
            self.estimated += estimate;
            if self.passed.max(self.estimated) > REMEMBERED {
                self.passed /= 2;
                self.estimated /= 2;
            }
        }
        self.last = others.then_some((now, estimate));
    }

    /// Records that the queue is empty.
    pub(super) fn end(&mut self) {
        self.last = None;
    }

    /// Returns the time in which estimated work is done. Estimates that are too high are not
    /// corrected, because the next requests may be of another kind.
    pub(super) fn correct(&self, work: Duration) -> Duration {
        if self.passed <= self.estimated {
            return work;
        }
        let ratio = self.passed.as_secs_f64() / self.estimated.as_secs_f64().max(1e-9);
        work.mul_f64(ratio.min(MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_a_queue_that_is_never_empty() {
        let ms = Duration::from_millis;
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.correct(ms(10)), ms(10));
        // Each request takes three times its estimate.
        for _ in 0..1000 {
            pace.take(now, ms(1), true);
            now += ms(3);
        }
        let corrected = pace.correct(ms(10)).as_secs_f64();
        assert!((corrected - 0.03).abs() < 0.0003, "{corrected}");
        // A pause of an idle server does not count.
        pace.take(now, ms(1), false);
        pace.end();
        pace.take(now + ms(10_000), ms(1), true);
        let corrected = pace.correct(ms(10)).as_secs_f64();
        assert!((corrected - 0.03).abs() < 0.0003, "{corrected}");
        // Estimates that are too high, and requests that do not wait, leave the backlog alone.
        now += ms(10_000);
        for _ in 0..1000 {
            pace.take(now, ms(5), true);
            now += ms(1);
        }
        assert_eq!(pace.correct(ms(10)), ms(10));
    }
}
