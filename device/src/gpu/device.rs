//! The trait of a device.

use std::fmt;

use super::error::GpuError;
use super::info::{Counters, Info};
use super::launch::Launch;
use super::memory::{Memory, Pinned};
use super::product::{Algorithm, Product};

/// A stream: operations on it run one after the other. Operations on two streams run in any order
/// unless an event orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub(crate) u32);

/// A point in a stream for which other streams and the host can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub(crate) u32);

/// A recorded graph of operations, which can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Graph(pub(crate) u32);

/// A GPU.
///
/// # Contract
///
/// * Every operation that takes a stream only enqueues, and returns at once. `upload`, `download`,
///   `prepare`, `synchronize`, `synchronize_event`, `free`, `free_stream` and `free_graph` also
///   wait; these are the host waits that [`Counters::host_waits`] counts.
/// * Fresh device memory has undefined bytes.
/// * The parameters of a launch are copied when it is enqueued. While a stream records, they are
///   copied into the graph: a replay sees the same values. What changes from replay to replay must
///   lie in device memory.
/// * The caller frees memory, streams and events only after the operations that use them have run.
///   The graphs of a stream with products are freed before the stream. What is not freed stays
///   until the device is dropped.
/// * A failure in a kernel is reported by a later call, and then by all later calls.
pub trait Gpu: fmt::Debug + Send + Sync {
    /// Returns the properties of the device.
    fn info(&self) -> &Info;

    /// Returns what the device has counted so far.
    fn counters(&self) -> Counters;

    /// Returns the names of the kernels that were launched so far and how often, by name. Replays
    /// do not count.
    fn launches(&self) -> Vec<(&'static str, u64)>;

    /// Returns the bytes of device memory that are free.
    fn free_bytes(&self) -> Result<u64, GpuError>;

    /// Allocates device memory whose address is a multiple of 256. Zero bytes are allowed and have
    /// an address too.
    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError>;

    /// Frees memory that [`Gpu::allocate`] returned. Waits for the device.
    fn free(&self, memory: Memory) -> Result<(), GpuError>;

    /// Allocates pinned memory of the host, which is zero. It is freed when it is dropped.
    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, GpuError>;

    /// Creates a stream without operations.
    fn create_stream(&self) -> Result<Stream, GpuError>;

    /// Frees a stream, and the memory that the library of products has for it. Waits for the
    /// device.
    fn free_stream(&self, stream: Stream) -> Result<(), GpuError>;

    /// Creates an event. Only an event that `is_timed` can be given to [`Gpu::elapsed`].
    fn create_event(&self, is_timed: bool) -> Result<Event, GpuError>;

    /// Frees an event, which no operation uses any more.
    fn free_event(&self, event: Event) -> Result<(), GpuError>;

    /// Puts the event after the operations that are on `stream` now.
    fn record(&self, event: Event, stream: Stream) -> Result<(), GpuError>;

    /// Lets the later operations of `stream` wait for the latest record of the event. An event that
    /// was never recorded does not hold anything up.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError>;

    /// Returns whether all before the latest record of the event has run. Does not wait.
    fn is_done(&self, event: Event) -> Result<bool, GpuError>;

    /// Waits on the host until the event is done.
    fn synchronize_event(&self, event: Event) -> Result<(), GpuError>;

    /// Returns the seconds between two timed events, both of which must be done.
    fn elapsed(&self, from: Event, to: Event) -> Result<f64, GpuError>;

    /// Waits on the host until all operations of the stream have run.
    fn synchronize(&self, stream: Stream) -> Result<(), GpuError>;

    /// Copies from pinned memory, beginning at its byte `offset`, to all of `to`. The bytes are
    /// read when the copy runs.
    fn copy_in(
        &self,
        stream: Stream,
        to: Memory,
        from: &Pinned,
        offset: usize,
    ) -> Result<(), GpuError>;

    /// Copies all of `from` to pinned memory, beginning at its byte `offset`.
    fn copy_out(
        &self,
        stream: Stream,
        to: &Pinned,
        offset: usize,
        from: Memory,
    ) -> Result<(), GpuError>;

    /// Copies all of `from` to the beginning of `to`.
    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Result<(), GpuError>;

    /// Sets every byte of `to`.
    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Result<(), GpuError>;

    /// Copies `from` to the beginning of `to` after the operations on the stream, and waits. It is
    /// for the start and for tests.
    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError>;

    /// Copies the beginning of `from` to `to` after the operations on the stream, and waits.
    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError>;

    /// Enqueues a kernel with a copy of its parameters.
    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), GpuError>;

    /// Chooses the algorithm of a product: times the library's candidates once and keeps the
    /// fastest for all products of the same shape. Waits, and leaves C unchanged. An algorithm that
    /// is already chosen stays.
    fn prepare(&self, stream: Stream, product: &Product) -> Result<(), GpuError>;

    /// Returns the bytes of the algorithm that is chosen for a product.
    fn algorithm(&self, product: &Product) -> Option<Algorithm>;

    /// Chooses the algorithm of a product by its bytes, which [`Gpu::algorithm`] returned on the
    /// same model of GPU with the same version of the library.
    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Result<(), GpuError>;

    /// Enqueues a product whose algorithm has been chosen.
    fn multiply(&self, stream: Stream, product: &Product) -> Result<(), GpuError>;

    /// Begins to record what is enqueued on the stream, and on streams that wait for its events,
    /// instead of running it.
    fn begin_capture(&self, stream: Stream) -> Result<(), GpuError>;

    /// Ends the record. All streams that joined it must have been joined back by events.
    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError>;

    /// Enqueues all operations of a graph.
    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), GpuError>;

    /// Frees a graph, after its replays have run: like [`Gpu::free`], it waits for the device.
    fn free_graph(&self, graph: Graph) -> Result<(), GpuError>;
}
