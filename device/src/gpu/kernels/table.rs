//! The parameters of the rows of resident tables: weights of 16 bits, narrow rows, sweeps and new
//! rows.

use bytemuck::{Pod, Zeroable};

use super::{Count, Gather, Geometry, RowRule};

parameters! {
    /// The slab of full or of narrow rows. A row has its weights first, in the type of the table,
    /// and its optimizer state behind them.
    StoredRows (32) {
        /// The address of the slab.
        slab: u64,
        /// The address of the rules of the segments.
        rules: u64,
        /// The distance of two rows in floats.
        stride: u32,
        /// The number of weights of a row.
        width: u32,
        /// The number of rules.
        rule_count: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `table_rules`: the rules of rows of any type and width, from the sums of
    /// their gradients.
    TableRules (168) {
        /// The full rows, then the narrow ones.
        rows: [StoredRows; 2],
        /// The address of the slab's row of each row of the launch, or 0 if they are the same. The
        /// top bit says that the row is narrow, and [`TableRules::NO_ROW`] that there is no row.
        slots: u64,
        /// The address of the gradients of the unique rows.
        sums: u64,
        /// For a sweep the address of the unique row of each row, or [`TableRules::NO_GRADIENT`];
        /// 0 without a sweep.
        unique_of: u64,
        /// The address of the keys of the rows of the launch, which weights of 16 bits need.
        keys: u64,
        /// The address of the seed of the step's random bits, which weights of 16 bits need.
        rounding: u64,
        /// The address of the factor of a clipped step, or 0.
        scale: u64,
        /// The address of a number that is not zero where the step changes no row, or 0.
        skip: u64,
        /// The address of the counter of rows with a gradient that is not finite, or 0.
        nonfinite: u64,
        /// The address of the counter of weights beyond the largest number of the type, or 0.
        saturated: u64,
        /// The number of rows of the launch: unique rows, or all rows of a swept table.
        count: Count,
        /// The number of floats of a gradient.
        width: u32,
        /// The distance of two gradients in floats.
        sum_stride: u32,
        /// One of the types of [`TableRules`].
        dtype: u32,
        /// The number of floats of a warp in shared memory (see [`TableRules::scratch`]).
        scratch: u32,
    }

    /// The parameters of `mark_rows`: the gradients of a swept table by the number of the row.
    MarkRows (32) {
        /// The address of the row of each unique row, or [`TableRules::NO_ROW`].
        slots: u64,
        /// The address of the unique row of each row, filled with [`TableRules::NO_GRADIENT`].
        unique_of: u64,
        /// The number of unique rows.
        count: Count,
    }

    /// The initial weights and the initial state of a segment, in device memory.
    InitialSegment (48) {
        /// The seed of the segment.
        seed: u64,
        /// One of the constants of [`InitialSegment`].
        kind: u32,
        /// The first weight of the segment.
        begin: u32,
        /// The weight after the last one of the segment.
        end: u32,
        /// The constant, the lower end or the mean.
        a: f32,
        /// The upper end or the deviation.
        b: f32,
        /// The lowest weight of a row.
        low: f32,
        /// The highest weight of a row.
        high: f32,
        /// The first float of the state, counted from the start of the row.
        state: u32,
        /// The float after the last one of the state.
        state_end: u32,
        /// The initial value of the state.
        state_value: f32,
    }

    /// The parameters of `initial_rows`: the rows of new keys.
    InitialRows (64) {
        /// The address of the slab.
        slab: u64,
        /// The address of the slab's row of each new key.
        slots: u64,
        /// The address of the new keys.
        keys: u64,
        /// The address of the segments.
        segments: u64,
        /// The number of new keys.
        count: Count,
        /// The distance of two rows in floats.
        stride: u32,
        /// The number of weights of a row.
        width: u32,
        /// The number of segments.
        segment_count: u32,
        /// One of the types of [`TableRules`].
        dtype: u32,
    }

    /// The floats `to..to + n` of a full row, which lie from `from` on in a narrow row.
    NarrowPart (16) {
        /// The first float in a narrow row.
        from: u32,
        /// The first float in a full row.
        to: u32,
        /// The number of floats.
        n: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `pull_rows`: rows of any type and width in single precision.
    PullRows (136) {
        /// The full rows, then the narrow ones. Rules are not read.
        rows: [StoredRows; 2],
        /// The address of the slab's row of each row, or 0 if they are the same. The top bit says
        /// that the row is narrow, and [`TableRules::NO_ROW`] that the key has none: it gets its
        /// initial row.
        slots: u64,
        /// The address of the keys, which narrow rows and keys without a row need.
        keys: u64,
        /// The address of the segments, which narrow rows and keys without a row need.
        segments: u64,
        /// The address of the parts of a narrow row.
        parts: u64,
        /// The address of the rows of single precision.
        out: u64,
        /// The number of rows.
        count: Count,
        /// The distance of two rows of the result; floats behind the weights become zero.
        out_stride: u32,
        /// The number of segments.
        segment_count: u32,
        /// The number of parts.
        part_count: u32,
        /// One of the types of [`TableRules`].
        dtype: u32,
    }

    /// The parameters of `grow_rows`: narrow rows that become full.
    GrowRows (128) {
        /// The full rows, then the narrow ones. Rules are not read.
        rows: [StoredRows; 2],
        /// The address of the narrow rows, without their top bit.
        from: u64,
        /// The address of the full rows, to which [`InitialRows`] has given their initial numbers.
        to: u64,
        /// The address of the parts of the weights.
        weights: u64,
        /// The address of the parts of the state, counted in floats from the start of the row.
        states: u64,
        /// The number of rows.
        count: Count,
        /// The number of parts of the weights.
        weight_parts: u32,
        /// The number of parts of the state.
        state_parts: u32,
        /// One of the types of [`TableRules`].
        dtype: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `gather_halves`: lookups in a table with weights of 16 bits.
    GatherHalves (64) {
        /// The lookups. The distance of two rows of the table is in floats, and the offset of a job
        /// in weights.
        all: Gather,
        /// One of the types of [`TableRules`].
        dtype: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }
}

impl TableRules {
    /// Weights of single precision.
    pub const F32: u32 = 0;
    /// Weights of half precision.
    pub const F16: u32 = 1;
    /// Weights of type bf16.
    pub const BF16: u32 = 2;
    /// The bit of a slot whose row is narrow.
    pub const NARROW: u32 = 1 << 31;
    /// The slot of a key without a row.
    pub const NO_ROW: u32 = u32::MAX;
    /// The number in `unique_of` of a row without a gradient.
    pub const NO_GRADIENT: u32 = u32::MAX;

    /// Returns the floats of shared memory that a warp needs for rows of up to `width` weights.
    pub const fn scratch(dtype: u32, width: u32) -> u32 {
        if dtype == Self::F32 { 0 } else { width.next_multiple_of(4) }
    }

    /// Returns the geometry of `table_rules`: a warp for each row.
    pub fn geometry(&self) -> Geometry {
        Geometry { shared_bytes: 8 * self.scratch * 4, ..Geometry::warps(self.count.most) }
    }
}

impl RowRule {
    /// The rule also changes rows without a gradient.
    pub const SWEPT: u32 = 1;
    /// The regulariser also applies to rows without a gradient.
    pub const L2_WHOLE: u32 = 2;
}

impl InitialSegment {
    /// Every weight is `a`.
    pub const CONSTANT: u32 = 0;
    /// The weights are uniform from `a` to `b`.
    pub const UNIFORM: u32 = 1;
    /// The weights are normal with the mean `a` and the deviation `b`.
    pub const NORMAL: u32 = 2;
    /// The weights are normal and truncated at two deviations.
    pub const TRUNCATED: u32 = 3;
}

impl MarkRows {
    /// Returns the geometry of `mark_rows`.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most))
    }
}

impl InitialRows {
    /// Returns the geometry of `initial_rows`: a warp for each row.
    pub fn geometry(&self) -> Geometry {
        Geometry::warps(self.count.most)
    }
}

impl PullRows {
    /// Returns the geometry of `pull_rows`.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most) * u64::from(self.out_stride))
    }
}

impl GrowRows {
    /// Returns the geometry of `grow_rows`: a warp for each row.
    pub fn geometry(&self) -> Geometry {
        Geometry::warps(self.count.most)
    }
}

impl GatherHalves {
    /// Returns the geometry of `gather_halves`.
    pub fn geometry(&self) -> Geometry {
        self.all.geometry()
    }
}
