//! Estimates of the work of a request from the bytes of its body.
//!
//! The rows of a request are known only after its body was read, and a request must be refused
//! before that. For the same model and protocol the work is a smooth function of the bytes, so that
//! an average for each power of two of bytes is within a factor of two of the truth, and mostly far
//! closer, because clients of a model send requests of the same kind. A principal has averages of
//! its own, so that none can make the requests of others look long or short.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of classes of sizes. The last one holds all bodies of 2 GiB and more.
const CLASSES: usize = 32;

/// The work of a byte in nanoseconds before anything was measured: about that of JSON with ids.
const USUAL_NS_A_BYTE: u64 = 50;

/// The weight of a new measurement in the average: one in this many.
const WEIGHT: u64 = 8;

/// A protocol by which rows come. A byte costs a different time in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Tensors over HTTP: JSON, with or without binary parts.
    Tensors,
    /// Rows over HTTP: the requests of TF-Serving's kinds.
    Rows,
    /// A user whose nearest items are asked for, over HTTP or gRPC.
    Retrieval,
    /// A message of the Open Inference Protocol over gRPC.
    GrpcTensors,
    /// A message of TensorFlow Serving over gRPC.
    GrpcTf,
}

impl Wire {
    /// The number of protocols.
    pub(crate) const COUNT: usize = 5;
}

/// The average work of requests, by the class of their size.
#[derive(Debug, Default)]
pub(crate) struct Estimates {
    /// The average in nanoseconds. 0 stands for a class without a measurement.
    classes: [AtomicU64; CLASSES],
}

/// The largest body that a request without an announced length is taken for.
const UNKNOWN_BYTES: usize = 64 << 10;

impl Estimates {
    /// Returns the average of a class, if it was measured.
    fn known(&self, class: usize) -> Option<u64> {
        Some(self.classes[class].load(Ordering::Relaxed)).filter(|&average| average > 0)
    }

    /// Returns whether anything was measured.
    fn is_measured(&self) -> bool {
        (0..CLASSES).any(|class| self.known(class).is_some())
    }

    /// Returns the estimated work of a request with this number of bytes. 0 bytes stand for a
    /// length that is not known yet.
    pub(crate) fn of_bytes(&self, bytes: usize) -> Duration {
        let unknown = || (0..=class(UNKNOWN_BYTES)).filter_map(|at| self.known(at)).max();
        let class = class(bytes);
        // A part of the work does not depend on the size, so that only the additional bytes count.
        let below = (0..=class).rev().find_map(|at| {
            let average = self.known(at)?;
            let bytes = if at == class { 0 } else { (bytes as u64).saturating_sub(1 << at) };
            Some(average.saturating_add(bytes.saturating_mul(USUAL_NS_A_BYTE)))
        });
        let above = || (class..CLASSES).find_map(|at| Some(self.known(at)? >> (at - class)));
        let usual = || (bytes as u64).saturating_mul(USUAL_NS_A_BYTE);
        let known = if bytes == 0 { unknown() } else { below.or_else(above) };
        Duration::from_nanos(known.unwrap_or_else(usual))
    }

    /// Takes the work of a request into the average of its class.
    pub(crate) fn record(&self, bytes: usize, work: Duration) {
        let work = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX / WEIGHT).max(1);
        let class = &self.classes[class(bytes)];
        // Two threads may overwrite each other's measurement, which loses one of very many.
        let average = match class.load(Ordering::Relaxed) {
            0 => work,
            average => average - average / WEIGHT + work / WEIGHT,
        };
        class.store(average.max(1), Ordering::Relaxed);
    }

    /// Returns whether the class of this size was measured, and its average is at most `bound`.
    fn is_within(&self, size: usize, bound: Duration) -> bool {
        self.known(class(size)).is_some_and(|average| Duration::from_nanos(average) <= bound)
    }

    /// Takes the work of a request into the average of its class, at most [`MOST_RATIO`] times the
    /// average.
    fn record_damped(&self, size: usize, work: Duration) {
        let most = self.known(class(size)).map(|average| average.saturating_mul(MOST_RATIO));
        self.record(size, most.map_or(work, |most| work.min(Duration::from_nanos(most))));
    }

    /// Takes the work of a request that failed into the average of its class, if it was longer than
    /// the average. A request that is refused early says nothing about the work of others.
    pub(crate) fn record_failure(&self, bytes: usize, work: Duration) {
        let average = self.known(class(bytes)).unwrap_or_default();
        if work > Duration::from_nanos(average) {
            self.record(bytes, work);
        }
    }
}

/// The ratio of a measurement to the average above which it counts as this multiple. A thread that
/// was interrupted for a time slice says little about the work.
const MOST_RATIO: u64 = 8;

/// The averages that tell small requests of one model and protocol from others: by the bytes of the
/// body, which are known before it is read, and by the rows and values in it. Both must be small,
/// because a few bytes can hold many rows that share their values.
#[derive(Debug, Default)]
pub(crate) struct SmallWork {
    by_bytes: Estimates,
    by_values: Estimates,
}

impl SmallWork {
    /// Returns whether requests of about this number of bytes were measured, and took at most
    /// `bound` on average.
    pub(crate) fn has_bytes(&self, bytes: usize, bound: Duration) -> bool {
        self.by_bytes.is_within(bytes, bound)
    }

    /// Returns whether requests with about this number of rows and values were measured, and took
    /// at most `bound` on average.
    pub(crate) fn has_values(&self, values: usize, bound: Duration) -> bool {
        self.by_values.is_within(values, bound)
    }

    /// Takes the work of a request into both averages.
    pub(crate) fn record(&self, bytes: usize, values: usize, work: Duration) {
        self.by_bytes.record_damped(bytes, work);
        self.by_values.record_damped(values, work);
    }
}

/// The averages of all protocols.
pub(crate) type OfWires = [Arc<Estimates>; Wire::COUNT];

/// The averages that a request is estimated by.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The averages of the requests of all principals.
    shared: Arc<Estimates>,
    /// The averages of the principal, if it has any of its own.
    own: Option<Arc<Estimates>>,
}

impl Known {
    /// Joins the averages of a principal and those of all.
    pub(crate) fn new(shared: Arc<Estimates>, own: Option<Arc<Estimates>>) -> Self {
        Self { shared, own }
    }

    /// Returns the estimated work of a request with this number of bytes: by the requests of the
    /// principal, or by those of all before it sent one.
    pub(crate) fn of_bytes(&self, bytes: usize) -> Duration {
        let own = self.own.as_ref().filter(|own| own.is_measured());
        own.unwrap_or(&self.shared).of_bytes(bytes)
    }

    /// Records the work of a request, and whether it failed. A failure counts for the principal
    /// alone.
    pub(crate) fn record(&self, bytes: usize, work: Duration, failed: bool) {
        let own = self.own.as_ref().unwrap_or(&self.shared);
        if failed {
            return own.record_failure(bytes, work);
        }
        own.record(bytes, work);
        if self.own.is_some() {
            self.shared.record(bytes, work);
        }
    }
}

/// Returns the class of a size: the number of bits that it needs.
fn class(bytes: usize) -> usize {
    ((usize::BITS - bytes.leading_zeros()) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_sizes_are_estimated_from_known_ones() {
        let estimates = Estimates::default();
        assert_eq!(estimates.of_bytes(1000), Duration::from_micros(50));
        for _ in 0..100 {
            estimates.record(1000, Duration::from_micros(80));
        }
        let near = |bytes, micros: f64| {
            let estimate = estimates.of_bytes(bytes).as_secs_f64() * 1e6;
            assert!((estimate / micros - 1.0).abs() < 0.1, "{bytes}: {estimate}");
        };
        near(1000, 80.0);
        // The average holds for all sizes below 1024, and each byte above costs 50 ns.
        near(2024, 130.0);
        near(101_024, 5080.0);
        near(500, 40.0);
        // A length that is not known is taken for the longest known work of a small body.
        near(0, 80.0);
        for _ in 0..100 {
            estimates.record(1000, Duration::from_micros(20));
        }
        near(1000, 20.0);
        estimates.record(1 << 20, Duration::from_secs(1));
        near(0, 20.0);
        assert!(estimates.of_bytes(usize::MAX) > Duration::from_secs(1));
    }

    #[test]
    fn a_failure_counts_only_if_it_took_long() {
        let estimates = Estimates::default();
        estimates.record(1000, Duration::from_millis(1));
        estimates.record_failure(1000, Duration::from_micros(1));
        assert_eq!(estimates.of_bytes(1000), Duration::from_millis(1));
        (0..100).for_each(|_| estimates.record_failure(1000, Duration::from_secs(1)));
        assert!(estimates.of_bytes(1000) > Duration::from_millis(900));
    }

    #[test]
    fn small_work_is_measured_and_small_by_bytes_and_by_values() {
        let (small, micros) = (SmallWork::default(), Duration::from_micros);
        let is_small = |bytes, values| {
            [small.has_bytes(bytes, micros(200)), small.has_values(values, micros(200))]
        };
        assert_eq!(is_small(1000, 40), [false, false], "nothing was measured");
        small.record(1000, 40, micros(100));
        assert_eq!(is_small(1000, 40), [true, true]);
        assert_eq!(is_small(5000, 400), [false, false]);
        // As many bytes with many rows.
        small.record(1000, 4000, micros(8000));
        assert_eq!(is_small(1000, 40), [true, true], "one measurement counts for little");
        assert_eq!(is_small(1000, 4000), [true, false]);
        (0..3).for_each(|_| small.record(1000, 4000, micros(8000)));
        assert_eq!(is_small(1000, 40), [false, true]);
        (0..20).for_each(|_| small.record(1000, 40, micros(100)));
        assert_eq!(is_small(1000, 40), [true, true]);
    }

    #[test]
    fn a_principal_does_not_spoil_the_estimates_of_another() {
        let (shared, of) = (Arc::<Estimates>::default(), Arc::<Estimates>::default);
        let (a, b) = (Known::new(shared.clone(), Some(of())), Known::new(shared, Some(of())));
        let micros = Duration::from_micros;
        b.record(100, micros(100), false);
        // The first estimate of a principal comes from the requests of all.
        assert_eq!(a.of_bytes(100), micros(100));
        (0..100).for_each(|_| a.record(100, micros(100_000), false));
        (0..100).for_each(|_| a.record(100, micros(500_000), true));
        assert!(a.of_bytes(100) > micros(400_000));
        assert_eq!(b.of_bytes(100), micros(100));
    }
}
