//! The parameters of the operations of a graph and of the dense optimizers.

use bytemuck::{Pod, Zeroable};

use super::Count;

parameters! {
    /// A matrix whose rows are `stride` floats apart. With the stride 0, all rows are the same.
    Rows (16) {
        /// The address of the first float.
        data: u64,
        /// The distance of two rows in floats.
        stride: u32,
        /// The number of columns.
        cols: u32,
    }

    /// The rows of a batch in tiles and lanes, as the processor's plan has them.
    Split (24) {
        /// The address of the first row of each tile, and of one more for the end.
        tiles: u64,
        /// The address of the first tile of each lane, and of one more for the end.
        lanes: u64,
        /// The number of lanes.
        lane_count: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// One link of a [`Chain`].
    Link (48) {
        /// One of the constants of [`Link`].
        kind: u32,
        /// One of the constants of [`Function`].
        function: u32,
        /// The slope, the factor or the summand of a function.
        by: f32,
        /// Padding, which no kernel reads.
        unused: u32,
        /// The first operand of the link.
        x: Rows,
        /// The second operand of the link.
        y: Rows,
    }

    /// The parameters of `chain`: up to eight links, one after the other.
    Chain (456) {
        /// The values with which the chain begins.
        start: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The number of rows by which [`Link::OVER_ROWS`] divides.
        divisor: Count,
        /// The number of links.
        links: u32,
        /// Padding, which no kernel reads.
        unused: u32,
        /// The links, in their order.
        link: [Link; 8],
    }

    /// The parameters of `dropout`.
    Dropout (72) {
        /// The values that the kernel reads.
        x: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The address of the job's seed and of the step, 8 bytes each.
        seed: u64,
        /// The number of the layer.
        salt: u32,
        /// The share of units that are dropped, of 2^32.
        threshold: u32,
        /// The factor of the units that are kept.
        factor: f32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `copy_columns`.
    CopyColumns (56) {
        /// The values that the kernel reads.
        x: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The first column of the copy.
        start: u32,
        /// 1 if the other columns become zero.
        fill: u32,
    }

    /// The parameters of `narrow`, which rounds floats to bf16.
    Narrow (24) {
        /// The address of the floats, a multiple of 16.
        x: u64,
        /// The address of the results, a multiple of 16.
        out: u64,
        /// The number of floats.
        n: u64,
    }

    /// The parameters of `padded_rows`, which copies the rows of a batch for a product of the
    /// library.
    PaddedRows (56) {
        /// The values that the kernel reads.
        x: Rows,
        /// The address of the copy, a multiple of 16.
        out: u64,
        /// The number of rows.
        rows: Count,
        /// The number of rows of the copy. Those that the batch does not have become zero.
        total: u32,
        /// The distance of two rows of the copy in elements, a multiple of 4. The columns that
        /// `x` does not have become zero.
        stride: u32,
        /// 1 if the copy is of type bf16.
        narrow: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `clear_padding`, which writes zeros where a product of the library reads
    /// the rows of a batch in place.
    ClearPadding (40) {
        /// The rows. Their columns behind `x.cols` become zero.
        x: Rows,
        /// The number of rows.
        rows: Count,
        /// The number of rows that the product reads. Those that the batch does not have become
        /// zero.
        total: u32,
        /// The number of columns that the product reads.
        width: u32,
    }

    /// The parameters of `sum_columns`.
    SumColumns (48) {
        /// The values that the kernel reads.
        x: Rows,
        /// The address of the sums.
        out: u64,
        /// The number of rows.
        rows: Count,
        /// The distance of two sums.
        out_stride: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `column_sums`: sums over the rows of each lane.
    ColumnSums (96) {
        /// The values that the kernel reads.
        x: Rows,
        /// The gradients, the weights in one column, or the results of relu.
        g: Rows,
        /// The masked values of [`ColumnSums::MASKED`], which may lie where `x` lies.
        masked: Rows,
        /// The address of means and variances, or of means and factors by row.
        statistics: u64,
        /// The address of the sums of the lanes.
        parts: u64,
        /// The tiles and the lanes.
        split: Split,
        /// The summand of a variance.
        eps: f32,
        /// One of the constants of [`ColumnSums`].
        kind: u32,
    }

    /// The parameters of `combine_lanes`.
    CombineLanes (48) {
        /// The address of the sums of the lanes, `size` floats each.
        parts: u64,
        /// The address of the result.
        out: u64,
        /// The tiles and the lanes.
        split: Split,
        /// The number of floats.
        size: u32,
        /// 1 if the sum is divided by the number of rows.
        mean: u32,
    }

    /// The parameters of `tile_statistics`.
    TileStatistics (48) {
        /// The values that the kernel reads.
        x: Rows,
        /// The address of the means and the squares of each tile.
        tiles_out: u64,
        /// The tiles and the lanes.
        split: Split,
    }

    /// The parameters of `merge_statistics`.
    MergeStatistics (48) {
        /// The address of the means and the squares of each tile.
        tiles_in: u64,
        /// The address of the means and the variances.
        out: u64,
        /// The tiles and the lanes.
        split: Split,
        /// The number of columns.
        cols: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `batch_norm_factors` and `batch_norm`.
    BatchNorm (128) {
        /// The values that the kernel reads.
        x: Rows,
        /// The gradients of the results.
        g: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The number of rows of the batch.
        total: Count,
        /// The address of the means and the variances.
        statistics: u64,
        /// The address of the scale of each column.
        scale: u64,
        /// The address of the shift of each column.
        shift: u64,
        /// The address of the sums of the gradients.
        reduced: u64,
        /// The address of four floats for each column.
        factors: u64,
        /// The summand of a variance.
        eps: f32,
        /// One of the constants of [`BatchNorm`].
        kind: u32,
    }

    /// The parameters of `batch_norm_running`.
    Running (56) {
        /// The address of the old values.
        running: u64,
        /// The address of the means and the variances of the batch.
        statistics: u64,
        /// The address of the new values.
        out: u64,
        /// The number of rows of the batch.
        total: Count,
        /// The number of columns.
        cols: u32,
        /// 1 for the variances, 0 for the means.
        variance: u32,
        /// The share of the batch.
        momentum: f32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `row_norm`.
    RowNorm (88) {
        /// The values; for the gradient of a softmax its results.
        x: Rows,
        /// The gradients of the results.
        g: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The address of the scale of each column.
        scale: u64,
        /// The address of the shift of each column.
        shift: u64,
        /// The summand of a variance.
        eps: f32,
        /// One of the constants of [`RowNorm`].
        kind: u32,
    }

    /// The parameters of `segment`.
    Segment (80) {
        /// The values, or the gradients.
        x: Rows,
        /// The results of a softmax.
        y: Rows,
        /// The place of the results.
        out: Rows,
        /// The address of the first value of each list and of one more for the end, or 0.
        offsets: u64,
        /// The number of rows of the batch.
        rows: Count,
        /// One of the constants of [`Segment`].
        kind: u32,
        /// 1 if the length of a list divides.
        mean: u32,
    }

    /// The parameters of the interactions of fields.
    Interaction (80) {
        /// The vectors of the fields, side by side.
        x: Rows,
        /// The gradients of the results.
        g: Rows,
        /// The place of the results.
        out: Rows,
        /// The number of rows.
        rows: Count,
        /// The number of floats of a vector.
        dim: u32,
        /// 1 where the processor computes in blocks (see [`Interaction::blocked`]).
        blocked: u32,
        /// 1 if a row does not fit in shared memory, so that its vectors are read in place.
        in_place: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `loss_tiles`, `loss_sum` and `loss_grad`.
    Loss (144) {
        /// The logits of the rows.
        z: Rows,
        /// The labels of the rows.
        y: Rows,
        /// The weights of the rows.
        w: Rows,
        /// The gradients of the results.
        out: Rows,
        /// The address of the gradient of the sum.
        g: u64,
        /// The address of the sums of the tiles.
        tile_sums: u64,
        /// The address of the first row of each tile, and of one more for the end.
        tiles: u64,
        /// The address of the first tile of each lane, and of one more for the end.
        lanes: u64,
        /// The address of the loss.
        sum: u64,
        /// The number of rows.
        rows: Count,
        /// The number of lanes.
        lane_count: u32,
        /// The kind of the loss, one of the constants of this type.
        kind: u32,
        /// The focus of the focal loss, or the distance from which Huber's loss is linear.
        gamma: f32,
        /// The weight of positive rows.
        positive: f32,
        /// The weight of negative rows.
        negative: f32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `assemble`.
    Assemble (64) {
        /// The address of the columns of values, or 0.
        values: u64,
        /// The address of a byte for each row, or 0.
        mask: u64,
        /// The place of the results.
        out: Rows,
        /// The number of rows; rows up to the largest number become zero.
        rows: Count,
        /// The address of the column of each column of the results, or 0.
        columns: u64,
        /// The distance of two columns of values.
        value_stride: u32,
        /// The value without values.
        fill: f32,
    }

    /// The rule of a parameter in one step, in device memory.
    DenseRule (48) {
        /// One of the constants of [`DenseRule`].
        kind: u32,
        /// The learning rate; for Adam the step size.
        rate: f32,
        /// The term that keeps a divisor from zero.
        eps: f32,
        /// The factor of Adam's weight decay.
        kept: f32,
        /// The momentum; for Adam beta2; for FTRL 1 / alpha.
        a: f32,
        /// 1 for Nesterov; for Adam 1 - beta1; for FTRL beta.
        b: f32,
        /// For Adam 1 - beta2; for FTRL l1.
        c: f32,
        /// For Adam the root of the second correction; for FTRL l2.
        d: f32,
        /// The first correction of LAMB.
        correction1: f32,
        /// The weight decay of LAMB.
        weight_decay: f32,
        /// The learning rate of LAMB.
        lamb_rate: f64,
    }

    /// Up to 16,384 floats of one parameter, in device memory.
    DensePiece (40) {
        /// The address of the weights.
        weights: u64,
        /// The address of the first state, or of the average.
        first: u64,
        /// The address of the second state.
        second: u64,
        /// The address of the gradient.
        gradient: u64,
        /// The number of floats.
        n: u32,
        /// The number of the parameter, which is the index of its rule.
        rule: u32,
    }

    /// The parameters of the dense optimizers.
    DenseUpdate (56) {
        /// The address of the pieces, in the order of parameters.
        pieces: u64,
        /// The address of the rules.
        rules: u64,
        /// The address of the factor of a clipped step, or 0.
        scale: u64,
        /// The address of a number that is not zero where the step changes nothing, or 0.
        skip: u64,
        /// The address of the sums of squares of the pieces, of type f64.
        sums: u64,
        /// The address of the share of the new weights in an average.
        share: u64,
        /// The number of pieces.
        piece_count: u32,
        /// The factor of the regulariser.
        l2: f32,
    }
}

impl Link {
    /// A function of the running value.
    pub const UNARY: u32 = 0;
    /// The gradient of a function; the operand is the point.
    pub const UNARY_GRAD: u32 = 1;
    /// The gradient of a function; the running value is the point.
    pub const POINT_OF: u32 = 2;
    /// A function of the running value and the operand.
    pub const BINARY: u32 = 3;
    /// A function of the operand and the running value.
    pub const BINARY_OF: u32 = 4;
    /// The running value times the first operand, plus the second one.
    pub const MUL_ADD: u32 = 5;
    /// The product of both operands, plus the running value.
    pub const ADD_PRODUCT: u32 = 6;
    /// The running value divided by a number of rows.
    pub const OVER_ROWS: u32 = 7;
}

/// The numbers of the functions of links.
#[derive(Clone, Copy, Debug)]
pub struct Function;

#[expect(missing_docs, reason = "the names of the graph's functions")]
impl Function {
    pub const RELU: u32 = 0;
    pub const LEAKY_RELU: u32 = 1;
    pub const SIGMOID: u32 = 2;
    pub const TANH: u32 = 3;
    pub const GELU: u32 = 4;
    pub const SILU: u32 = 5;
    pub const SOFTPLUS: u32 = 6;
    pub const SQUARE: u32 = 7;
    pub const SQRT: u32 = 8;
    pub const EXP: u32 = 9;
    pub const LN: u32 = 10;
    pub const SCALE: u32 = 11;
    pub const OFFSET: u32 = 12;
    pub const ADD: u32 = 0;
    pub const SUB: u32 = 1;
    pub const MUL: u32 = 2;
    pub const DIV: u32 = 3;
    pub const SAFE_DIV: u32 = 4;
}

impl ColumnSums {
    /// The values, as they are.
    pub const PLAIN: u32 = 0;
    /// The values times the weights of their rows.
    pub const WEIGHTED: u32 = 1;
    /// The gradients times the values normalised by column, and the gradients.
    pub const BY_COLUMN: u32 = 2;
    /// The gradients times the values normalised by row, and the gradients.
    pub const BY_ROW: u32 = 3;
    /// The values where `g` is above zero, which is the gradient of relu.
    pub const MASKED: u32 = 4;
}
