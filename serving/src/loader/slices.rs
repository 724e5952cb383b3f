//! The throttle of a load: it rests between slices while requests are open, and ends the load when
//! the loader is to stop.

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use zillion_device::thread_time;
use zillion_rows::layer::Throttle;

use crate::metrics::Metrics;

/// The payload of the unwinding that ends a load. Reading, hashing, merging and scoring all pass
/// through [`Throttle::piece`], and no function between has to know that a load can end early.
#[derive(Debug)]
struct Stopped;

/// Returns whether an unwinding was the end of a load, and not a defect.
pub(super) fn is_stop(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Stopped>()
}

/// The throttle of a load.
#[derive(Debug)]
pub(super) struct Slices {
    began: Instant,
    /// The processor time of this thread when the slice began.
    cpu: Duration,
    busy: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Slices {
    pub(super) fn new(
        busy: Arc<AtomicUsize>,
        stop: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { began: Instant::now(), cpu: cpu_time(), busy, stop, metrics }
    }

    /// Returns a throttle with the same rules for another thread.
    pub(super) fn another(&self) -> Self {
        Self::new(self.busy.clone(), self.stop.clone(), self.metrics.clone())
    }

    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.cpu = cpu_time();
    }
}

impl Throttle for Slices {
    /// # Panics
    /// Unwinds without a message if the loader is to stop. The thread of the loader catches it.
    fn piece(&mut self) {
        if self.stop.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Stopped));
        }
        let took = self.began.elapsed();
        let cpu = cpu_time().saturating_sub(self.cpu);
        self.metrics.load_slice_seconds.observe(took.as_secs_f64());
        self.metrics.load_slice_cpu_seconds.observe(cpu.as_secs_f64());
        if self.busy.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(took);
        }
        self.begin();
    }

    fn waited(&mut self) {
        self.begin();
    }
}

fn cpu_time() -> Duration {
    thread_time().unwrap_or_default()
}
