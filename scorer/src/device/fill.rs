//! The rows of a batch: those on the device are copied there, and the host adds the others.
//!
//! The host waits once, for the list of the keys that the device does not have. Their rows come
//! from the same version's layers in one copy.

use std::ops::Range;
use std::sync::Arc;

use zillion_device::gpu::kernels::{
    COPY_FOUND, CopyFound, Count, Geometry, INDEX_FIND, IndexFind, PUT_ROWS, PutRows,
};
use zillion_device::gpu::{Gpu, GpuError, Kernel, Memory, Param, Pinned, Stream};
use zillion_feature::FeatureKey;
use zillion_rows::layer::LayerSource;

use super::layers::VersionLayers;

/// The keys of a batch.
pub(super) struct Keys<'a> {
    /// The keys of each table.
    pub(super) all: &'a [Vec<FeatureKey>],
    /// The keys of each request in each table.
    pub(super) of_requests: &'a [Vec<Range<usize>>],
    /// The number of floats from one row of each table to the next.
    pub(super) strides: &'a [usize],
}

/// The counts of the rows of a batch.
#[derive(Debug, Default)]
pub(super) struct Filled {
    /// The number of keys.
    pub(super) keys: u64,
    /// The number of keys whose rows were on the device.
    pub(super) hits: u64,
    /// The number of different keys of each request that have no row.
    pub(super) missing: Vec<u64>,
}

/// The buffers of finds and of rows from the host, which grow to the largest batch so far.
#[derive(Debug, Default)]
pub(super) struct FillBuffers {
    gpu: Option<Arc<dyn Gpu>>,
    device: Option<Memory>,
    keys_in: Option<Pinned>,
    misses_out: Option<Pinned>,
    rows_in: Option<Pinned>,
}

impl Drop for FillBuffers {
    fn drop(&mut self) {
        if let (Some(gpu), Some(memory)) = (&self.gpu, self.device.take()) {
            // An error cannot be returned from here. The device reports it again at its next use.
            let _ = gpu.free(memory);
        }
    }
}

/// The places of the parts of the device's memory.
struct Places {
    keys: usize,
    rows: usize,
    misses: usize,
    counts: usize,
    /// The places of rows from the host in the batch, then the rows.
    puts: usize,
    host_rows: usize,
    bytes: usize,
}

impl Places {
    fn new(keys: usize, tables: usize, row_bytes: usize) -> Self {
        let mut bytes = 0usize;
        let mut take = |of: usize| {
            let at = bytes;
            bytes = (bytes + of).next_multiple_of(256);
            at
        };
        Self {
            keys: take(8 * keys),
            rows: take(8 * keys),
            misses: take(4 * keys),
            counts: take(4 * tables),
            puts: take(4 * keys),
            host_rows: take(row_bytes),
            bytes,
        }
    }
}

/// Returns a pinned buffer of at least this number of bytes.
fn fit<'a>(
    gpu: &dyn Gpu,
    buffer: &'a mut Option<Pinned>,
    bytes: usize,
) -> Result<&'a mut Pinned, GpuError> {
    if buffer.as_ref().is_none_or(|own| own.bytes() < bytes) {
        *buffer = None;
    }
    match buffer {
        Some(own) => Ok(own),
        None => Ok(buffer.insert(gpu.allocate_pinned(bytes.next_power_of_two())?)),
    }
}

fn launch<T: bytemuck::NoUninit>(
    gpu: &dyn Gpu,
    stream: Stream,
    (kernel, geometry): (&'static Kernel, Geometry),
    parameters: &T,
) -> Result<(), GpuError> {
    gpu.launch(stream, &geometry.launch(kernel, &[Param::new(parameters)], &[]))
}

impl FillBuffers {
    /// Makes the memory large enough for a batch.
    fn fit_device(&mut self, gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<Memory, GpuError> {
        if let Some(memory) = self.device.filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory);
        }
        if let Some(memory) = self.device.take() {
            gpu.free(memory)?;
        }
        let memory = gpu.allocate(bytes + bytes / 4)?;
        self.gpu = Some(gpu.clone());
        Ok(*self.device.insert(memory))
    }

    /// Enqueues the fill of the rows of a batch. Waits for the finds of the device if any row of
    /// the version may be there. `to` has the memory of each table; a table that no node reads has
    /// none.
    pub(super) fn fill(
        &mut self,
        gpu: &Arc<dyn Gpu>,
        stream: Stream,
        keys: &Keys<'_>,
        (layers, source): (&VersionLayers, &LayerSource),
        to: &[Option<Memory>],
    ) -> Result<Filled, GpuError> {
        let total: usize = keys.all.iter().map(Vec::len).sum();
        let row_bytes: usize =
            keys.all.iter().zip(keys.strides).map(|(keys, stride)| 4 * keys.len() * stride).sum();
        let places = Places::new(total, keys.all.len(), row_bytes);
        let memory = self.fit_device(gpu, places.bytes)?;
        let misses = if layers.is_empty() {
            keys.all.iter().map(|keys| (0..keys.len() as u32).collect()).collect()
        } else {
            self.find(gpu, stream, keys, layers, to, (memory, &places))?
        };
        self.put(gpu, stream, keys, source, to, (memory, &places), &misses)
    }

    /// Copies the rows that the device has. Returns the keys of each table that it does not have,
    /// in ascending order.
    fn find(
        &mut self,
        gpu: &Arc<dyn Gpu>,
        stream: Stream,
        keys: &Keys<'_>,
        layers: &VersionLayers,
        to: &[Option<Memory>],
        (memory, places): (Memory, &Places),
    ) -> Result<Vec<Vec<u32>>, GpuError> {
        let total: usize = keys.all.iter().map(Vec::len).sum();
        let tables = keys.all.len();
        let keys_in = fit(&**gpu, &mut self.keys_in, 8 * total)?;
        let mut at = 0;
        for keys in keys.all {
            let words: Vec<u64> = keys.iter().map(|key| key.0).collect();
            keys_in.write(8 * at, &words)?;
            at += words.len();
        }
        gpu.copy_in(stream, memory.part(places.keys, 8 * total)?, keys_in, 0)?;
        gpu.fill(stream, memory.part(places.counts, 4 * tables)?, 0)?;
        let address = |at: usize| memory.address() + at as u64;
        let mut at = 0;
        for (table, of_table) in keys.all.iter().enumerate() {
            let (list, layer_count) = layers.list(table);
            let count = Count::fixed(of_table.len() as u32);
            let find = IndexFind {
                layers: list,
                keys: address(places.keys + 8 * at),
                rows: address(places.rows + 8 * at),
                misses: address(places.misses + 4 * at),
                miss_count: address(places.counts + 4 * table),
                count,
                layer_count,
                unused: 0,
            };
            at += of_table.len();
            let Some(Some(out)) = to.get(table).filter(|_| !of_table.is_empty()) else { continue };
            launch(&**gpu, stream, (&INDEX_FIND, find.geometry()), &find)?;
            let stride = keys.strides[table] as u32;
            let copy = CopyFound { rows: find.rows, out: out.address(), count, stride, unused: 0 };
            launch(&**gpu, stream, (&COPY_FOUND, copy.geometry()), &copy)?;
        }
        // The misses and the counts lie side by side.
        let bytes = places.counts - places.misses + 4 * tables;
        let misses_out = fit(&**gpu, &mut self.misses_out, bytes)?;
        gpu.copy_out(stream, misses_out, 0, memory.part(places.misses, bytes)?)?;
        gpu.synchronize(stream)?;
        let mut counts = vec![0u32; tables];
        misses_out.read(places.counts - places.misses, &mut counts)?;
        let mut at = 0;
        let mut all = Vec::with_capacity(tables);
        for (table, (of_table, count)) in keys.all.iter().zip(counts).enumerate() {
            let is_read = matches!(to.get(table), Some(Some(_)));
            // No kernel has looked for the keys of a table that no node reads.
            let count = if is_read { count as usize } else { 0 };
            let mut misses = vec![0u32; count.min(of_table.len())];
            misses_out.read(4 * at, &mut misses)?;
            misses.sort_unstable();
            all.push(misses);
            at += of_table.len();
        }
        Ok(all)
    }

    /// Adds the rows of the keys that the device does not have.
    #[expect(clippy::too_many_arguments, reason = "the parts of one batch")]
    fn put(
        &mut self,
        gpu: &Arc<dyn Gpu>,
        stream: Stream,
        keys: &Keys<'_>,
        source: &LayerSource,
        to: &[Option<Memory>],
        (memory, places): (Memory, &Places),
        misses: &[Vec<u32>],
    ) -> Result<Filled, GpuError> {
        let total: usize = keys.all.iter().map(Vec::len).sum();
        let missed: usize = misses.iter().map(Vec::len).sum();
        let mut filled = Filled {
            keys: total as u64,
            hits: (total - missed) as u64,
            missing: vec![0; keys.of_requests.len()],
        };
        if missed == 0 {
            return Ok(filled);
        }
        let floats: usize =
            misses.iter().zip(keys.strides).map(|(of, stride)| of.len() * stride).sum();
        let rows_at = (4 * missed).next_multiple_of(256);
        let rows_in = fit(&**gpu, &mut self.rows_in, rows_at + 4 * floats)?;
        let (mut put, mut float) = (0, 0);
        let mut puts = Vec::new();
        for (table, misses) in misses.iter().enumerate() {
            let stride = keys.strides[table];
            rows_in.write(4 * put, misses)?;
            let mut rest = &misses[..];
            for (request, ranges) in keys.of_requests.iter().enumerate() {
                let end = rest.partition_point(|&at| (at as usize) < ranges[table].end);
                let (own, others) = rest.split_at(end);
                rest = others;
                if own.is_empty() {
                    continue;
                }
                let wanted: Vec<FeatureKey> =
                    own.iter().map(|&at| keys.all[table][at as usize]).collect();
                let mut rows = vec![0.0; wanted.len() * stride];
                let missing = source
                    .read_rows(table, &wanted, &mut rows)
                    .map_err(|error| GpuError::Mistake(error.to_string()))?;
                filled.missing[request] += missing;
                rows_in.write(rows_at + 4 * float, &rows)?;
                float += rows.len();
            }
            if let (Some(Some(out)), false) = (to.get(table), misses.is_empty()) {
                puts.push(PutRows {
                    rows: memory.address()
                        + (places.host_rows + 4 * (float - misses.len() * stride)) as u64,
                    places: memory.address() + (places.puts + 4 * put) as u64,
                    out: out.address(),
                    count: Count::fixed(misses.len() as u32),
                    stride: stride as u32,
                    unused: 0,
                });
            }
            put += misses.len();
        }
        gpu.copy_in(stream, memory.part(places.puts, 4 * missed)?, rows_in, 0)?;
        gpu.copy_in(stream, memory.part(places.host_rows, 4 * floats)?, rows_in, rows_at)?;
        for put in &puts {
            launch(&**gpu, stream, (&PUT_ROWS, put.geometry()), put)?;
        }
        Ok(filled)
    }
}
