//! The loss of a label: cross-entropy, with or without class weights, or the focal loss.
//!
//! Each loss is averaged by sample weight over the rows that have the label. The divisor does not
//! include class weights. So a positive weight of 2 doubles the loss of a positive row, as in
//! PyTorch's `BCEWithLogitsLoss(pos_weight)`. Only with plain cross-entropy does a model learn the
//! odds of the data. With any other loss, its scores still rank rows, but they are not
//! probabilities.

use serde::Deserializer;

use super::*;
use crate::checks::inner_share;
use crate::graph::op::{Binary, Focal, Op};

/// The loss of a label: `{ kind = "focal", gamma = 2.0, alpha = 0.25 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum LossSpec {
    /// Binary cross-entropy, with a weight for each class.
    Bce {
        /// The factor of the loss where the label is 1.
        #[serde(default = "one", deserialize_with = "not_negative")]
        positive_weight: f32,
        /// The factor of the loss where the label is 0.
        #[serde(default = "one", deserialize_with = "not_negative")]
        negative_weight: f32,
    },
    /// The focal loss of Lin et al. 2017: `(1 − p)^gamma` times the cross-entropy, where `p` is the
    /// probability of the true label.
    Focal {
        /// The exponent that reduces the weight of easy examples. With 0, easy and hard
        /// examples count equally.
        #[serde(default = "two", deserialize_with = "not_negative")]
        gamma: f32,
        /// The class weights: the loss is multiplied by `alpha` where the label is 1, and by `1 −
        /// alpha` where it is 0. If it is `None`, both factors are 1.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "share")]
        alpha: Option<f32>,
    },
}

impl Default for LossSpec {
    fn default() -> Self {
        Self::Bce { positive_weight: 1.0, negative_weight: 1.0 }
    }
}

impl LossSpec {
    /// Returns whether the loss is plain cross-entropy. Only with this loss, the scores of a model
    /// are probabilities.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the weights of both classes are 0. Such a loss has no gradient.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Bce { positive_weight, negative_weight } if *positive_weight == 0.0 && *negative_weight == 0.0)
    }

    fn focal(self) -> Focal {
        match self {
            Self::Bce { positive_weight, negative_weight } => {
                Focal { gamma: 0.0, positive: positive_weight, negative: negative_weight }
            }
            Self::Focal { gamma, alpha } => {
                let (positive, negative) = alpha.map_or((1.0, 1.0), |alpha| (alpha, 1.0 - alpha));
                Focal { gamma, positive, negative }
            }
        }
    }
}

/// Builds the weighted mean `Σ w·l / Σ w` of the loss `l` over logits, labels of 0 and 1, and
/// weights. All inputs are `[B, 1]`. The result is 0 if every weight is 0.
pub(super) fn averaged(
    b: &mut GraphBuilder,
    name: &str,
    spec: LossSpec,
    logits: NodeId,
    labels: NodeId,
    weights: NodeId,
) -> Result<NodeId> {
    if spec.is_plain() {
        return b.weighted_bce(name, logits, labels, weights);
    }
    let total = b.sum_rows(&format!("{name}.weight.sum"), weights)?;
    let op = Op::FocalSum(spec.focal());
    let sum = b.push(&format!("{name}.sum"), op, &[logits, labels, weights])?;
    b.binary(name, Binary::SafeDiv, sum, total)
}

fn one() -> f32 {
    1.0
}

fn two() -> f32 {
    2.0
}

/// Reads a number in `(0, 1)`.
fn share<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<f32>, D::Error> {
    inner_share(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_speak_the_vocabulary() {
        let read = |text: &str| toml::from_str::<LossSpec>(text).map_err(|e| e.to_string());
        assert!(read("kind = 'bce'").unwrap().is_plain());
        let weighted = read("kind = 'bce'\npositive_weight = 3").unwrap();
        assert_eq!(weighted.focal(), Focal { gamma: 0.0, positive: 3.0, negative: 1.0 });
        let focal = read("kind = 'focal'\nalpha = 0.25").unwrap();
        assert_eq!(focal.focal(), Focal { gamma: 2.0, positive: 0.25, negative: 0.75 });
        assert_eq!(read(&toml::to_string(&focal).unwrap()).unwrap(), focal);
        assert_eq!(
            read("kind = 'focal'").unwrap().focal(),
            Focal { gamma: 2.0, positive: 1.0, negative: 1.0 }
        );
        assert!(
            read("kind = 'bce'\npositive_weight = 0\nnegative_weight = 0").unwrap().is_nothing()
        );
        for bad in [
            "kind = 'focal'\ngamma = -1",
            "kind = 'focal'\nalpha = 1",
            "kind = 'bce'\npositive_weight = -1",
            "kind = 'hinge'",
            "kind = 'bce'\npos_weight = 2",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
