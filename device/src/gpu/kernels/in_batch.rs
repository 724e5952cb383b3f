//! The parameters of the softmax over the items of a batch.

use bytemuck::{Pod, Zeroable};

use super::{Count, Geometry, Rows};

parameters! {
    /// The parameters of `in_batch_lse` and `in_batch_shares`, for some rows of a batch.
    InBatch (120) {
        /// The dot products of the rows of the launch with all rows of the batch. `in_batch_shares`
        /// replaces them by shares.
        products: Rows,
        /// The address of the unique row of the item of each row of the batch.
        items: u64,
        /// The correction of each row of the batch; with the address 0 there is none.
        correction: Rows,
        /// The logarithm of the sum of exponentials of each row of the batch.
        lse: Rows,
        /// The gradient of this logarithm for each row of the batch.
        g: Rows,
        /// The address of the results of `in_batch_lse` for all rows of the batch.
        out: u64,
        /// The number of rows of the batch.
        total: Count,
        /// The row of the batch to which the first row of the products belongs.
        first_row: u32,
        /// The number of rows of the launch.
        rows: u32,
        /// The distance of two results of `in_batch_lse`.
        out_stride: u32,
        /// The factor of the dot products.
        by: f32,
        /// One of the constants of [`InBatch`].
        kind: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }
}

impl InBatch {
    /// The rows of the launch are queries, and the columns of the products are items.
    pub const OF_QUERIES: u32 = 0;
    /// The rows of the launch are items, and the columns of the products are queries.
    pub const OF_ITEMS: u32 = 1;

    /// Returns the geometry of `in_batch_lse`: half a warp for each row.
    pub fn sums(&self) -> Geometry {
        Geometry::half_warps(self.rows)
    }

    /// Returns the geometry of `in_batch_shares`: a block for each row.
    pub fn shares(&self) -> Geometry {
        Geometry::line(self.rows.min(4096), 256)
    }
}
