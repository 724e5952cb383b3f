//! The losses that operations sum.

use serde::{Deserialize, Serialize};

/// A binary cross-entropy with a weight for each class and a focus on hard examples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Focal {
    /// The exponent of `1 − p`, where `p` is the probability of the true label. With 0, the loss
    /// has no focus.
    pub gamma: f32,
    /// The factor of the loss where the label is 1.
    pub positive: f32,
    /// The factor of the loss where the label is 0.
    pub negative: f32,
}

/// A loss of a number that a score predicts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Distance {
    /// The squared error `(z − y)²`.
    Squared,
    /// The error of Huber 1964: `½·(z − y)²` up to `|z − y| = delta`, and linear beyond it.
    Huber {
        /// The distance from which the loss grows linearly.
        delta: f32,
    },
    /// The negative log-likelihood of a Poisson distribution with the mean `e^z`, without the part
    /// that does not depend on z: `e^z − y·z`.
    Poisson,
}

/// A loss of the rows of a group against each other. Rows with equal numbers of their groups that
/// are neighbours form a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GroupLoss {
    /// The logistic loss `ln(1 + e^(z_j − z_i))` of each pair of a row i of label 1 and a row j of
    /// label 0 (Burges et al. 2005; Rendle et al. 2009). The weight of a pair is the product of the
    /// weights of its rows.
    Pairwise,
    /// The cross-entropy `ln Σ w_j·e^(z_j) − z_i` of each row i of label 1 under the softmax of the
    /// scores of its group (Cao et al. 2007).
    Listwise,
}
