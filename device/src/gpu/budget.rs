//! A device that several threads share, with a budget of memory.
//!
//! All models of a server share one device and one budget. An allocation beyond the budget is
//! refused with its figures, although the device may have more memory, so that other programs keep
//! theirs. Pinned memory, the code of kernels and what the driver takes for itself do not count.

//!
//! # Concurrency
//! While one thread records a graph, the operations of the other threads wait: a device refuses
//! allocations and waits during a record. A record waits until no operation runs, and later
//! operations wait behind it. Records are rare and short.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::device::{Event, Gpu, Graph, Stream};
use super::error::GpuError;
use super::info::{Counters, Info};
use super::launch::Launch;
use super::memory::{Memory, Pinned};
use super::product::{Algorithm, Product};

/// A device whose allocations are counted and limited.
#[derive(Debug)]
pub struct Budgeted {
    inner: Arc<dyn Gpu>,
    budget: u64,
    used: AtomicU64,
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// The operations of the threads.
#[derive(Debug, Default)]
struct Turns {
    /// The thread that records a graph.
    recording: Option<ThreadId>,
    /// The number of threads that wait to record.
    waiting: usize,
    /// The number of operations that run, without those of the thread that records.
    running: usize,
}

/// An operation that runs.
struct Turn<'a>(Option<&'a Budgeted>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(device) = self.0 {
            device.lock().running -= 1;
            device.changed.notify_all();
        }
    }
}

impl Budgeted {
    /// Limits the memory of a device to `budget` bytes.
    pub fn new(inner: Arc<dyn Gpu>, budget: u64) -> Self {
        let used = AtomicU64::new(0);
        Self { inner, budget, used, turns: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns the number of bytes of the budget.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the number of bytes that are allocated now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the other threads go on.
    fn end_record(&self) {
        self.lock().recording = None;
        self.changed.notify_all();
    }

    /// Waits until no other thread records or waits to record, and begins an operation.
    fn turn(&self) -> Turn<'_> {
        let own = Some(thread::current().id());
        let mut turns = self.lock();
        if turns.recording == own {
            return Turn(None);
        }
        while turns.recording.is_some() || turns.waiting > 0 {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.running += 1;
        Turn(Some(self))
    }

    /// Returns the number of bytes of the budget that are free.
    pub fn left(&self) -> u64 {
        self.budget.saturating_sub(self.used())
    }
}

impl Gpu for Budgeted {
    fn info(&self) -> &Info {
        self.inner.info()
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn launches(&self) -> Vec<(&'static str, u64)> {
        self.inner.launches()
    }
    fn free_bytes(&self) -> Result<u64, GpuError> {
        let _turn = self.turn();
        Ok(self.inner.free_bytes()?.min(self.left()))
    }
    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let wanted = bytes as u64;
        let within = |used: u64| used.checked_add(wanted).filter(|&sum| sum <= self.budget);
        let order = Ordering::Relaxed;
        if let Err(used) = self.used.fetch_update(order, order, within) {
            return Err(GpuError::Budget { bytes, used, budget: self.budget });
        }
        let _turn = self.turn();
        self.inner.allocate(bytes).inspect_err(|_| {
            self.used.fetch_sub(wanted, order);
        })
    }
    fn free(&self, memory: Memory) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.free(memory)?;
        self.used.fetch_sub(memory.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        let _turn = self.turn();
        self.inner.allocate_pinned(bytes)
    }
    fn create_stream(&self) -> Result<Stream, GpuError> {
        let _turn = self.turn();
        self.inner.create_stream()
    }
    fn free_stream(&self, stream: Stream) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.free_stream(stream)
    }
    fn create_event(&self, is_timed: bool) -> Result<Event, GpuError> {
        let _turn = self.turn();
        self.inner.create_event(is_timed)
    }
    fn free_event(&self, event: Event) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.free_event(event)
    }
    fn record(&self, event: Event, stream: Stream) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.record(event, stream)
    }
    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.wait(stream, event)
    }
    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        let _turn = self.turn();
        self.inner.is_done(event)
    }
    fn synchronize_event(&self, event: Event) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.synchronize_event(event)
    }
    fn elapsed(&self, from: Event, to: Event) -> Result<f64, GpuError> {
        let _turn = self.turn();
        self.inner.elapsed(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.synchronize(stream)
    }
    fn copy_in(
        &self,
        stream: Stream,
        to: Memory,
        from: &Pinned,
        offset: usize,
    ) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.copy_in(stream, to, from, offset)
    }
    fn copy_out(
        &self,
        stream: Stream,
        to: &Pinned,
        offset: usize,
        from: Memory,
    ) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.copy_out(stream, to, offset, from)
    }
    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.copy(stream, to, from)
    }
    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.fill(stream, to, byte)
    }
    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.upload(stream, to, from)
    }
    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.download(stream, to, from)
    }
    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.launch(stream, launch)
    }
    fn prepare(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.prepare(stream, product)
    }
    fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.inner.algorithm(product)
    }
    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.set_algorithm(product, algorithm)
    }
    fn multiply(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.multiply(stream, product)
    }
    fn begin_capture(&self, stream: Stream) -> Result<(), GpuError> {
        let mut turns = self.lock();
        turns.waiting += 1;
        let own = Some(thread::current().id());
        // The device refuses a record within a record of the same thread.
        while turns.recording != own && (turns.recording.is_some() || turns.running > 0) {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        let is_nested = turns.recording == own;
        turns.waiting -= 1;
        turns.recording = own;
        drop(turns);
        let begun = self.inner.begin_capture(stream);
        if begun.is_err() && !is_nested {
            self.end_record();
        }
        begun
    }
    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError> {
        let ended = self.inner.end_capture(stream);
        self.end_record();
        ended
    }
    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.replay(stream, graph)
    }
    fn free_graph(&self, graph: Graph) -> Result<(), GpuError> {
        let _turn = self.turn();
        self.inner.free_graph(graph)
    }
}

#[cfg(all(test, feature = "emulated-gpu"))]
mod tests {
    use super::super::open;
    use super::*;

    #[test]
    fn an_allocation_beyond_the_budget_names_the_figures() {
        let gpu = Budgeted::new(Arc::from(open("emulated:1", None).unwrap()), 1000);
        let first = gpu.allocate(600).unwrap();
        let error = gpu.allocate(401).unwrap_err().to_string();
        for figure in ["401", "600", "1000"] {
            assert!(error.contains(figure), "{error}");
        }
        let second = gpu.allocate(400).unwrap();
        assert_eq!((gpu.used(), gpu.left()), (1000, 0));
        gpu.free(first).unwrap();
        gpu.free(second).unwrap();
        assert_eq!((gpu.used(), gpu.left()), (0, 1000));
        assert!(gpu.allocate(usize::MAX).is_err());
        assert_eq!(gpu.used(), 0);
    }

    #[test]
    fn operations_of_other_threads_wait_while_a_graph_is_recorded() {
        let gpu = Budgeted::new(Arc::from(open("emulated:2", None).unwrap()), 1 << 20);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let stream = gpu.create_stream().unwrap();
                    let memory = gpu.allocate(256).unwrap();
                    for _ in 0..200 {
                        gpu.begin_capture(stream).unwrap();
                        gpu.fill(stream, memory, 1).unwrap();
                        let graph = gpu.end_capture(stream).unwrap();
                        gpu.replay(stream, graph).unwrap();
                        gpu.synchronize(stream).unwrap();
                        gpu.free_graph(graph).unwrap();
                    }
                });
                scope.spawn(|| {
                    for _ in 0..200 {
                        let memory = gpu.allocate(512).unwrap();
                        gpu.free(memory).unwrap();
                    }
                });
            }
        });
        assert_eq!(gpu.used(), 2 * 256);
    }
}
