//! The attributes of the operations that a job's graph may name.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::checks::{below_one, finite};
use crate::graph::ParamInit;
use crate::zoo::Activation;

/// The maximum width of a layer, and the maximum side of a parameter. A larger number is probably a
/// mistake.
const MAX_WIDTH: usize = 1 << 20;
/// The maximum number of layers in one node.
const MAX_LAYERS: usize = 100;

/// The attributes of an operation that has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plain {}

/// The attributes of an operation that reads several features.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Features {
    /// The names of the features, in order, or `None` for all features that the operation can read,
    /// in the order of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) features: Option<Vec<String>>,
}

/// The attributes of an operation that reads one feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneFeature {
    /// The name of a feature with ids.
    pub(super) feature: String,
}

/// The attributes of the linear part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wide {
    /// The names of the features, with ids or numbers, or `None` for all features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) features: Option<Vec<String>>,
    /// Whether there is a global bias. Default: false.
    pub(super) bias: bool,
}

/// The attributes of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Param {
    /// The numbers of rows and columns.
    #[serde(deserialize_with = "shape")]
    pub(super) shape: [usize; 2],
    /// The initial values. Default: Xavier normal.
    #[serde(default)]
    pub(super) init: Init,
}

/// The attributes of a constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Constant {
    /// The number in every element.
    #[serde(deserialize_with = "finite")]
    pub(super) value: f32,
    /// The numbers of rows and columns. Default: 1, 1.
    #[serde(default = "one_by_one", deserialize_with = "shape")]
    pub(super) shape: [usize; 2],
}

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Init {
    /// A normal distribution with variance `2 / (rows + cols)` (Glorot & Bengio 2010).
    #[default]
    XavierNormal,
    /// A uniform distribution in ±√(6 / (rows + cols)) (Glorot & Bengio 2010).
    XavierUniform,
    /// A normal distribution with mean 0.
    Normal {
        /// The standard deviation of the distribution.
        #[serde(deserialize_with = "finite")]
        std: f32,
    },
    /// A uniform distribution in `[low, high)`.
    Uniform {
        /// The lower end of the range.
        #[serde(deserialize_with = "finite")]
        low: f32,
        /// The upper end of the range.
        #[serde(deserialize_with = "finite")]
        high: f32,
    },
    /// The same value in every element.
    Constant {
        /// The value of every element.
        #[serde(deserialize_with = "finite")]
        value: f32,
    },
}

/// The attributes of a leaky relu.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Slope {
    /// The slope below zero. Default: 0.01.
    #[serde(deserialize_with = "finite")]
    pub(super) slope: f32,
}

impl Default for Slope {
    fn default() -> Self {
        Self { slope: 0.01 }
    }
}

/// The attribute of an operation with a factor or a summand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct By {
    /// The factor or summand of every element.
    #[serde(deserialize_with = "finite")]
    pub(super) by: f32,
}

/// The attributes of a linear layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Linear {
    /// The number of units.
    #[serde(deserialize_with = "width")]
    pub(super) width: usize,
    /// Whether each unit has a bias. Default: true.
    #[serde(default = "yes")]
    pub(super) bias: bool,
    /// The initial values of the weight. Default: Xavier normal.
    #[serde(default)]
    pub(super) init: Init,
}

/// The attributes of a slice of columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slice {
    /// The first column, counted from 0.
    pub(super) start: usize,
    /// The number of columns.
    #[serde(deserialize_with = "width")]
    pub(super) len: usize,
}

/// The attributes of an interaction of fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Fields {
    /// The number of floats of a field, or `None` for the length of the vectors in the input.
    #[serde(deserialize_with = "some_width", skip_serializing_if = "Option::is_none")]
    pub(super) dim: Option<usize>,
}

/// The attributes of dropout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dropout {
    /// The share of the elements that become zero in training.
    #[serde(deserialize_with = "below_one")]
    pub(super) rate: f32,
}

/// The attributes of the hidden layers of an MLP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MlpNode {
    /// The units of the hidden layers.
    #[serde(deserialize_with = "hidden")]
    pub(super) hidden: Vec<usize>,
    /// The function after each layer. Default: relu.
    #[serde(default)]
    pub(super) activation: Activation,
    /// Whether batch norm comes between linear layer and activation. Default: false.
    #[serde(default)]
    pub(super) batch_norm: bool,
    /// The share of units dropped in training. Default: 0.
    #[serde(default, deserialize_with = "below_one")]
    pub(super) dropout: f32,
}

/// The attributes of cross layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Cross {
    /// The number of layers. Default: 3.
    #[serde(deserialize_with = "layers")]
    pub(super) layers: usize,
}

/// The attributes of cross layers with matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CrossV2 {
    /// The number of layers. Default: 3.
    #[serde(deserialize_with = "layers")]
    pub(super) layers: usize,
    /// The rank of the matrices, or `None` for full matrices.
    #[serde(deserialize_with = "some_width", skip_serializing_if = "Option::is_none")]
    pub(super) low_rank: Option<usize>,
}

impl Default for Cross {
    fn default() -> Self {
        Self { layers: 3 }
    }
}

impl Default for CrossV2 {
    fn default() -> Self {
        Self { layers: 3, low_rank: None }
    }
}

impl From<Init> for ParamInit {
    fn from(init: Init) -> Self {
        match init {
            Init::XavierNormal => Self::XavierNormal,
            Init::XavierUniform => Self::XavierUniform,
            Init::Normal { std } => Self::Normal { std },
            Init::Uniform { low, high } => Self::Uniform { low, high },
            Init::Constant { value } => Self::Constant { value },
        }
    }
}

fn yes() -> bool {
    true
}

fn one_by_one() -> [usize; 2] {
    [1, 1]
}

fn in_range<E: serde::de::Error>(value: usize, max: usize) -> Result<usize, E> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    Err(E::custom(format!("must be 1 to {max}, found {value}")))
}

fn width<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    in_range(usize::deserialize(deserializer)?, MAX_WIDTH)
}

fn some_width<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    width(deserializer).map(Some)
}

fn layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    in_range(usize::deserialize(deserializer)?, MAX_LAYERS)
}

fn shape<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; 2], D::Error> {
    let sides = <[usize; 2]>::deserialize(deserializer)?;
    for side in sides {
        in_range::<D::Error>(side, MAX_WIDTH)?;
    }
    Ok(sides)
}

fn hidden<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let widths = Vec::<usize>::deserialize(deserializer)?;
    if widths.is_empty() || widths.len() > MAX_LAYERS {
        let found = widths.len();
        return Err(D::Error::custom(format!("must have 1 to {MAX_LAYERS} layers, found {found}")));
    }
    for &width in &widths {
        in_range::<D::Error>(width, MAX_WIDTH)?;
    }
    Ok(widths)
}
