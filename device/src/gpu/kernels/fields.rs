//! The parameters of what serves several operations in one launch: the lookup of fields, and the
//! copies of weights.

use bytemuck::{Pod, Zeroable};

use super::{Count, Geometry};

parameters! {
    /// The parameters of `field_lookup`: the input of a factorisation machine with layers.
    FieldLookup (120) {
        /// The address of the table, in whose rows a linear weight lies behind the vector.
        table: u64,
        /// The address of the table's row of each unique row.
        slots: u64,
        /// The address of the unique rows of the fields, column after column.
        inverse: u64,
        /// The address of the numbers, column after column.
        numbers: u64,
        /// The address of the weight of each number.
        weights: u64,
        /// The address of the vectors and the numbers side by side.
        out: u64,
        /// The address of the same as bf16, or 0.
        narrow: u64,
        /// The address of the interaction of the vectors of each row.
        interaction: u64,
        /// The address of the sum of the linear weights of each row.
        linear: u64,
        /// The address of the linear part of the numbers of each row.
        of_numbers: u64,
        /// The number of rows.
        rows: Count,
        /// The number of fields.
        fields: u32,
        /// The number of floats of a vector.
        dim: u32,
        /// The number of columns of numbers.
        number_count: u32,
        /// The distance of two rows of the table in floats.
        table_stride: u32,
        /// The distance of two rows of the result; what lies behind the numbers becomes zero.
        out_stride: u32,
        /// The distance of two columns of `inverse` and of `numbers`.
        value_stride: u32,
    }

    /// The copies of one weight that products read, in device memory.
    WeightCopy (72) {
        /// The address of the weight.
        weight: u64,
        /// The address of the copy in the order of the weight, or 0.
        straight: u64,
        /// The address of the transpose, or 0.
        transposed: u64,
        /// The address of the copy as bf16 in the order of the weight, or 0.
        narrow: u64,
        /// The address of the transpose as bf16, or 0.
        narrow_transposed: u64,
        /// The number of rows of the weight.
        rows: u32,
        /// The number of columns of the weight.
        cols: u32,
        /// The distance of two rows of the weight.
        ldi: u32,
        /// The distance of two rows of the copies in the order of the weight.
        lds: u32,
        /// The distance of two rows of the transposes.
        ldo: u32,
        /// The number of columns of the copies in the order of the weight. Those that the weight
        /// does not have become zero.
        col_end: u32,
        /// The number of columns of the transposes, as `col_end`.
        row_end: u32,
        /// The number of tiles of the copies before (see [`CopyWeights::new`]).
        first_tile: u32,
    }

    /// The parameters of `copy_weights`.
    CopyWeights (16) {
        /// The address of the copies.
        copies: u64,
        /// The number of copies.
        copy_count: u32,
        /// The number of tiles of all copies.
        tiles: u32,
    }
}

impl CopyWeights {
    /// Numbers the tiles of some copies, and returns the parameters of the launch without the
    /// address of the copies.
    pub fn new(copies: &mut [WeightCopy]) -> Self {
        let mut tiles = 0;
        for copy in copies.iter_mut() {
            copy.first_tile = tiles;
            tiles += copy.row_end.div_ceil(32) * copy.col_end.div_ceil(32);
        }
        Self { copies: 0, copy_count: copies.len() as u32, tiles }
    }

    /// Returns the geometry of `copy_weights`: a block for each tile.
    pub fn geometry(&self) -> Geometry {
        Geometry::line(self.tiles, 256)
    }
}

impl FieldLookup {
    /// Returns the geometry of `field_lookup`: half a warp for each row.
    pub fn geometry(&self) -> Geometry {
        Geometry::half_warps(self.rows.most)
    }
}
