//! A GPU that leaves out some launches of a kernel, as a program with a mistake would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zillion_device::gpu::{
    Algorithm, Counters, Event, Gpu, GpuError, Graph, Info, Launch, Memory, Pinned, Product, Stream,
};

type Outcome<T> = Result<T, GpuError>;

/// A GPU that leaves out the launches of one kernel after some of them.
#[derive(Debug)]
pub(crate) struct Without {
    gpu: Arc<dyn Gpu>,
    kernel: &'static str,
    /// The number of launches of the kernel that still run.
    left: AtomicU64,
}

impl Without {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, kernel: &'static str, after: u64) -> Self {
        Self { gpu, kernel, left: AtomicU64::new(after) }
    }
}

impl Gpu for Without {
    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Outcome<()> {
        let take = |left: u64| left.checked_sub(1);
        if launch.kernel.name == self.kernel
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err()
        {
            return Ok(());
        }
        self.gpu.launch(stream, launch)
    }

    fn info(&self) -> &Info {
        self.gpu.info()
    }
    fn counters(&self) -> Counters {
        self.gpu.counters()
    }
    fn launches(&self) -> Vec<(&'static str, u64)> {
        self.gpu.launches()
    }
    fn free_bytes(&self) -> Outcome<u64> {
        self.gpu.free_bytes()
    }
    fn allocate(&self, bytes: usize) -> Outcome<Memory> {
        self.gpu.allocate(bytes)
    }
    fn free(&self, memory: Memory) -> Outcome<()> {
        self.gpu.free(memory)
    }
    fn allocate_pinned(&self, bytes: usize) -> Outcome<Pinned> {
        self.gpu.allocate_pinned(bytes)
    }
    fn create_stream(&self) -> Outcome<Stream> {
        self.gpu.create_stream()
    }
    fn free_stream(&self, stream: Stream) -> Outcome<()> {
        self.gpu.free_stream(stream)
    }
    fn create_event(&self, is_timed: bool) -> Outcome<Event> {
        self.gpu.create_event(is_timed)
    }
    fn free_event(&self, event: Event) -> Outcome<()> {
        self.gpu.free_event(event)
    }
    fn record(&self, event: Event, stream: Stream) -> Outcome<()> {
        self.gpu.record(event, stream)
    }
    fn wait(&self, stream: Stream, event: Event) -> Outcome<()> {
        self.gpu.wait(stream, event)
    }
    fn is_done(&self, event: Event) -> Outcome<bool> {
        self.gpu.is_done(event)
    }
    fn synchronize_event(&self, event: Event) -> Outcome<()> {
        self.gpu.synchronize_event(event)
    }
    fn elapsed(&self, from: Event, to: Event) -> Outcome<f64> {
        self.gpu.elapsed(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Outcome<()> {
        self.gpu.synchronize(stream)
    }
    fn copy_in(&self, stream: Stream, to: Memory, from: &Pinned, offset: usize) -> Outcome<()> {
        self.gpu.copy_in(stream, to, from, offset)
    }
    fn copy_out(&self, stream: Stream, to: &Pinned, offset: usize, from: Memory) -> Outcome<()> {
        self.gpu.copy_out(stream, to, offset, from)
    }
    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Outcome<()> {
        self.gpu.copy(stream, to, from)
    }
    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Outcome<()> {
        self.gpu.fill(stream, to, byte)
    }
    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Outcome<()> {
        self.gpu.upload(stream, to, from)
    }
    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Outcome<()> {
        self.gpu.download(stream, to, from)
    }
    fn prepare(&self, stream: Stream, product: &Product) -> Outcome<()> {
        self.gpu.prepare(stream, product)
    }
    fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.gpu.algorithm(product)
    }
    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Outcome<()> {
        self.gpu.set_algorithm(product, algorithm)
    }
    fn multiply(&self, stream: Stream, product: &Product) -> Outcome<()> {
        self.gpu.multiply(stream, product)
    }
    fn begin_capture(&self, stream: Stream) -> Outcome<()> {
        self.gpu.begin_capture(stream)
    }
    fn end_capture(&self, stream: Stream) -> Outcome<Graph> {
        self.gpu.end_capture(stream)
    }
    fn replay(&self, stream: Stream, graph: Graph) -> Outcome<()> {
        self.gpu.replay(stream, graph)
    }
    fn free_graph(&self, graph: Graph) -> Outcome<()> {
        self.gpu.free_graph(graph)
    }
}
