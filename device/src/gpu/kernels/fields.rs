//! The parameters of the lookup of fields in one launch.

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
}

impl FieldLookup {
    /// Returns the geometry of `field_lookup`: half a warp for each row.
    pub fn geometry(&self) -> Geometry {
        Geometry::half_warps(self.rows.most)
    }
}
