//! The grids and blocks of launches. They follow from the shapes and are the same in every step, so
//! that a recorded graph can be replayed.

use super::super::launch::{Kernel, Launch, Param, Shape};
use super::*;

/// The grid, the block and the dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// The number of bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// The number of blocks beyond which threads take several elements each.
const MOST_BLOCKS: u64 = 132 * 16;

impl Geometry {
    /// Returns a line of blocks of `threads` threads.
    pub const fn line(blocks: u32, threads: u32) -> Self {
        let blocks = if blocks == 0 { 1 } else { blocks };
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Returns blocks of 256 threads for `elements` elements. Threads of a large launch take
    /// several elements each.
    pub fn elements(elements: u64) -> Self {
        Self::line(elements.div_ceil(256).min(MOST_BLOCKS) as u32, 256)
    }

    /// Returns blocks of 256 threads, half a warp for each of `rows` rows.
    pub fn half_warps(rows: u32) -> Self {
        Self::line(u64::from(rows.div_ceil(16)).min(MOST_BLOCKS) as u32, 256)
    }

    /// Returns blocks of 256 threads, a warp for each of `rows` rows.
    pub fn warps(rows: u32) -> Self {
        Self::line(u64::from(rows.div_ceil(8)).min(MOST_BLOCKS) as u32, 256)
    }

    /// Returns the launch of a kernel with its parameters.
    pub fn launch<'a>(
        &self,
        kernel: &'static Kernel,
        params: &'a [Param<'a>],
        shapes: &'a [Shape],
    ) -> Launch<'a> {
        let Self { grid, block, shared_bytes } = *self;
        Launch { kernel, grid, block, shared_bytes, params, shapes }
    }
}

/// The bytes of three stages of sixteen rows of `a`'s and `b`'s parts of a tile.
const fn stages(a_row: u32, b_row: u32) -> u32 {
    3 * 16 * (a_row + b_row) * 4
}

impl Product {
    /// Returns the kernel and the geometry for a product with up to `rows.most` rows. Large
    /// products use tiles of 128 rows, others of 64, which fill the multiprocessors more evenly.
    pub fn choose(&self) -> (&'static Kernel, Geometry) {
        let blocks = self.rows.most.div_ceil(128) * self.n.div_ceil(80);
        if blocks >= 132 * 8 { self.with_128_rows() } else { self.with_64_rows() }
    }

    /// Returns the kernel with tiles of 64 rows and its geometry.
    pub fn with_64_rows(&self) -> (&'static Kernel, Geometry) {
        let blocks = self.rows.most.div_ceil(64) * self.n.div_ceil(80);
        let geometry = Geometry { shared_bytes: stages(64 + 4, 80), ..Geometry::line(blocks, 128) };
        (&PRODUCT_64X80, geometry)
    }

    /// Returns the kernel with tiles of 128 rows and its geometry.
    pub fn with_128_rows(&self) -> (&'static Kernel, Geometry) {
        let blocks = self.rows.most.div_ceil(128) * self.n.div_ceil(80);
        let geometry =
            Geometry { shared_bytes: stages(128 + 4, 80), ..Geometry::line(blocks, 128) };
        (&PRODUCT_128X80, geometry)
    }
}

impl Outer {
    /// Returns the geometry of `outer_80x80`.
    pub fn geometry(&self) -> Geometry {
        let blocks = self.m.div_ceil(80) * self.n.div_ceil(80) * self.lane_count;
        Geometry { shared_bytes: stages(80, 80), ..Geometry::line(blocks, 128) }
    }
}

impl Transpose {
    /// Returns the geometry of `transpose`.
    pub fn geometry(&self) -> Geometry {
        Geometry::line(self.rows.div_ceil(32) * self.cols.div_ceil(32), 256)
    }
}

impl Gather {
    /// Returns the geometry of `gather` and `gather_lists`: threads in x are units, threads in y
    /// are rows.
    pub fn geometry(&self) -> Geometry {
        let x = self.unit_count.clamp(1, 256);
        let y = 256 / x;
        let chunks = self.unit_count.div_ceil(x).max(1);
        // A thread looks up four rows at a time.
        let blocks = self.rows.most.div_ceil(4 * y).max(1);
        let most = (MOST_BLOCKS as u32 / chunks).max(1);
        Geometry { grid: [blocks.min(most), chunks, 1], block: [x, y, 1], shared_bytes: 0 }
    }
}

impl RowUpdate {
    /// Returns the number of threads of a row in the fast kernels, or `None` if rows of this width
    /// need the general kernels.
    pub fn threads(width: u32) -> Option<u32> {
        [1, 4, 8, 16, 32].into_iter().find(|threads| threads * 4 >= width)
    }

    /// Returns the fast kernel for medium and short rows, and its geometry. `unique` is the largest
    /// number of unique rows.
    pub fn short(&self, threads: u32, unique: u32) -> (&'static Kernel, Geometry) {
        let kernel = match threads {
            1 => &ROW_UPDATE_1,
            4 => &ROW_UPDATE_4,
            8 => &ROW_UPDATE_8,
            16 => &ROW_UPDATE_16,
            _ => &ROW_UPDATE_32,
        };
        // A block more for the rest of each class. Medium rows need more blocks than short ones.
        let blocks = u64::from(unique.div_ceil(256 / threads.clamp(1, 32))) + 64;
        (kernel, Geometry::line(blocks.min(MOST_BLOCKS * 8) as u32, 256))
    }

    /// Returns the fast kernel for long rows, and its geometry. `long_rows` is the largest number
    /// of long rows; blocks without a row end at once.
    pub fn long(&self, threads: u32, long_rows: u32) -> (&'static Kernel, Geometry) {
        let kernel = match threads {
            1 => &ROW_UPDATE_LONG_1,
            4 => &ROW_UPDATE_LONG_4,
            8 => &ROW_UPDATE_LONG_8,
            16 => &ROW_UPDATE_LONG_16,
            _ => &ROW_UPDATE_LONG_32,
        };
        let deep = if threads >= 32 { 4 } else { 2 };
        let stage = 512 / threads.clamp(1, 32) * deep * 4 * threads.clamp(1, 32) * 4;
        let geometry = Geometry::line(long_rows.min(1024), 512);
        (kernel, Geometry { shared_bytes: 2 * stage, ..geometry })
    }

    /// Returns the geometry of `row_sums`.
    pub fn sums_geometry(&self, unique: u32) -> Geometry {
        Geometry::elements(u64::from(unique) * u64::from(self.sum_stride))
    }
}

impl Chain {
    /// Returns the geometry of `chain`.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.rows.most) * u64::from(self.out.cols.div_ceil(4)))
    }
}

impl Loss {
    /// The cross-entropy of a label of 0 or 1.
    pub const CROSS_ENTROPY: u32 = 0;
    /// The focal loss of a label of 0 or 1.
    pub const FOCAL: u32 = 1;
    /// The squared error of a number.
    pub const SQUARED: u32 = 2;
    /// The error of Huber of a number.
    pub const HUBER: u32 = 3;
    /// The negative log-likelihood of a Poisson distribution.
    pub const POISSON: u32 = 4;
}

impl ColumnSums {
    /// Returns the geometry of `column_sums`.
    pub fn geometry(&self) -> Geometry {
        Geometry::line(self.x.cols.div_ceil(32) * self.split.lane_count, 256)
    }
}

impl RangeSums {
    /// Returns the number of ranges for `rows` rows: 64 rows or more a range, and as many ranges as
    /// keep a GPU busy.
    pub fn ranges(rows: usize) -> usize {
        rows.div_ceil(64).clamp(1, 128)
    }

    /// Returns the geometry of `range_sums`.
    pub fn geometry(&self) -> Geometry {
        Geometry::line(self.x.cols.div_ceil(64) * self.ranges, 256)
    }
}

impl HeadGradient {
    /// Returns the geometry of `head_gradient`.
    pub fn geometry(&self) -> Geometry {
        Geometry::line(self.x.cols.div_ceil(64) * self.ranges, 256)
    }
}

impl TileStatistics {
    /// Returns the geometry of `tile_statistics` for up to `tiles` tiles.
    pub fn geometry(&self, tiles: u32) -> Geometry {
        Geometry::line(self.x.cols.div_ceil(128) * tiles, 128)
    }
}

impl Geometry {
    /// Returns blocks of 128 threads, a thread for each of `cols` columns: for the kernels that
    /// have one number a column.
    pub fn columns(cols: u32) -> Self {
        Self::line(cols.div_ceil(128), 128)
    }
}

impl Interaction {
    /// The number of floats of the processor's scratch memory for a row.
    const SCRATCH: u32 = 4096;

    /// Returns whether the processor computes the dot products of `fields` vectors of `dim` floats
    /// in blocks.
    pub fn blocked(fields: u32, dim: u32) -> bool {
        fields.next_multiple_of(16) * dim <= Self::SCRATCH
    }

    /// Returns whether the processor computes the gradients of dot products in blocks.
    pub fn blocked_grad(fields: u32) -> bool {
        fields * fields <= Self::SCRATCH
    }

    /// Returns the geometry of `dot_interaction`, a block for each row.
    pub fn dots(&self) -> Geometry {
        let fields = self.x.cols / self.dim;
        self.blocks(fields * (self.dim + 1))
    }

    /// Returns the geometry of `dot_interaction_grad`, a block for each row.
    pub fn dots_grad(&self) -> Geometry {
        let fields = self.x.cols / self.dim;
        self.blocks(self.x.cols + fields * fields.saturating_sub(1) / 2)
    }

    /// Returns a block for each row, with shared memory for `floats` floats.
    fn blocks(&self, floats: u32) -> Geometry {
        let blocks = u64::from(self.rows.most).min(MOST_BLOCKS) as u32;
        let shared_bytes = if self.in_place == 1 { 0 } else { 4 * floats };
        Geometry { shared_bytes, ..Geometry::line(blocks, 256) }
    }
}

impl DenseUpdate {
    /// Returns the geometry of `dense_update`, `lamb_weights` and `dense_average`: sixteen blocks
    /// for each piece.
    pub fn elements(&self) -> Geometry {
        Geometry { grid: [self.piece_count.max(1), 16, 1], ..Geometry::line(1, 256) }
    }

    /// Returns the geometry of `dense_squares` and `lamb_squares`: a block for each piece.
    pub fn pieces(&self) -> Geometry {
        Geometry::line(self.piece_count, 256)
    }
}

impl PaddedRows {
    /// Returns the geometry of `padded_rows`: a thread for four elements.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.total) * u64::from(self.stride) / 4)
    }
}

impl ClearPadding {
    /// Returns the geometry of `clear_padding` for a batch that has nearly all rows.
    pub fn geometry(&self) -> Geometry {
        let gap = u64::from(self.width - self.x.cols).max(1);
        Geometry::elements(u64::from(self.total) * gap)
    }
}
