//! A model in the vocabulary of a job: the `[model]` section.
//!
//! Each kind has its own keys; a key of another kind is refused, because a hyper-parameter that is
//! silently ignored is an accuracy bug. Defaults are FuxiCTR's.

mod checks;
mod defaults;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use toml::Value;
use zillion_config::ConfigError;

use super::activation::Activation;
use super::custom::GraphSpec;
use crate::optim::not_negative;
use checks::{at_least_one, positive, rank, rate, some_widths, widths};

/// A model and its hyper-parameters: `kind = "deepfm"` and the keys of that kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelSpec {
    /// Logistic regression.
    Lr(ShallowSpec),
    /// Factorisation machine.
    Fm(ShallowSpec),
    /// An MLP over the vectors.
    Dnn(DeepSpec),
    /// A linear part beside an MLP.
    WideDeep(WideDeepSpec),
    /// A factorisation machine beside an MLP, on the same vectors.
    #[serde(rename = "deepfm")]
    DeepFm(WideDeepSpec),
    /// Deep & cross network with vector crosses.
    Dcn(CrossSpec),
    /// Deep & cross network with matrix crosses, full or of low rank.
    Dcnv2(CrossV2Spec),
    /// Numeric features through a bottom MLP, an interaction, a top MLP.
    Dlrm(DlrmSpec),
    /// Histories, summed by attention, beside the vectors.
    Din(DinSpec),
    /// A shared MLP, and a tower for each label.
    SharedBottom(SharedBottomSpec),
    /// Shared experts, and for each label a gate that mixes them and a tower.
    Mmoe(MmoeSpec),
    /// Click, and conversion after a click, learned over all impressions.
    Esmm(EsmmSpec),
    /// A tower for who asks, one for what is asked for.
    TwoTower(TwoTowerSpec),
    /// Nodes named in the job.
    Graph(GraphSpec),
}

/// Keys of `lr` and `fm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShallowSpec {
    /// A global bias. Default: true.
    pub bias: bool,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `dnn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeepSpec {
    /// Units of the hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `wide_deep` and `deepfm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WideDeepSpec {
    /// Units of the hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// A bias of the wide part, beside that of the MLP's output. It adds nothing to what the model can
    /// express, but an optimizer then moves the sum of two. Default: false.
    pub bias: bool,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `dcn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrossSpec {
    /// Cross layers, at least 1. Default: 3.
    #[serde(deserialize_with = "at_least_one")]
    pub cross_layers: usize,
    /// How cross layers and MLP stand to each other. Default: parallel.
    pub structure: Structure,
    /// Units of the hidden layers; none: crosses alone. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `dcnv2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrossV2Spec {
    /// Cross layers, at least 1. Default: 3.
    #[serde(deserialize_with = "at_least_one")]
    pub cross_layers: usize,
    /// Rank of the crosses' matrices, at least 1; absent: full matrices. Default: absent.
    #[serde(deserialize_with = "rank", skip_serializing_if = "Option::is_none")]
    pub low_rank: Option<usize>,
    /// How cross layers and MLP stand to each other. Default: parallel.
    pub structure: Structure,
    /// Units of the hidden layers; none: crosses alone. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `dlrm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DlrmSpec {
    /// What joins the vectors. Default: dot.
    pub interaction: Interaction,
    /// Units of the bottom MLP over the numeric features; the last must be the vectors' length.
    /// Refused where no feature is numeric. Default: 64, 64, 64 and the vectors' length.
    #[serde(deserialize_with = "some_widths", skip_serializing_if = "Option::is_none")]
    pub bottom: Option<Vec<usize>>,
    /// Share of the bottom MLP's hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub bottom_dropout: f32,
    /// Units of the top MLP's hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each layer but the last of the top MLP. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation of hidden layers, bottom and top. Default: false.
    pub batch_norm: bool,
    /// Share of the top MLP's hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `din`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DinSpec {
    /// Which history is looked at for which id. At least one.
    pub attention: Vec<Attention>,
    /// Units of the hidden layers that weigh an item of a history. Default: 80, 40.
    #[serde(deserialize_with = "widths")]
    pub attention_hidden: Vec<usize>,
    /// After each of them. Default: sigmoid, as in the authors' code.
    pub attention_activation: Activation,
    /// Weights of a list sum to 1. Default: false, as in the paper.
    pub softmax: bool,
    /// Units of the hidden layers. Default: 200, 80.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// A linear part beside the MLP, as in `wide_deep`. Default: false.
    pub wide: bool,
    /// A factorisation machine over vectors and attended histories beside the MLP, as in `deepfm`: all
    /// must be of one length. Default: false.
    pub fm: bool,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// One activation unit of `din`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The feature with the id in question.
    pub query: String,
    /// The feature of kind sequence, in the same table.
    pub history: String,
}

/// Keys of `shared_bottom`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedBottomSpec {
    /// Units of the shared hidden layers. Default: 128, 64.
    #[serde(deserialize_with = "widths")]
    pub bottom: Vec<usize>,
    /// Units of the hidden layers of each label's tower. Default: 32.
    #[serde(deserialize_with = "widths")]
    pub tower: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `mmoe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MmoeSpec {
    /// Number of experts, at least 1. Default: 4.
    #[serde(deserialize_with = "at_least_one")]
    pub experts: usize,
    /// Units of the hidden layers of each expert. Default: 128, 64.
    #[serde(deserialize_with = "widths")]
    pub expert: Vec<usize>,
    /// Units of the hidden layers of each label's tower. Default: 32.
    #[serde(deserialize_with = "widths")]
    pub tower: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `esmm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EsmmSpec {
    /// Units of the hidden layers of each of the two towers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// Keys of `two_tower`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoTowerSpec {
    /// Features of who asks. Every feature is in one of the towers.
    pub user: Vec<String>,
    /// Features of what is asked for.
    pub item: Vec<String>,
    /// The feature of the item's tower, of kind id, that tells items apart. Default: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// Units of the hidden layers of each tower; none: a linear layer alone. Default: none.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// Floats of the vectors that are compared, at least 1. Default: 64.
    #[serde(deserialize_with = "at_least_one")]
    pub dim: usize,
    /// What scores are divided by, above 0. Default: 0.1.
    #[serde(deserialize_with = "positive")]
    pub temperature: f32,
    /// Vectors have length 1, so that scores are cosines. Default: true.
    pub normalise: bool,
    /// Scores in training are corrected for how often an item is drawn into a batch. Default: true.
    pub sampling_correction: bool,
    /// After each hidden layer. Default: relu.
    pub activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    pub batch_norm: bool,
    /// Share of hidden units dropped in training. Default: 0.
    #[serde(deserialize_with = "rate")]
    pub dropout: f32,
    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl TwoTowerSpec {
    /// The feature that tells items apart; empty where the item's tower has none.
    #[must_use]
    pub fn item_feature(&self) -> &str {
        let first = self.item.first().map_or("", String::as_str);
        self.item_id.as_deref().unwrap_or(first)
    }
}

/// How cross layers and MLP stand to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// Both read the vectors; the output reads both.
    #[default]
    Parallel,
    /// The MLP reads what the cross layers give.
    Stacked,
}

/// What joins DLRM's vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interaction {
    /// The dot product of each pair of vectors, and the bottom MLP's vector itself.
    #[default]
    Dot,
    /// The vectors side by side.
    Cat,
}

/// Which segments of a row a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The vector of each feature.
    pub vector: bool,
    /// The weight of each feature in a linear part.
    pub linear: bool,
}

impl ModelSpec {
    /// Reads a job's `[model]` section.
    ///
    /// # Errors
    /// Names the key, and the nearest valid one where a key, a value or a node is not known.
    pub fn from_job(job: &Value) -> Result<Self, ConfigError> {
        match job.get("model") {
            Some(model) if model.get("kind").and_then(Value::as_str) == Some("graph") => {
                GraphSpec::read(model, "model").map(Self::Graph)
            }
            _ => zillion_config::section(job, "model"),
        }
    }

    /// The kind, as a job writes it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lr(_) => "lr",
            Self::Fm(_) => "fm",
            Self::Dnn(_) => "dnn",
            Self::WideDeep(_) => "wide_deep",
            Self::DeepFm(_) => "deepfm",
            Self::Dcn(_) => "dcn",
            Self::Dcnv2(_) => "dcnv2",
            Self::Dlrm(_) => "dlrm",
            Self::Din(_) => "din",
            Self::SharedBottom(_) => "shared_bottom",
            Self::Mmoe(_) => "mmoe",
            Self::Esmm(_) => "esmm",
            Self::TwoTower(_) => "two_tower",
            Self::Graph(_) => "graph",
        }
    }

    /// Which segments of a row the model reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        match self {
            Self::Lr(_) => Needs { vector: false, linear: true },
            Self::Fm(_) | Self::WideDeep(_) | Self::DeepFm(_) => {
                Needs { vector: true, linear: true }
            }
            Self::Din(spec) => Needs { vector: true, linear: spec.wide },
            Self::Dnn(_)
            | Self::Dcn(_)
            | Self::Dcnv2(_)
            | Self::Dlrm(_)
            | Self::SharedBottom(_)
            | Self::Mmoe(_)
            | Self::Esmm(_)
            | Self::TwoTower(_) => Needs { vector: true, linear: false },
            Self::Graph(spec) => spec.needs(),
        }
    }

    /// λ of the loss term `(λ/2)·|w|²` over the dense parameters.
    #[must_use]
    pub fn l2(&self) -> f64 {
        match self {
            Self::Lr(spec) | Self::Fm(spec) => spec.l2,
            Self::Dnn(spec) => spec.l2,
            Self::WideDeep(spec) | Self::DeepFm(spec) => spec.l2,
            Self::Dcn(spec) => spec.l2,
            Self::Dcnv2(spec) => spec.l2,
            Self::Dlrm(spec) => spec.l2,
            Self::Din(spec) => spec.l2,
            Self::SharedBottom(spec) => spec.l2,
            Self::Mmoe(spec) => spec.l2,
            Self::Esmm(spec) => spec.l2,
            Self::TwoTower(spec) => spec.l2,
            Self::Graph(spec) => spec.l2,
        }
    }
}
