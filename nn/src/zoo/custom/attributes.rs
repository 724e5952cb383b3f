//! The attributes of the operations that a job's graph may name.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::graph::ParamInit;
use crate::zoo::Activation;

/// Widest layer and largest side of a parameter: beyond it something was misread.
const MAX_WIDTH: usize = 1 << 20;
/// Most layers of one kind on top of each other.
const MAX_LAYERS: usize = 100;

/// No attributes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plain {}

/// Which features.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Features {
    /// Features in this order; absent: all of the kind, as the job lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) features: Option<Vec<String>>,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneFeature {
    /// A feature of ids.
    pub(super) feature: String,
}

/// The linear part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wide {
    /// Features, ids and numbers; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) features: Option<Vec<String>>,
    /// A global bias. Default: false.
    pub(super) bias: bool,
}

/// A parameter of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Param {
    /// Rows and columns.
    #[serde(deserialize_with = "shape")]
    pub(super) shape: [usize; 2],
    /// How it begins. Default: Xavier normal.
    #[serde(default)]
    pub(super) init: Init,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Constant {
    /// The number.
    #[serde(deserialize_with = "finite")]
    pub(super) value: f32,
    /// Rows and columns. Default: 1, 1.
    #[serde(default = "one_by_one", deserialize_with = "shape")]
    pub(super) shape: [usize; 2],
}

/// How a parameter begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Init {
    /// Normal with variance `2 / (rows + cols)` (Glorot & Bengio 2010).
    #[default]
    XavierNormal,
    /// Uniform in ±√(6 / (rows + cols)) (Glorot & Bengio 2010).
    XavierUniform,
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        #[serde(deserialize_with = "finite")]
        std: f32,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower end.
        #[serde(deserialize_with = "finite")]
        low: f32,
        /// Upper end.
        #[serde(deserialize_with = "finite")]
        high: f32,
    },
    /// One value everywhere.
    Constant {
        /// The value.
        #[serde(deserialize_with = "finite")]
        value: f32,
    },
}

/// The slope below zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Slope {
    /// Default: 0.01.
    #[serde(deserialize_with = "finite")]
    pub(super) slope: f32,
}

impl Default for Slope {
    fn default() -> Self {
        Self { slope: 0.01 }
    }
}

/// A factor or summand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct By {
    /// The number.
    #[serde(deserialize_with = "finite")]
    pub(super) by: f32,
}

/// A linear layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Linear {
    /// Units.
    #[serde(deserialize_with = "width")]
    pub(super) width: usize,
    /// A bias a unit. Default: true.
    #[serde(default = "yes")]
    pub(super) bias: bool,
    /// How the weight begins. Default: Xavier normal.
    #[serde(default)]
    pub(super) init: Init,
}

/// A range of columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slice {
    /// First column, counted from 0.
    pub(super) start: usize,
    /// Number of columns.
    #[serde(deserialize_with = "width")]
    pub(super) len: usize,
}

/// Fields of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Fields {
    /// Floats a field; absent: the length of the vectors that the input is made of.
    #[serde(deserialize_with = "some_width", skip_serializing_if = "Option::is_none")]
    pub(super) dim: Option<usize>,
}

/// Dropout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dropout {
    /// Share of the elements that become zero in training.
    #[serde(deserialize_with = "rate")]
    pub(super) rate: f32,
}

/// Hidden layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MlpNode {
    /// Units of the hidden layers.
    #[serde(deserialize_with = "hidden")]
    pub(super) hidden: Vec<usize>,
    /// After each layer. Default: relu.
    #[serde(default)]
    pub(super) activation: Activation,
    /// Batch norm between linear and activation. Default: false.
    #[serde(default)]
    pub(super) batch_norm: bool,
    /// Share of units dropped in training. Default: 0.
    #[serde(default, deserialize_with = "rate")]
    pub(super) dropout: f32,
}

/// Cross layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Cross {
    /// Number of layers. Default: 3.
    #[serde(deserialize_with = "layers")]
    pub(super) layers: usize,
}

/// Cross layers with matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CrossV2 {
    /// Number of layers. Default: 3.
    #[serde(deserialize_with = "layers")]
    pub(super) layers: usize,
    /// Rank of the matrices; absent: full.
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
        return Err(D::Error::custom(format!("must be 1 to {MAX_LAYERS} layers, found {found}")));
    }
    for &width in &widths {
        in_range::<D::Error>(width, MAX_WIDTH)?;
    }
    Ok(widths)
}

fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(deserializer)?;
    if value.is_finite() {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be a finite number, found {value}")))
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(deserializer)?;
    if (0.0..1.0).contains(&value) {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be at least 0 and below 1, found {value}")))
}
