//! The numbers by which kernels know what to compute: the kinds of norms, of sums over lists and of
//! dense rules.

use super::operations::{BatchNorm, DenseRule, RowNorm, Segment};

impl BatchNorm {
    /// The values after their normalisation.
    pub const FORWARD: u32 = 0;
    /// The gradient with the statistics of the batch.
    pub const GRAD: u32 = 1;
    /// The gradient with constant statistics.
    pub const FIXED_GRAD: u32 = 2;
}

impl RowNorm {
    /// The mean and the reciprocal deviation of each row.
    pub const STATISTICS: u32 = 0;
    /// The values after their normalisation.
    pub const LAYER_NORM: u32 = 1;
    /// The gradient of the normalised values.
    pub const LAYER_NORM_GRAD: u32 = 2;
    /// The softmax of each row.
    pub const SOFTMAX: u32 = 3;
    /// The gradient of the softmax.
    pub const SOFTMAX_GRAD: u32 = 4;
    /// The logarithm of the sum of exponentials.
    pub const LOG_SUM_EXP: u32 = 5;
}

impl Segment {
    /// Each value gets the row of its list.
    pub const REPEAT: u32 = 0;
    /// Each row gets the sum of its list.
    pub const SUM: u32 = 1;
    /// The softmax over each list.
    pub const SOFTMAX: u32 = 2;
    /// The gradient of the softmax over each list.
    pub const SOFTMAX_GRAD: u32 = 3;
}

impl DenseRule {
    /// Plain stochastic gradient descent.
    pub const SGD: u32 = 0;
    /// Stochastic gradient descent with momentum.
    pub const MOMENTUM: u32 = 1;
    /// AdaGrad with an accumulator for each weight.
    pub const ADAGRAD: u32 = 2;
    /// Adam, and AdamW by its weight decay.
    pub const ADAM: u32 = 3;
    /// The moments of LAMB; `lamb_weights` updates the weights.
    pub const LAMB: u32 = 4;
    /// FTRL-Proximal, without the group lasso.
    pub const FTRL: u32 = 5;
}
