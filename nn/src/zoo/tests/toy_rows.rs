//! A table of plain rows on a device and its twin on the host, for tests of whole steps.

use std::cell::Cell;
use std::sync::Arc;

use zillion_device::gpu::kernels::{
    Count, Geometry, ORDERED_SUMS, OrderedSums, PULL_ROWS, PullRows, ROW_SQUARES, RowRule,
    RowSquares, SquareSegment, StoredRows, TABLE_RULES, TableRules,
};
use zillion_device::gpu::{Gpu, GpuError, Kernel, Memory, Param, Pinned, Stream};
use zillion_feature::random;

use crate::DeviceRows;

/// The number of rows of the table.
pub(super) const ROWS: usize = 40;
/// The learning rate and the factor of the regulariser.
const RATE: f32 = 0.3;
const L2: f32 = 1e-2;
/// The places of a step's block: the number of unique rows, its bounds, and the slots.
const BOUNDS_AT: usize = 256;
const SLOTS_AT: usize = 512;

/// The rows on the host, which are updated by the definition of the rule.
#[derive(Clone, Debug)]
pub(super) struct HostRows {
    pub(super) values: Vec<f32>,
    pub(super) stride: usize,
}

impl HostRows {
    pub(super) fn new(stride: usize) -> Self {
        let number = |at: usize| random::unit_f32((random::combine(7, at as u64) >> 32) as u32);
        Self { values: (0..ROWS * stride).map(|at| number(at) - 0.5).collect(), stride }
    }

    /// Returns the rows of some slots, one after the other.
    pub(super) fn pull(&self, slots: &[u32]) -> Vec<f32> {
        let row = |&slot: &u32| self.values[slot as usize * self.stride..][..self.stride].to_vec();
        slots.iter().flat_map(row).collect()
    }

    /// Returns the squared norm of the gradients with the regulariser.
    pub(super) fn sq_norm(&self, slots: &[u32], gradients: &[f32]) -> f64 {
        let of_row = |(raw, weights): (&[f32], &[f32])| {
            if !raw.iter().all(|g| g.is_finite()) {
                return 0.0;
            }
            let mut lanes = [0.0f64; 8];
            for (at, (g, w)) in raw.iter().zip(weights).enumerate() {
                let x = f64::from(g + L2 * w);
                lanes[at % 8] += x * x;
            }
            let [a, b, c, d, e, f, g, h] = lanes;
            ((a + e) + (c + g)) + ((b + f) + (d + h))
        };
        let weights = self.pull(slots);
        let rows = gradients.chunks(self.stride).zip(weights.chunks(self.stride));
        rows.map(of_row).fold(0.0, |sum, x| sum + x)
    }

    /// Updates rows by their gradients, unless these are not finite.
    pub(super) fn update(&mut self, slots: &[u32], gradients: &[f32], scale: f32) {
        for (&slot, raw) in slots.iter().zip(gradients.chunks(self.stride)) {
            if raw.iter().all(|g| g.is_finite()) {
                let row = &mut self.values[slot as usize * self.stride..][..self.stride];
                row.iter_mut().zip(raw).for_each(|(w, g)| *w -= RATE * ((g + L2 * *w) * scale));
            }
        }
    }
}

/// The rows on a device. All memory is allocated when the table is made, so that steps allocate
/// nothing.
pub(super) struct ToyRows {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
    stride: usize,
    slabs: [Memory; 2],
    /// The number of moves of the rows from one slab to the other.
    moves: Cell<u64>,
    /// Whether a move changes the generation, as it must.
    pub(super) tells_moves: bool,
    block: Memory,
    /// The blocks of all steps.
    pinned: Vec<Pinned>,
    step: usize,
    fixed: Memory,
    squares: Memory,
}

impl ToyRows {
    /// Copies rows to a device. `steps` is the largest number of steps.
    pub(super) fn new(gpu: &Arc<dyn Gpu>, stream: Stream, rows: &HostRows, steps: usize) -> Self {
        let block_bytes = SLOTS_AT + 4 * ROWS;
        let slab_bytes = 4 * rows.values.len();
        let slabs = [(); 2].map(|()| gpu.allocate(slab_bytes).unwrap());
        gpu.upload(stream, slabs[0], bytemuck::cast_slice(&rows.values)).unwrap();
        let end = rows.stride as u32;
        let rule = RowRule { kind: RowRule::SGD, end, lr: RATE, l2: L2, ..RowRule::default() };
        let segment = SquareSegment { end, l2: L2, ..SquareSegment::default() };
        let fixed = gpu.allocate(512).unwrap();
        gpu.upload(stream, fixed, bytemuck::bytes_of(&rule)).unwrap();
        let to = fixed.part(256, 24).unwrap();
        gpu.upload(stream, to, bytemuck::bytes_of(&segment)).unwrap();
        Self {
            stride: rows.stride,
            slabs,
            moves: Cell::new(0),
            tells_moves: true,
            block: gpu.allocate(block_bytes).unwrap(),
            pinned: (0..steps).map(|_| gpu.allocate_pinned(block_bytes).unwrap()).collect(),
            step: 0,
            fixed,
            squares: gpu.allocate(8 * ROWS).unwrap(),
            gpu: Arc::clone(gpu),
            stream,
        }
    }

    /// Enqueues the copy of the slots of a step.
    pub(super) fn begin(&mut self, slots: &[u32]) {
        let pinned = &mut self.pinned[self.step];
        pinned.write(0, &[slots.len() as u32]).unwrap();
        pinned.write(BOUNDS_AT, &[0, slots.len() as u32]).unwrap();
        pinned.write(SLOTS_AT, slots).unwrap();
        self.gpu.copy_in(self.stream, self.block, pinned, 0).unwrap();
        self.step += 1;
    }

    fn slab(&self) -> Memory {
        self.slabs[self.moves.get() as usize % 2]
    }

    /// Moves the rows to the other slab, and fills the first one with numbers that are not numbers.
    pub(super) fn move_slab(&self) {
        let from = self.slab();
        self.moves.set(self.moves.get() + 1);
        self.gpu.copy(self.stream, self.slab(), from).unwrap();
        self.gpu.fill(self.stream, from, 0xff).unwrap();
    }

    /// Copies the rows to the host, after all steps.
    pub(super) fn settle(&self) -> Vec<f32> {
        let mut values = vec![0.0f32; ROWS * self.stride];
        let to = bytemuck::cast_slice_mut(&mut values);
        self.gpu.download(self.stream, to, self.slab()).unwrap();
        values
    }

    /// Frees the memory, after all steps.
    pub(super) fn free(self) {
        let [a, b] = self.slabs;
        for memory in [a, b, self.block, self.fixed, self.squares] {
            self.gpu.free(memory).unwrap();
        }
    }

    fn stored(&self) -> StoredRows {
        StoredRows {
            slab: self.slab().address(),
            rules: self.fixed.address(),
            stride: self.stride as u32,
            width: self.stride as u32,
            rule_count: 1,
            unused: 0,
        }
    }

    fn slots(&self) -> u64 {
        self.block.address() + SLOTS_AT as u64
    }

    /// Returns the number of unique rows, for memory of a capacity.
    fn count(&self, memory: Memory) -> Count {
        let most = memory.bytes() / (4 * self.stride);
        Count::at(self.block.address(), most as u32)
    }
}

fn launch<T: bytemuck::NoUninit>(
    (gpu, stream): (&dyn Gpu, Stream),
    kernel: &'static Kernel,
    geometry: Geometry,
    params: &T,
) -> Result<(), GpuError> {
    gpu.launch(stream, &geometry.launch(kernel, &[Param::new(params)], &[]))
}

impl DeviceRows for ToyRows {
    fn generation(&self) -> u64 {
        if self.tells_moves { self.moves.get() } else { 0 }
    }

    fn pull(&self, gpu: &dyn Gpu, stream: Stream, rows: &[Option<Memory>]) -> Result<(), GpuError> {
        let &[Some(out)] = rows else { return Ok(()) };
        let pull = PullRows {
            rows: [self.stored(), StoredRows::default()],
            slots: self.slots(),
            out: out.address(),
            count: self.count(out),
            out_stride: self.stride as u32,
            dtype: TableRules::F32,
            ..PullRows::default()
        };
        launch((gpu, stream), &PULL_ROWS, pull.geometry(), &pull)
    }

    fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        out: Memory,
    ) -> Result<(), GpuError> {
        let squares = RowSquares {
            gradients: gradients[0].address(),
            slab: self.slab().address(),
            slots: self.slots(),
            segments: self.fixed.address() + 256,
            out: self.squares.address(),
            rows: self.count(gradients[0]),
            gradient_stride: self.stride as u32,
            stride: self.stride as u32,
            width: self.stride as u32,
            segment_count: 1,
            dtype: TableRules::F32,
            ..RowSquares::default()
        };
        launch((gpu, stream), &ROW_SQUARES, squares.geometry(), &squares)?;
        let sum = OrderedSums {
            input: self.squares.address(),
            out: out.address(),
            starts: self.block.address() + BOUNDS_AT as u64,
            n: 1,
            unused: 0,
        };
        launch((gpu, stream), &ORDERED_SUMS, Geometry::columns(1), &sum)
    }

    fn update(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        scale: Memory,
        skip: Memory,
    ) -> Result<(), GpuError> {
        let rules = TableRules {
            rows: [self.stored(), StoredRows::default()],
            slots: self.slots(),
            sums: gradients[0].address(),
            scale: scale.address(),
            skip: skip.address(),
            count: self.count(gradients[0]),
            width: self.stride as u32,
            sum_stride: self.stride as u32,
            dtype: TableRules::F32,
            ..TableRules::default()
        };
        launch((gpu, stream), &TABLE_RULES, rules.geometry(), &rules)
    }
}
