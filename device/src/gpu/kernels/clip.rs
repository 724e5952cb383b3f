//! The parameters of the norm of a step's gradients, and of what follows from it.

use bytemuck::{Pod, Zeroable};

use super::{Count, Geometry};

parameters! {
    /// The floats of a row with one regulariser, in device memory.
    SquareSegment (24) {
        /// The first float of the range.
        begin: u32,
        /// The float after the last one.
        end: u32,
        /// The factor of the regulariser.
        l2: f32,
        /// The distance of the segment in the gradient from `begin`, in floats.
        shift: u32,
        /// 1 if the regulariser also applies to rows without a gradient.
        l2_is_whole: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `row_squares`: the squared norm of each row's gradient.
    RowSquares (96) {
        /// The address of the sums of the unique rows.
        gradients: u64,
        /// The address of the slab of rows.
        slab: u64,
        /// The address of the slab's row of each unique row, or 0 if they are the same. The norm of
        /// a key with the slot [`TableRules::NO_ROW`](super::TableRules::NO_ROW) is zero.
        slots: u64,
        /// The address of the place in the plan of each unique row, or 0 if they are the same.
        order: u64,
        /// For a swept table the address of the unique row of each row, or
        /// [`TableRules::NO_GRADIENT`](super::TableRules::NO_GRADIENT); else 0.
        unique_of: u64,
        /// The address of the segments.
        segments: u64,
        /// The address of the squared norms, of type f64.
        out: u64,
        /// The number of unique rows; for a swept table that of all rows.
        rows: Count,
        /// The distance of two gradients in floats.
        gradient_stride: u32,
        /// The distance of two rows of the slab in floats.
        stride: u32,
        /// The number of floats of a gradient.
        width: u32,
        /// The number of segments.
        segment_count: u32,
        /// The type of the weights, one of those of [`TableRules`](super::TableRules).
        dtype: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `ordered_sums`: sums of ranges of numbers of type f64, in order.
    OrderedSums (32) {
        /// The address of the numbers.
        input: u64,
        /// The address of the sums.
        out: u64,
        /// The address of the first number of each sum, and of one more for the end.
        starts: u64,
        /// The number of sums.
        n: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `clip`: the factor of a step, and whether the step is skipped.
    Clip (56) {
        /// The address of the squared norm of the dense gradients.
        dense: u64,
        /// The address of the squared norm of the gradients of rows.
        rows: u64,
        /// The address of the factor.
        scale: u64,
        /// The address of the number that is 1 if the step is skipped.
        skip: u64,
        /// The address of the counter of skipped steps, or 0.
        skips: u64,
        /// The largest norm of a step's gradients.
        most: f64,
        /// 1 if the job clips gradients.
        clips: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `choose_rules`: the dense rules of a step, by the number of steps that
    /// were skipped after the host made them.
    ChooseRules (40) {
        /// The address of the rules for 0, 1, ... skipped steps, `n` each.
        choices: u64,
        /// The address of the rules of the step.
        rules: u64,
        /// The address of the counter of skipped steps.
        skips: u64,
        /// The address of the count that the host knew.
        known: u64,
        /// The number of rules of a step.
        n: u32,
        /// The largest number of choices.
        most: u32,
    }
}

impl RowSquares {
    /// Returns the geometry of `row_squares`: eight lanes a row.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.rows.most) * 8)
    }
}
