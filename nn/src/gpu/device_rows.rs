//! The work on the rows of tables that is a part of each step, if the rows stay on the device.
//!
//! The executor knows where the unique rows of a batch lie side by side, and where the sums of
//! their gradients lie. It knows neither slabs nor rules. The implementer knows both, but no graph.

use zillion_device::gpu::{Gpu, GpuError, Memory, Stream};

/// Rows of tables that stay on a device.
///
/// # Contract
///
/// * The functions enqueue launches on the stream, and nothing else: they neither allocate nor
///   wait, and they copy nothing from or to the host. The launches are recorded in a graph, which
///   is replayed in later steps. So everything that differs from step to step lies in the device's
///   memory, to which the implementer copies it before
///   [`GpuExecutor::enqueue_step`](crate::GpuExecutor::enqueue_step), on the executor's stream.
/// * The memory of a table has the capacity of the executor, and not the size of the batch. It has
///   one row after the other in the order of the lookup plan; a row has the stride of the inputs.
/// * The launches depend only on the memory in the arguments and on the generation.
pub trait DeviceRows {
    /// Returns a number that changes whenever the launches would have other addresses or another
    /// geometry. A graph that was recorded with another number is recorded again.
    fn generation(&self) -> u64;

    /// Enqueues the fill of the unique rows of each table. A table whose rows no node reads has no
    /// memory.
    ///
    /// # Errors
    /// Returns the error of the device.
    fn pull(&self, gpu: &dyn Gpu, stream: Stream, rows: &[Option<Memory>]) -> Result<(), GpuError>;

    /// Enqueues the squared norm of the gradients of all rows, of type f64, with the regularisers.
    /// The executor calls this function only if the job clips gradients. `gradients` has the sums
    /// of each table, which are zero for a table whose rows no gradient reaches.
    ///
    /// # Errors
    /// Returns the error of the device.
    fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        out: Memory,
    ) -> Result<(), GpuError>;

    /// Enqueues the update of the rows by their gradients. `scale` has the factor of the gradients,
    /// of type f32, which is 1 if the job does not clip. `skip` has a u32 that is 1 if the step
    /// changes nothing.
    ///
    /// # Errors
    /// Returns the error of the device.
    fn update(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        scale: Memory,
        skip: Memory,
    ) -> Result<(), GpuError>;
}
