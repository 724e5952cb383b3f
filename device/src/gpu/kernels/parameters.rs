//! The parameters of products, lookups, row updates and functions.

use bytemuck::{Pod, Zeroable};

parameters! {
    /// A number of rows: the number at the address `at`, and at most `most`.
    Count (16) {
        /// The address of a `u32`, or 0 for `most`.
        at: u64,
        /// The largest number of rows.
        most: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `product_64x80` and `product_128x80`: `c = a * b`, then the epilogue.
    Product (80) {
        /// The address of the left matrix, with `rows` rows of `k` floats.
        a: u64,
        /// The address of the right matrix, with `k` rows of `n` floats.
        b: u64,
        /// The address of the result.
        c: u64,
        /// The address of the bias, or 0.
        bias: u64,
        /// The number of rows of `a` and `c`.
        rows: Count,
        /// The number of columns of `b` and `c`.
        n: u32,
        /// The inner dimension of the product.
        k: u32,
        /// The distance of two rows of `a` in floats.
        lda: u32,
        /// The distance of two rows of `b` in floats.
        ldb: u32,
        /// The distance of two rows of `c` in floats.
        ldc: u32,
        /// 1 if results below zero become zero.
        relu: u32,
        /// 1 if the product is added to `c`.
        accumulate: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `outer_80x80`: the gradient of a weight, lane by lane.
    Outer (64) {
        /// The address of the inputs, with rows of `m` floats.
        a: u64,
        /// The address of the gradients, with rows of `n` floats.
        b: u64,
        /// The address of the sums of the lanes, `m * n` floats each.
        c: u64,
        /// The address of the first row of each block, and of one more for the end.
        tiles: u64,
        /// The address of the first block of each lane, and of one more for the end.
        lanes: u64,
        /// The number of rows of a sum.
        m: u32,
        /// The number of columns of a sum.
        n: u32,
        /// The distance of two rows of `a` in floats.
        lda: u32,
        /// The distance of two rows of `b` in floats.
        ldb: u32,
        /// The number of lanes.
        lane_count: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `row_dot`: the dot product of each row of `x` with a row of `w`.
    RowDot (72) {
        /// The address of the left rows.
        x: u64,
        /// The address of the right rows.
        w: u64,
        /// The address of the bias, or 0.
        bias: u64,
        /// The address of the results.
        out: u64,
        /// The number of rows.
        rows: Count,
        /// The number of floats of a row.
        k: u32,
        /// The distance of two rows of `x`.
        ldx: u32,
        /// The distance of two rows of `w`; 0 for a weight.
        ldw: u32,
        /// The distance of two results.
        ldo: u32,
        /// 1 if the bias, or a zero without one, is added.
        add_bias: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `transpose`.
    Transpose (32) {
        /// The address of the matrix.
        input: u64,
        /// The address of its transpose.
        out: u64,
        /// The number of rows of the matrix.
        rows: u32,
        /// The number of columns of the matrix.
        cols: u32,
        /// The distance of two rows of the matrix.
        ldi: u32,
        /// The distance of two rows of the transpose.
        ldo: u32,
    }

    /// One gather of [`Gather`], in device memory.
    GatherJob (48) {
        /// The address of the unique row of each value.
        inverse: u64,
        /// The address of the first value of each list and of one more for the end, or 0.
        offsets: u64,
        /// The address of the factor of each value, or 0.
        factors: u64,
        /// The address of the results.
        out: u64,
        /// The distance of two results in floats.
        out_stride: u32,
        /// The first float of a table's row.
        offset: u32,
        /// The number of floats.
        dim: u32,
        /// One of the constants of [`GatherJob`].
        kind: u32,
    }

    /// The parameters of `gather` and `gather_lists`.
    Gather (56) {
        /// The address of the table.
        table: u64,
        /// The address of the table's row of each unique row, or 0 if they are the same.
        slots: u64,
        /// The address of the jobs.
        jobs: u64,
        /// The address of the units (see [`GatherJob::units`]).
        units: u64,
        /// The number of rows of the results.
        rows: Count,
        /// The number of units.
        unit_count: u32,
        /// The distance of two rows of the table in floats.
        table_stride: u32,
    }

    /// The parameters of `list_factors`.
    Factors (56) {
        /// The address of the first value of each list and of one more for the end, or 0.
        offsets: u64,
        /// The address of the weight of each value, or 0.
        weights: u64,
        /// The address of the factors, or 0.
        out: u64,
        /// The address at which the row of each value is written, or 0.
        row_of: u64,
        /// The number of rows.
        rows: Count,
        /// One of the constants of [`Factors`].
        kind: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The gradient of one gather for one part of a row, in device memory.
    GradientSource (64) {
        /// The address of the gradient, or 0 if the gather does not cover the part.
        gradient: u64,
        /// The distance of two rows of the gradient.
        stride: u32,
        /// The sum of the flags of [`GradientSource`].
        flags: u32,
        /// The address of the factor of each value.
        factors: u64,
        /// The address of the gradient's row of each value.
        row_of: u64,
        /// The address of the winners of a max pooling.
        winners: u64,
        /// The address of the first value of each list, or 0.
        offsets: u64,
        /// The distance of two rows of winners.
        winner_stride: u32,
        /// Padding, which no kernel reads.
        unused: [u32; 3],
    }

    /// The floats `begin..end` of a row, which the same gathers cover.
    RowPart (8) {
        /// The first float of the range.
        begin: u32,
        /// The float after the last one.
        end: u32,
    }

    /// The numbers of unique rows of a table in a batch.
    RowClasses (16) {
        /// The number of all unique rows.
        unique: u32,
        /// The number of rows of the first class, which have a block each.
        long_rows: u32,
        /// The number of rows of the second class, which have a warp each.
        medium_rows: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The rule of one segment of a row in one step, in device memory.
    RowRule (80) {
        /// One of the constants of [`RowRule`].
        kind: u32,
        /// The first float of the segment.
        begin: u32,
        /// The float after the last one of the segment.
        end: u32,
        /// The first float of the state, counted from the start of the row.
        state: u32,
        /// The learning rate; for Adam the step size.
        lr: f32,
        /// The term that keeps a divisor from zero.
        eps: f32,
        /// The momentum; for Adam beta2; for FTRL 1 / alpha.
        a: f32,
        /// 1 for Nesterov; for Adam 1 - beta1; for FTRL beta.
        b: f32,
        /// For Adam 1 - beta2; for FTRL l1.
        c: f32,
        /// For Adam the root of the second correction; for FTRL l2.
        d: f32,
        /// The threshold of the group lasso.
        l21: f32,
        /// The factor of the regulariser.
        l2: f32,
        /// 1 if the clip and the bounds are used.
        guarded: u32,
        /// The largest length of a gradient.
        clip_norm: f32,
        /// The largest absolute value of a gradient's number.
        clip_value: f32,
        /// The lowest weight of a row.
        low: f32,
        /// The highest weight of a row.
        high: f32,
        /// The distance of the segment in the gradient from `begin`, in floats. Only
        /// `table_rules` reads it.
        shift: u32,
        /// The sum of the flags of [`RowRule`]. Only `table_rules` reads it.
        flags: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `row_update_*`, `row_update_long_*`, `row_sums` and `row_rules`.
    RowUpdate (136) {
        /// The address of the slab of rows.
        slab: u64,
        /// The address of the slab's row of each unique row, or 0 if they are the same.
        slots: u64,
        /// The address of the sources: part by part, one for each gather.
        sources: u64,
        /// The address of the parts.
        parts: u64,
        /// The address of the first occurrence of each unique row and of one more for the end, or
        /// 0 if each has one.
        starts: u64,
        /// The address of the occurrences, or 0 if each is its own index.
        occurrences: u64,
        /// The address of the [`RowClasses`].
        classes: u64,
        /// The address of the rules, or 0 to write sums alone.
        rules: u64,
        /// The address of the factor of a clipped step, or 0.
        scale: u64,
        /// The address of a number that is not zero where the step changes no row, or 0.
        skip: u64,
        /// The address of the counter of rows with a gradient that is not finite, or 0.
        nonfinite: u64,
        /// The address of the sums, or 0.
        sums: u64,
        /// The address of the place of each unique row among the sums, or 0 if they are the same.
        places: u64,
        /// The distance of two rows of the slab in floats; a multiple of 4.
        stride: u32,
        /// The number of floats of a gradient.
        width: u32,
        /// The number of parts.
        part_count: u32,
        /// The number of gathers.
        gathers: u32,
        /// The number of low bits of an occurrence that are the number of its gather.
        gather_bits: u32,
        /// The number of rules.
        rule_count: u32,
        /// The distance of two rows of the sums in floats; a multiple of 4 for `row_update_*`.
        sum_stride: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `math_values`.
    MathValues (32) {
        /// The address of the arguments.
        input: u64,
        /// The address of the results.
        out: u64,
        /// The number of arguments.
        n: u64,
        /// The number of the function.
        function: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `math_checksums`.
    MathChecksums (24) {
        /// The address of the checksums, one for each block.
        sums: u64,
        /// The number of the function.
        function: u32,
        /// The logarithm of the number of inputs of a chunk.
        log_chunk: u32,
        /// The first chunk of the launch.
        first_chunk: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }
}

impl Count {
    /// Returns a number that is the same in every step.
    pub const fn fixed(most: u32) -> Self {
        Self { at: 0, most, unused: 0 }
    }

    /// Returns a number that lies at an address, and is at most `most`.
    pub const fn at(at: u64, most: u32) -> Self {
        Self { at, most, unused: 0 }
    }
}

impl GatherJob {
    /// Each row has one value, which is copied.
    pub const COPY: u32 = 0;
    /// The values of a list are added.
    pub const SUM: u32 = 1;
    /// The largest value of a list.
    pub const MAX: u32 = 2;
    /// The index in a list of the first largest value.
    pub const ARG_MAX: u32 = 3;

    /// Returns the units of some jobs: four floats where the addresses allow it, else one.
    pub fn units(jobs: &[Self], table: u64, table_stride: u32) -> Vec<u32> {
        let mut units = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let aligned = (table | job.out).is_multiple_of(16)
                && (table_stride | job.out_stride | job.offset).is_multiple_of(4);
            let mut first = 0;
            while first < job.dim {
                let is_vector = aligned && job.dim - first >= 4;
                units.push((index as u32) << 16 | first << 1 | u32::from(is_vector));
                first += if is_vector { 4 } else { 1 };
            }
        }
        units
    }
}

impl Factors {
    /// The factor of a value is its weight.
    pub const PLAIN: u32 = 0;
    /// The weights are divided by their sum.
    pub const MEAN: u32 = 1;
    /// The weights are divided by the root of the sum of their squares.
    pub const SQRTN: u32 = 2;
}

impl GradientSource {
    /// The values have factors.
    pub const FACTORS: u32 = 1;
    /// The column has lists, so `row_of` gives the gradient's row of a value.
    pub const LISTS: u32 = 2;
    /// The gather is a max pooling, and only winners have a gradient. Only `row_sums` knows it.
    pub const WINNERS: u32 = 4;
}

impl RowRule {
    /// Plain stochastic gradient descent.
    pub const SGD: u32 = 0;
    /// Stochastic gradient descent with momentum.
    pub const MOMENTUM: u32 = 1;
    /// AdaGrad with an accumulator for each weight.
    pub const ADAGRAD: u32 = 2;
    /// AdaGrad with an accumulator for each segment.
    pub const ROWWISE_ADAGRAD: u32 = 3;
    /// Adam with its bias corrections.
    pub const ADAM: u32 = 4;
    /// FTRL-Proximal, without the group lasso.
    pub const FTRL: u32 = 5;
    /// FTRL-Proximal with the sparse group lasso.
    pub const GROUP_FTRL: u32 = 6;

    /// Returns whether `row_update_*` can apply the rule. `row_rules` applies all rules.
    pub fn is_fast(&self) -> bool {
        let known = [Self::SGD, Self::ADAGRAD, Self::ROWWISE_ADAGRAD, Self::ADAM];
        self.guarded == 0 && self.begin.is_multiple_of(4) && known.contains(&self.kind)
    }
}
