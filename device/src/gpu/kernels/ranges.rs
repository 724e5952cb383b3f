//! The parameters of sums over ranges of rows, whose order is not the processor's.

use bytemuck::{Pod, Zeroable};

use super::{Count, Rows};

parameters! {
    /// The parameters of `range_sums`: sums over ranges of rows in an order of its own, which is
    /// not the processor's. A second launch with one range adds the sums of the ranges.
    RangeSums (96) {
        /// The values that the kernel reads.
        x: Rows,
        /// The weights in one column, or the results of relu.
        g: Rows,
        /// The address of the values of type bf16, in rows of `x.cols`.
        narrow_x: u64,
        /// The address of the results of relu of type bf16, in rows of `x.cols`.
        narrow_g: u64,
        /// The address of the masked values with the stride of `x`, which may be `x`, or 0.
        masked: u64,
        /// The address of the summands of type bf16, in rows of `x.cols`, which may be `narrow_x`,
        /// or 0.
        narrow: u64,
        /// The address of the sums of the ranges, `x.cols` floats each.
        parts: u64,
        /// The number of rows.
        rows: Count,
        /// The number of ranges of about the same size.
        ranges: u32,
        /// A constant of [`super::ColumnSums`] without statistics, or [`RangeSums::MASKED_NARROW`].
        kind: u32,
    }

    /// The parameters of `head_gradient`: what a layer of one unit sends back through relu, with
    /// sums over ranges of rows like those of [`RangeSums`].
    HeadGradient (64) {
        /// The inputs of the layer, which are results of relu.
        x: Rows,
        /// The address of the gradient of the unit, one float a row.
        slopes: u64,
        /// The address of the weights of the unit.
        weights: u64,
        /// The address of the gradient of the inputs with the stride of `x`, or 0.
        gradient: u64,
        /// The address of the same gradient of type bf16, in rows of `x.cols`, or 0.
        narrow: u64,
        /// The address of the sums of each range: of the gradient, then of inputs times slopes.
        parts: u64,
        /// The number of rows.
        rows: u32,
        /// The number of ranges of about the same size.
        ranges: u32,
    }
}

impl RangeSums {
    /// The values at `narrow_x` where `narrow_g` is above zero.
    pub const MASKED_NARROW: u32 = 5;
}
