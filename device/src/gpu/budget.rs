//! A device whose memory is limited by a budget.
//!
//! All models of a server share one device and one budget. An allocation beyond the budget is
//! refused with its figures, although the device may have more memory, so that other programs keep
//! theirs. Pinned memory, the code of kernels and what the driver takes for itself do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl Budgeted {
    /// Limits the memory of a device to `budget` bytes.
    pub fn new(inner: Arc<dyn Gpu>, budget: u64) -> Self {
        Self { inner, budget, used: AtomicU64::new(0) }
    }

    /// Returns the number of bytes of the budget.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the number of bytes that are allocated now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
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
        Ok(self.inner.free_bytes()?.min(self.left()))
    }
    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let wanted = bytes as u64;
        let within = |used: u64| used.checked_add(wanted).filter(|&sum| sum <= self.budget);
        let order = Ordering::Relaxed;
        if let Err(used) = self.used.fetch_update(order, order, within) {
            return Err(GpuError::Budget { bytes, used, budget: self.budget });
        }
        self.inner.allocate(bytes).inspect_err(|_| {
            self.used.fetch_sub(wanted, order);
        })
    }
    fn free(&self, memory: Memory) -> Result<(), GpuError> {
        self.inner.free(memory)?;
        self.used.fetch_sub(memory.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        self.inner.allocate_pinned(bytes)
    }
    fn create_stream(&self) -> Result<Stream, GpuError> {
        self.inner.create_stream()
    }
    fn free_stream(&self, stream: Stream) -> Result<(), GpuError> {
        self.inner.free_stream(stream)
    }
    fn create_event(&self, is_timed: bool) -> Result<Event, GpuError> {
        self.inner.create_event(is_timed)
    }
    fn free_event(&self, event: Event) -> Result<(), GpuError> {
        self.inner.free_event(event)
    }
    fn record(&self, event: Event, stream: Stream) -> Result<(), GpuError> {
        self.inner.record(event, stream)
    }
    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        self.inner.wait(stream, event)
    }
    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        self.inner.is_done(event)
    }
    fn synchronize_event(&self, event: Event) -> Result<(), GpuError> {
        self.inner.synchronize_event(event)
    }
    fn elapsed(&self, from: Event, to: Event) -> Result<f64, GpuError> {
        self.inner.elapsed(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        self.inner.synchronize(stream)
    }
    fn copy_in(
        &self,
        stream: Stream,
        to: Memory,
        from: &Pinned,
        offset: usize,
    ) -> Result<(), GpuError> {
        self.inner.copy_in(stream, to, from, offset)
    }
    fn copy_out(
        &self,
        stream: Stream,
        to: &Pinned,
        offset: usize,
        from: Memory,
    ) -> Result<(), GpuError> {
        self.inner.copy_out(stream, to, offset, from)
    }
    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Result<(), GpuError> {
        self.inner.copy(stream, to, from)
    }
    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Result<(), GpuError> {
        self.inner.fill(stream, to, byte)
    }
    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError> {
        self.inner.upload(stream, to, from)
    }
    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError> {
        self.inner.download(stream, to, from)
    }
    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), GpuError> {
        self.inner.launch(stream, launch)
    }
    fn prepare(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        self.inner.prepare(stream, product)
    }
    fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.inner.algorithm(product)
    }
    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Result<(), GpuError> {
        self.inner.set_algorithm(product, algorithm)
    }
    fn multiply(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        self.inner.multiply(stream, product)
    }
    fn begin_capture(&self, stream: Stream) -> Result<(), GpuError> {
        self.inner.begin_capture(stream)
    }
    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError> {
        self.inner.end_capture(stream)
    }
    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), GpuError> {
        self.inner.replay(stream, graph)
    }
    fn free_graph(&self, graph: Graph) -> Result<(), GpuError> {
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
}
