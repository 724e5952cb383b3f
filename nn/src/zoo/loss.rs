//! The loss of a label: cross-entropy, with or without class weights, the focal loss, or a loss of
//! a number.
//!
//! Each loss is averaged by sample weight over the rows that have the label. The divisor does not
//! include class weights. So a positive weight of 2 doubles the loss of a positive row, as in
//! PyTorch's `BCEWithLogitsLoss(pos_weight)`. Only with plain cross-entropy does a model learn the
//! odds of the data. With any other loss, its scores still rank rows, but they are not
//! probabilities.

use serde::Deserializer;
use zillion_feature::LabelKind;

use super::model::wrong_labels;
use super::*;
use crate::checks::{inner_share, positive};
use crate::graph::op::{Binary, Distance, Focal, GroupLoss, Op};

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
    /// The squared error of a number.
    Mse {},
    /// The error of Huber 1964 of a number: quadratic up to `delta`, and linear beyond it.
    Huber {
        /// The distance from which the loss grows linearly.
        #[serde(default = "one", deserialize_with = "positive")]
        delta: f32,
    },
    /// The negative log-likelihood of a Poisson distribution. The score is the logarithm of its
    /// mean.
    Poisson {},
    /// The cross-entropy of a softmax over the scores of the classes of a label.
    Softmax {},
    /// The logistic loss of the difference of scores, for each pair of a row of label 1 and a row
    /// of label 0 of one group.
    Pairwise {},
    /// The cross-entropy of each row of label 1 under the softmax over the rows of its group.
    Listwise {},
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

    /// Returns whether the loss compares the rows of a group. It then learns an order of rows, and
    /// the same number added to all scores changes nothing.
    #[must_use]
    pub fn compares_groups(&self) -> bool {
        self.group_loss().is_some()
    }

    fn group_loss(self) -> Option<GroupLoss> {
        match self {
            Self::Pairwise {} => Some(GroupLoss::Pairwise),
            Self::Listwise {} => Some(GroupLoss::Listwise),
            _ => None,
        }
    }

    /// Returns whether the weights of both classes are 0. Such a loss has no gradient.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Bce { positive_weight, negative_weight } if *positive_weight == 0.0 && *negative_weight == 0.0)
    }

    /// Returns the kind of label that the loss learns.
    #[must_use]
    pub fn label_kind(&self) -> LabelKind {
        match self {
            Self::Bce { .. } | Self::Focal { .. } | Self::Pairwise {} | Self::Listwise {} => {
                LabelKind::Binary
            }
            Self::Mse {} | Self::Huber { .. } => LabelKind::Number,
            Self::Poisson {} => LabelKind::Count,
            Self::Softmax {} => LabelKind::Class,
        }
    }

    /// Returns the name of the loss in a job.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bce { .. } => "bce",
            Self::Focal { .. } => "focal",
            Self::Mse {} => "mse",
            Self::Huber { .. } => "huber",
            Self::Poisson {} => "poisson",
            Self::Softmax {} => "softmax",
            Self::Pairwise {} => "pairwise",
            Self::Listwise {} => "listwise",
        }
    }

    /// Returns the loss of a label of this kind, if the job names none.
    #[must_use]
    pub fn default_for(kind: LabelKind) -> Self {
        match kind {
            LabelKind::Binary => Self::default(),
            LabelKind::Number => Self::Mse {},
            LabelKind::Count => Self::Poisson {},
            LabelKind::Class => Self::Softmax {},
        }
    }

    /// Returns the score at which the loss is least if every row has this score and the labels have
    /// the mean `mean`. For the focal loss and Huber's loss, the score is near the least loss.
    #[must_use]
    pub fn score_of_mean(&self, mean: f64) -> f64 {
        let odds = (mean / (1.0 - mean)).ln();
        let ratio = |positive: f32, negative: f32| {
            let ratio = (f64::from(positive) / f64::from(negative)).ln();
            if ratio.is_finite() { ratio } else { 0.0 }
        };
        match *self {
            Self::Bce { positive_weight, negative_weight } => {
                odds + ratio(positive_weight, negative_weight)
            }
            Self::Focal { alpha, .. } => {
                odds + alpha.map_or(0.0, |alpha| ratio(alpha, 1.0 - alpha))
            }
            Self::Mse {} | Self::Huber { .. } => mean,
            Self::Poisson {} | Self::Softmax {} => mean.ln(),
            Self::Pairwise {} | Self::Listwise {} => 0.0,
        }
    }

    /// Returns the operation that sums the loss of one score in each row, or `None` if the loss
    /// needs several scores.
    fn op(self) -> Option<Op> {
        Some(match self {
            Self::Bce { .. } | Self::Focal { .. } => Op::FocalSum(self.focal()),
            Self::Mse {} => Op::DistanceSum(Distance::Squared),
            Self::Huber { delta } => Op::DistanceSum(Distance::Huber { delta }),
            Self::Poisson {} => Op::DistanceSum(Distance::Poisson),
            Self::Softmax {} | Self::Pairwise {} | Self::Listwise {} => return None,
        })
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
            _ => Focal { gamma: 0.0, positive: 1.0, negative: 1.0 },
        }
    }
}

/// Builds the weighted mean `Σ w·l / Σ w` of the loss `l` over scores, labels and weights. All
/// inputs are `[B, 1]`. The result is 0 if every weight is 0. `groups` are the numbers of the
/// groups of the rows, for a loss that compares them.
pub(super) fn averaged(
    b: &mut GraphBuilder,
    name: &str,
    spec: LossSpec,
    [logits, labels, weights]: [NodeId; 3],
    groups: Option<NodeId>,
) -> Result<NodeId> {
    if let (Some(loss), Some(groups)) = (spec.group_loss(), groups) {
        let mut whole =
            |what: &str, node| b.push(&format!("{name}.{what}.whole"), Op::Collect, &[node]);
        let scores = whole("scores", logits)?;
        let rows = [whole("labels", labels)?, whole("weights", weights)?, whole("groups", groups)?];
        let inputs = [&[logits, scores][..], &rows[..]].concat();
        let losses = b.push(&format!("{name}.rows"), Op::GroupLoss(loss), &inputs)?;
        let weights = b.push(&format!("{name}.rows.weight"), Op::GroupWeight(loss), &rows)?;
        let sum = b.sum_rows(&format!("{name}.sum"), losses)?;
        let total = b.sum_rows(&format!("{name}.weight.sum"), weights)?;
        return b.binary(name, Binary::SafeDiv, sum, total);
    }
    if spec.is_plain() {
        return b.weighted_bce(name, logits, labels, weights);
    }
    let Some(op) = spec.op() else {
        let reason = format!("this model cannot learn by {}; choose another loss", spec.name());
        return Err(wrong_labels(reason));
    };
    let total = b.sum_rows(&format!("{name}.weight.sum"), weights)?;
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
            "kind = 'huber'\ndelta = 0",
            "kind = 'mse'\ndelta = 1",
            "kind = 'poisson'\ngamma = 1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for (text, kind) in [
            ("kind = 'mse'", LabelKind::Number),
            ("kind = 'huber'\ndelta = 2.5", LabelKind::Number),
            ("kind = 'poisson'", LabelKind::Count),
            ("kind = 'softmax'", LabelKind::Class),
            ("kind = 'pairwise'", LabelKind::Binary),
            ("kind = 'listwise'", LabelKind::Binary),
        ] {
            let loss = read(text).unwrap();
            assert_eq!(loss.label_kind(), kind, "{text}");
            assert_eq!(read(&toml::to_string(&loss).unwrap()).unwrap(), loss);
        }
    }

    #[test]
    fn a_constant_score_of_the_mean_has_the_least_loss() {
        let weighted = LossSpec::Bce { positive_weight: 3.0, negative_weight: 0.5 };
        for (loss, labels) in [
            (LossSpec::default(), [0.0f64, 0.0, 0.0, 1.0]),
            (weighted, [0.0, 1.0, 0.0, 0.0]),
            (LossSpec::Mse {}, [-2.0, 0.5, 7.0, 1.0]),
            (LossSpec::Poisson {}, [0.0, 3.0, 1.0, 5.0]),
        ] {
            let total = |z: f64| -> f64 {
                let of = |&y: &f64| match loss {
                    LossSpec::Mse {} => (z - y).powi(2),
                    LossSpec::Poisson {} => z.exp() - y * z,
                    _ => {
                        let Focal { positive, negative, .. } = loss.focal();
                        let p = 1.0 / (1.0 + (-z).exp());
                        -f64::from(positive) * y * p.ln()
                            - f64::from(negative) * (1.0 - y) * (1.0 - p).ln()
                    }
                };
                labels.iter().map(of).sum()
            };
            let best = loss.score_of_mean(labels.iter().sum::<f64>() / 4.0);
            assert!(
                total(best) < total(best + 1e-3) && total(best) < total(best - 1e-3),
                "{loss:?}"
            );
        }
    }
}
