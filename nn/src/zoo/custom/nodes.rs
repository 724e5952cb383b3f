//! The operations that a job's graph may name, and their attributes.

use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;
use zillion_config::ConfigError;

use crate::graph::ParamInit;
use crate::zoo::Activation;

/// Widest layer and largest side of a parameter: beyond it something was misread.
const MAX_WIDTH: usize = 1 << 20;
/// Most layers of one kind on top of each other.
const MAX_LAYERS: usize = 100;
/// Names that the loss, the result and the tables' rows have.
const RESERVED: [&str; 3] = ["loss", "probabilities", "rows"];

/// One node of a job's graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeSpec {
    /// What is computed, with its attributes.
    #[serde(flatten)]
    pub(super) op: NodeOp,
    /// From which nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) inputs: Vec<String>,
}

/// The enum, its names in a job, and which attributes belong to which name.
macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident($attributes:ty) = $name:literal,)*) => {
        /// What a node computes. Values are matrices `[rows, columns]`; the rows are those of the batch (`B`)
        /// or, of un-pooled lists, all their values (`V`), unless a node depends on parameters and constants
    /// alone.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "op")]
        pub(super) enum NodeOp {
            $($(#[$doc])* #[serde(rename = $name)] $variant($attributes),)*
        }

        const NAMES: &[&str] = &[$($name),*];

        impl NodeOp {
            /// The operation's name in a job.
            pub(super) fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// The operation of this name with these attributes, which stand at `path`.
            fn read(name: &str, attributes: &Value, path: &str) -> Result<Self, ConfigError> {
                match name {
                    $($name => zillion_config::from_value(attributes, path).map(Self::$variant),)*
                    other => Err(ConfigError::unknown_value(&format!("{path}.op"), other, NAMES)),
                }
            }
        }
    };
}

operations! {
    /// () → `[B, Σ dim]`: the pooled vectors of features side by side.
    Embedding(Features) = "embedding",
    /// () → `[B, 1]`: Σ of the ids' linear weights, and of numbers times a weight each.
    Wide(Wide) = "wide",
    /// () → `[B, n]`: numeric features side by side.
    Numeric(Features) = "numeric",
    /// () → `[V, dim]`: the vector of each value of a feature's list, list after list.
    Values(OneFeature) = "values",
    /// () → `shape`: a parameter, learned.
    Param(Param) = "param",
    /// () → `shape`: one number everywhere.
    Constant(Constant) = "constant",

    /// (x) → `max(x, 0)`.
    Relu(Plain) = "relu",
    /// (x) → x, or `slope · x` below zero.
    LeakyRelu(Slope) = "leaky_relu",
    /// (x) → x, or `a · x` below zero with a learned `a` a column.
    Prelu(Plain) = "prelu",
    /// (x) → `1 / (1 + e^-x)`.
    Sigmoid(Plain) = "sigmoid",
    /// (x) → hyperbolic tangent.
    Tanh(Plain) = "tanh",
    /// (x) → Gaussian error linear unit, in its tanh form.
    Gelu(Plain) = "gelu",
    /// (x) → `x · sigmoid(x)`.
    Silu(Plain) = "silu",
    /// (x) → `ln(1 + e^x)`.
    Softplus(Plain) = "softplus",
    /// (x) → `x²`.
    Square(Plain) = "square",
    /// (x) → `√x`.
    Sqrt(Plain) = "sqrt",
    /// (x) → `e^x`.
    Exp(Plain) = "exp",
    /// (x) → `ln x`.
    Ln(Plain) = "ln",
    /// (x) → `by · x`.
    Scale(By) = "scale",
    /// (x) → `x + by`.
    Offset(By) = "offset",

    /// (a, b, ..) → their sum from left to right; an operand of one row or one column is broadcast.
    Add(Plain) = "add",
    /// (a, b) → `a − b`, with broadcast.
    Sub(Plain) = "sub",
    /// (a, b, ..) → their product from left to right, with broadcast.
    Mul(Plain) = "mul",
    /// (a, b) → `a / b`, with broadcast.
    Div(Plain) = "div",
    /// (a, b) → `a / b`, and 0 where `b` is 0.
    SafeDiv(Plain) = "safe_div",
    /// (a, b, c) → `a · b + c` in the shape of `a`.
    MulAdd(Plain) = "mul_add",

    /// (x) → `x·W + b`, `[r, width]`.
    Linear(Linear) = "linear",
    /// (x, w) → `x·w`; `w` is of parameters and constants.
    Matmul(Plain) = "matmul",
    /// (x) → `x + b`, with a learned `b` a column.
    Bias(Plain) = "bias",
    /// (a, b, ..) → side by side.
    Concat(Plain) = "concat",
    /// (x) → columns `start .. start + len`.
    Slice(Slice) = "slice",
    /// (x) → the sum of each row, `[r, 1]`.
    SumColumns(Plain) = "sum_columns",
    /// (x) → the mean of each row, `[r, 1]`.
    MeanColumns(Plain) = "mean_columns",
    /// (x) → the sum of each column, `[1, n]`; of parameters and constants only.
    SumRows(Plain) = "sum_rows",
    /// (x) → the mean of each column, `[1, n]`; of parameters and constants only.
    MeanRows(Plain) = "mean_rows",
    /// (x) → the softmax of each row.
    Softmax(Plain) = "softmax",
    /// (a, b of one shape) → the dot product of each pair of rows, `[r, 1]`.
    RowDot(Plain) = "row_dot",
    /// (x) → Σ of the dot products of all pairs of fields, `[r, 1]` (Rendle 2010).
    Fm(Fields) = "fm",
    /// (x) → the dot product of each pair of fields (Naumov et al. 2019).
    DotInteraction(Fields) = "dot_interaction",

    /// (x, v) → the row of x again for each value of the lists that v's rows are of, `[V, n]`.
    Repeat(Plain) = "repeat",
    /// (v) → the sum over each list, `[B, n]`; 0 of an empty one.
    SegmentSum(Plain) = "segment_sum",
    /// (v) → the mean over each list, `[B, n]`; 0 of an empty one.
    SegmentMean(Plain) = "segment_mean",
    /// (v) → the softmax over each list, each column by itself.
    SegmentSoftmax(Plain) = "segment_softmax",

    /// (x) → normalised over the batch (Ioffe & Szegedy 2015).
    BatchNorm(Plain) = "batch_norm",
    /// (x) → normalised over the columns (Ba, Kiros & Hinton 2016).
    LayerNorm(Plain) = "layer_norm",
    /// (x) → a share of the elements dropped in training.
    Dropout(Dropout) = "dropout",

    /// (x) → hidden layers of linear, batch norm, activation, dropout.
    Mlp(MlpNode) = "mlp",
    /// (x0) or (x0, x) → layers of `x0 · (x·w) + b + x` (Wang et al. 2017).
    Cross(Cross) = "cross",
    /// (x0) or (x0, x) → layers of `x0 ∘ (x·W + b) + x` (Wang et al. 2021).
    CrossV2(CrossV2) = "cross_v2",
}

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

/// Either spelling: `inputs = "x"` or `inputs = ["x"]`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    One(String),
    Many(Vec<String>),
}

impl NodeSpec {
    /// Reads `[model.nodes.NAME]`.
    pub(super) fn read(section: &Value, path: &str) -> Result<Self, ConfigError> {
        let Value::Table(section) = section else {
            let message = format!("expected a table with an `op`, found {}", section.type_str());
            return Err(ConfigError::at(path, message));
        };
        let mut attributes = section.clone();
        let inputs = match attributes.remove("inputs") {
            None => Vec::new(),
            Some(inputs) => match zillion_config::from_value(&inputs, "") {
                Ok(Inputs::One(name)) => vec![name],
                Ok(Inputs::Many(names)) => names,
                Err(_) => {
                    let path = format!("{path}.inputs");
                    return Err(ConfigError::at(&path, "expected a list of names of nodes"));
                }
            },
        };
        let op = match attributes.remove("op") {
            Some(Value::String(op)) => op,
            Some(other) => {
                let message =
                    format!("expected the name of an operation, found {}", other.type_str());
                return Err(ConfigError::at(&format!("{path}.op"), message));
            }
            None => return Err(ConfigError::missing_key(path, "op")),
        };
        let op = NodeOp::read(&op, &Value::Table(attributes), path)
            .map_err(|error| meant_inputs(error, section, path))?;
        let node = Self { op, inputs };
        node.check_inputs(path)?;
        node.check_features().map_err(|why| ConfigError::at(&format!("{path}.features"), why))?;
        Ok(node)
    }

    fn check_features(&self) -> Result<(), String> {
        let (NodeOp::Embedding(Features { features: Some(names) })
        | NodeOp::Numeric(Features { features: Some(names) })
        | NodeOp::Wide(Wide { features: Some(names), .. })) = &self.op
        else {
            return Ok(());
        };
        if names.is_empty() {
            return Err("names no feature; leave it out for all".to_owned());
        }
        let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
        twice.map_or(Ok(()), |at| Err(format!("`{}` is there twice", names[at])))
    }

    fn check_inputs(&self, path: &str) -> Result<(), ConfigError> {
        let takes = self.op.takes();
        let found = self.inputs.len();
        if takes.contains(&found) {
            return Ok(());
        }
        let (low, high) = (*takes.start(), *takes.end());
        let wanted = match (low, high) {
            (0, 0) => "no inputs".to_owned(),
            (1, 1) => "1 input".to_owned(),
            (low, usize::MAX) => format!("{low} or more inputs"),
            (low, high) if low == high => format!("{low} inputs"),
            (low, high) => format!("{low} to {high} inputs"),
        };
        let message = match found {
            0 => format!("{} takes {wanted}, found none", self.op.name()),
            _ => {
                let names = self.inputs.join(", ");
                format!("{} takes {wanted}, found {found}: {names}", self.op.name())
            }
        };
        Err(ConfigError::at(&format!("{path}.inputs"), message))
    }
}

/// The list of an operation's attributes does not hold what every node has.
fn meant_inputs(error: ConfigError, section: &toml::Table, path: &str) -> ConfigError {
    let common = ["op", "inputs"];
    let unknown = section.keys().find(|key| error.path() == format!("{path}.{key}"));
    match unknown.filter(|key| {
        !common.contains(&key.as_str())
            && zillion_config::nearest(key, common.into_iter()).is_some()
    }) {
        Some(key) => ConfigError::unknown_key(path, key, &common),
        None => error,
    }
}

/// A node's name is also that of parameters and, with a dot, of the parts of a composed layer.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(legal) {
        return Err(format!("a node's name is of letters, digits, `_` and `-`, found \"{name}\""));
    }
    if RESERVED.contains(&name) {
        return Err(format!("`{name}` is what the trainer calls a node of its own; rename it"));
    }
    Ok(())
}

impl NodeOp {
    /// How many inputs it takes.
    fn takes(&self) -> RangeInclusive<usize> {
        match self {
            Self::Embedding(_)
            | Self::Wide(_)
            | Self::Numeric(_)
            | Self::Values(_)
            | Self::Param(_)
            | Self::Constant(_) => 0..=0,
            Self::Add(_) | Self::Mul(_) | Self::Concat(_) => 2..=usize::MAX,
            Self::Sub(_)
            | Self::Div(_)
            | Self::SafeDiv(_)
            | Self::Matmul(_)
            | Self::Repeat(_)
            | Self::RowDot(_) => 2..=2,
            Self::MulAdd(_) => 3..=3,
            Self::Cross(_) | Self::CrossV2(_) => 1..=2,
            _ => 1..=1,
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
