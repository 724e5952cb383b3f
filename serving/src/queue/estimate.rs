//! Estimates of the work of a request from the bytes of its body.
//!
//! The rows of a request are known only after its body was read, and a request must be refused
//! before that. For the same model and protocol the work is a smooth function of the bytes, so that
//! an average for each power of two of bytes is within a factor of two of the truth, and mostly far
//! closer, because clients of a model send requests of the same kind.

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
    /// A message of the Open Inference Protocol over gRPC.
    GrpcTensors,
    /// A message of TensorFlow Serving over gRPC.
    GrpcTf,
}

impl Wire {
    /// The number of protocols.
    pub(crate) const COUNT: usize = 4;
}

/// The average work of requests, by the class of their size.
#[derive(Debug, Default)]
pub(crate) struct Estimates {
    /// The average in nanoseconds. 0 stands for a class without a measurement.
    classes: [AtomicU64; CLASSES],
}

impl Estimates {
    /// Returns the estimated work of a request with this number of bytes.
    pub(crate) fn of_bytes(&self, bytes: usize) -> Duration {
        let class = class(bytes);
        let known = |class: usize| match self.classes[class].load(Ordering::Relaxed) {
            0 => None,
            average => Some(average),
        };
        let below = (0..=class).rev().find_map(|at| Some(known(at)? << (class - at).min(20)));
        let above = || (class..CLASSES).find_map(|at| Some(known(at)? >> (at - class).min(63)));
        let usual = || (bytes as u64).saturating_mul(USUAL_NS_A_BYTE);
        Duration::from_nanos(below.or_else(above).unwrap_or_else(usual))
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
        near(2000, 160.0);
        near(100_000, 80.0 * 128.0);
        near(500, 40.0);
        for _ in 0..100 {
            estimates.record(1000, Duration::from_micros(20));
        }
        near(1000, 20.0);
        assert!(estimates.of_bytes(usize::MAX) > Duration::from_secs(1));
    }
}
