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
//!
//! A block of pinned memory is freed when it is dropped, for which a driver waits for the whole
//! device. So its owner takes part in the order too ([`OrderedBlock`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::device::{Event, Gpu, Graph, Stream};
use super::error::GpuError;
use super::info::{Counters, Info};
use super::launch::Launch;
use super::memory::{Memory, Pinned, PinnedOwner};
use super::product::{Algorithm, Product};

/// A device whose allocations are counted and limited.
#[derive(Debug)]
pub struct Budgeted {
    inner: Arc<dyn Gpu>,
    budget: u64,
    used: AtomicU64,
    order: Arc<Order>,
}

/// The order of the operations of all threads.
#[derive(Debug, Default)]
struct Order {
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
    /// The threads whose operations run, without the thread that records.
    running: Vec<ThreadId>,
    /// The blocks of pinned memory that the recording thread has dropped.
    dropped: Vec<Arc<dyn PinnedOwner>>,
}

/// An operation that runs. It has no order if it is a part of an operation of the same thread.
struct Turn<'a>(Option<&'a Order>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(order) = self.0 {
            let own = thread::current().id();
            let mut turns = order.lock();
            if let Some(at) = turns.running.iter().position(|&thread| thread == own) {
                turns.running.swap_remove(at);
            }
            drop(turns);
            order.changed.notify_all();
        }
    }
}

impl Order {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread records or waits to record, and begins an operation.
    fn turn(&self) -> Turn<'_> {
        let own = thread::current().id();
        let mut turns = self.lock();
        if turns.recording == Some(own) || turns.running.contains(&own) {
            return Turn(None);
        }
        while turns.recording.is_some() || turns.waiting > 0 {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.running.push(own);
        Turn(Some(self))
    }

    /// Waits until this thread alone uses the device. Returns whether it records already.
    fn begin_record(&self) -> bool {
        let own = Some(thread::current().id());
        let mut turns = self.lock();
        turns.waiting += 1;
        while turns.recording != own && (turns.recording.is_some() || !turns.running.is_empty()) {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        let is_nested = turns.recording == own;
        turns.waiting -= 1;
        turns.recording = own;
        is_nested
    }

    /// Frees the blocks that were dropped during the record, and lets the other threads go on.
    fn end_record(&self) {
        let dropped = std::mem::take(&mut self.lock().dropped);
        for block in dropped {
            block.note_release();
        }
        self.lock().recording = None;
        self.changed.notify_all();
    }

    /// Releases a block that the host has dropped: now, or after the record of this thread.
    fn release(&self, block: &Arc<dyn PinnedOwner>) {
        let _turn = self.turn();
        let mut turns = self.lock();
        if turns.recording == Some(thread::current().id()) {
            turns.dropped.push(block.clone());
            return;
        }
        drop(turns);
        block.note_release();
    }
}

/// The owner of a block of pinned memory, which is freed in the order of the operations.
#[derive(Debug)]
struct OrderedBlock {
    order: Arc<Order>,
    /// The owner of the device; `None` while the value is dropped.
    block: Option<Arc<dyn PinnedOwner>>,
}

impl Drop for OrderedBlock {
    fn drop(&mut self) {
        // Within a record of this thread, the list of dropped blocks keeps the memory.
        let _turn = self.order.turn();
        self.block = None;
    }
}

impl PinnedOwner for OrderedBlock {
    fn number(&self) -> u64 {
        self.block.as_ref().map_or(0, |block| block.number())
    }

    fn note_access(&self, offset: usize, bytes: usize, is_write: bool) {
        if let Some(block) = &self.block {
            block.note_access(offset, bytes, is_write);
        }
    }

    fn note_release(&self) {
        if let Some(block) = &self.block {
            self.order.release(block);
        }
    }
}

impl Budgeted {
    /// Limits the memory of a device to `budget` bytes.
    pub fn new(inner: Arc<dyn Gpu>, budget: u64) -> Self {
        Self { inner, budget, used: AtomicU64::new(0), order: Arc::default() }
    }

    /// Returns the number of bytes of the budget.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the number of bytes that are allocated now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn turn(&self) -> Turn<'_> {
        self.order.turn()
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
        let pinned = self.inner.allocate_pinned(bytes)?;
        let order = self.order.clone();
        Ok(pinned.with_owner(|block| Arc::new(OrderedBlock { order, block: Some(block) })))
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
        // The device refuses a record within a record of the same thread.
        let is_nested = self.order.begin_record();
        let begun = self.inner.begin_capture(stream);
        if begun.is_err() && !is_nested {
            self.order.end_record();
        }
        begun
    }
    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError> {
        let ended = self.inner.end_capture(stream);
        self.order.end_record();
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

    #[test]
    fn pinned_memory_is_dropped_between_the_records_of_other_threads() {
        let gpu = Budgeted::new(Arc::from(open("emulated:3", None).unwrap()), 1 << 20);
        thread::scope(|scope| {
            scope.spawn(|| {
                let stream = gpu.create_stream().unwrap();
                let memory = gpu.allocate(256).unwrap();
                for _ in 0..200 {
                    gpu.begin_capture(stream).unwrap();
                    thread::yield_now();
                    gpu.fill(stream, memory, 1).unwrap();
                    let graph = gpu.end_capture(stream).unwrap();
                    gpu.replay(stream, graph).unwrap();
                    gpu.synchronize(stream).unwrap();
                    gpu.free_graph(graph).unwrap();
                }
            });
            scope.spawn(|| (0..400).for_each(|_| drop(gpu.allocate_pinned(64).unwrap())));
        });
        // A device that has found a mistake refuses everything.
        gpu.free_bytes().unwrap();
    }

    #[test]
    fn the_recording_thread_drops_pinned_memory_after_its_record() {
        let gpu = Budgeted::new(Arc::from(open("emulated:4", None).unwrap()), 1 << 20);
        let stream = gpu.create_stream().unwrap();
        let memory = gpu.allocate(8).unwrap();
        let mut pinned = gpu.allocate_pinned(8).unwrap();
        pinned.write(0, &[7u64]).unwrap();
        let other = gpu.allocate_pinned(8).unwrap();
        gpu.begin_capture(stream).unwrap();
        gpu.copy_in(stream, memory, &pinned, 0).unwrap();
        drop(other);
        let graph = gpu.end_capture(stream).unwrap();
        // The graph keeps the memory of the block.
        drop(pinned);
        gpu.replay(stream, graph).unwrap();
        let mut read = [0u8; 8];
        gpu.download(stream, &mut read, memory).unwrap();
        assert_eq!(u64::from_le_bytes(read), 7);
        // The last owner of the block is dropped within this operation.
        gpu.free_graph(graph).unwrap();
        gpu.free_bytes().unwrap();
    }
}
