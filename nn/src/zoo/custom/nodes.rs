//! The operations that a job's graph may name, and their attributes.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use toml::Value;
use zillion_config::ConfigError;

use crate::graph::op::{Binary, Unary};

use super::attributes::{
    By, Constant, Cross, CrossV2, Dropout, Features, Fields, Linear, MlpNode, OneFeature, Param,
    Plain, Slice, Slope, Wide,
};

/// The names that a node must not have, because the loss, the probabilities and the rows of tables
/// have them.
const RESERVED: [&str; 3] = ["loss", "probabilities", "rows"];

/// One node of a job's graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeSpec {
    /// The operation, with its attributes.
    #[serde(flatten)]
    pub(super) op: NodeOp,
    /// The names of the nodes whose values this node reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) inputs: Vec<String>,
}

/// Defines the enum of the operations, with the attributes, the name in a job and the number of
/// inputs of each operation.
macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident($attributes:ty) = $name:literal, $inputs:expr;)*) => {
        /// The operation of a node. Values are matrices `[rows, columns]`. The rows are those of
        /// the batch (`B`) or, for lists that are not pooled, the values of the lists (`V`). A node
        /// that depends only on parameters and constants has a constant number of rows.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "op")]
        pub(super) enum NodeOp {
            $($(#[$doc])* #[serde(rename = $name)] $variant($attributes),)*
        }

        const NAMES: &[&str] = &[$($name),*];

        impl NodeOp {
            /// Returns the operation's name in a job.
            pub(super) fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Returns the allowed numbers of inputs of the operation.
            fn takes(&self) -> RangeInclusive<usize> {
                match self {
                    $(Self::$variant(_) => $inputs,)*
                }
            }

            /// Reads the operation with this name and these attributes. `path` is the path of the
            /// attributes in the job.
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
    /// The concatenation of the pooled vectors of features: () → `[B, Σ dim]`.
    Embedding(Features) = "embedding", 0..=0;
    /// The sum of the linear weight of each id, and of each number multiplied by its weight: () →
    /// `[B, 1]`.
    Wide(Wide) = "wide", 0..=0;
    /// The values of numeric features, one column for each: () → `[B, n]`.
    Numeric(Features) = "numeric", 0..=0;
    /// The vector of each value of a feature's lists, list after list: () → `[V, dim]`.
    Values(OneFeature) = "values", 0..=0;
    /// The value of a learned parameter: () → `shape`.
    Param(Param) = "param", 0..=0;
    /// A constant with the same number in every element: () → `shape`.
    Constant(Constant) = "constant", 0..=0;

    /// The function `max(x, 0)`.
    Relu(Plain) = "relu", 1..=1;
    /// The function `x`, and `slope · x` for negative x.
    LeakyRelu(Slope) = "leaky_relu", 1..=1;
    /// The function `x`, and `a · x` for negative x, with one learned `a` for each column.
    Prelu(Plain) = "prelu", 1..=1;
    /// The logistic function `1 / (1 + e^-x)`.
    Sigmoid(Plain) = "sigmoid", 1..=1;
    /// The hyperbolic tangent of x.
    Tanh(Plain) = "tanh", 1..=1;
    /// The Gaussian error linear unit of x, in its tanh form.
    Gelu(Plain) = "gelu", 1..=1;
    /// The function `x · sigmoid(x)`.
    Silu(Plain) = "silu", 1..=1;
    /// The function `ln(1 + e^x)`.
    Softplus(Plain) = "softplus", 1..=1;
    /// The square `x²` of x.
    Square(Plain) = "square", 1..=1;
    /// The square root `√x` of x.
    Sqrt(Plain) = "sqrt", 1..=1;
    /// The exponential `e^x` of x.
    Exp(Plain) = "exp", 1..=1;
    /// The natural logarithm `ln x` of x.
    Ln(Plain) = "ln", 1..=1;
    /// The product `by · x`.
    Scale(By) = "scale", 1..=1;
    /// The sum `x + by`.
    Offset(By) = "offset", 1..=1;

    /// The sum of (a, b, ..) from left to right. An operand with one row or one column is
    /// broadcast.
    Add(Plain) = "add", 2..=usize::MAX;
    /// The difference `a − b` of (a, b), with broadcast.
    Sub(Plain) = "sub", 2..=2;
    /// The product of (a, b, ..) from left to right, with broadcast.
    Mul(Plain) = "mul", 2..=usize::MAX;
    /// The quotient `a / b` of (a, b), with broadcast.
    Div(Plain) = "div", 2..=2;
    /// The quotient `a / b` of (a, b), and 0 where `b` is 0.
    SafeDiv(Plain) = "safe_div", 2..=2;
    /// The sum `a · b + c` of (a, b, c), in the shape of `a`.
    MulAdd(Plain) = "mul_add", 3..=3;

    /// The linear layer `x·W + b`: (x) → `[r, width]`.
    Linear(Linear) = "linear", 1..=1;
    /// The product `x·w` of (x, w), where `w` is computed from parameters and constants only.
    Matmul(Plain) = "matmul", 2..=2;
    /// The sum `x + b`, with one learned `b` for each column.
    Bias(Plain) = "bias", 1..=1;
    /// The concatenation of the columns of (a, b, ..).
    Concat(Plain) = "concat", 2..=usize::MAX;
    /// The columns `start .. start + len` of x.
    Slice(Slice) = "slice", 1..=1;
    /// The sum of each row: (x) → `[r, 1]`.
    SumColumns(Plain) = "sum_columns", 1..=1;
    /// The mean of each row: (x) → `[r, 1]`.
    MeanColumns(Plain) = "mean_columns", 1..=1;
    /// The sum of each column, for values computed from parameters and constants only: (x) →
    /// `[1, n]`.
    SumRows(Plain) = "sum_rows", 1..=1;
    /// The mean of each column, for values computed from parameters and constants only: (x) →
    /// `[1, n]`.
    MeanRows(Plain) = "mean_rows", 1..=1;
    /// The softmax of each row of x.
    Softmax(Plain) = "softmax", 1..=1;
    /// The dot product of each pair of rows: (a, b of one shape) → `[r, 1]`.
    RowDot(Plain) = "row_dot", 2..=2;
    /// The sum of the dot products of all pairs of fields (Rendle 2010): (x) → `[r, 1]`.
    Fm(Fields) = "fm", 1..=1;
    /// The dot product of each pair of fields of x (Naumov et al. 2019).
    DotInteraction(Fields) = "dot_interaction", 1..=1;

    /// The repetition of each row of x, once for each value of the row's list in v: (x, v) → `[V,
    /// n]`.
    Repeat(Plain) = "repeat", 2..=2;
    /// The sum over each list, and 0 for an empty list: (v) → `[B, n]`.
    SegmentSum(Plain) = "segment_sum", 1..=1;
    /// The mean over each list, and 0 for an empty list: (v) → `[B, n]`.
    SegmentMean(Plain) = "segment_mean", 1..=1;
    /// The softmax over each list, separately for each column.
    SegmentSoftmax(Plain) = "segment_softmax", 1..=1;

    /// The normalisation of x over the batch (Ioffe & Szegedy 2015).
    BatchNorm(Plain) = "batch_norm", 1..=1;
    /// The normalisation of x over the columns (Ba, Kiros & Hinton 2016).
    LayerNorm(Plain) = "layer_norm", 1..=1;
    /// Dropout, which sets a share of the elements of x to zero in training.
    Dropout(Dropout) = "dropout", 1..=1;

    /// The hidden layers of an MLP over x. Each consists of a linear layer, batch norm, an
    /// activation and dropout.
    Mlp(MlpNode) = "mlp", 1..=1;
    /// The cross layers `x0 · (x·w) + b + x` over (x0) or (x0, x) (Wang et al. 2017).
    Cross(Cross) = "cross", 1..=2;
    /// The cross layers `x0 ∘ (x·W + b) + x` over (x0) or (x0, x) (Wang et al. 2021).
    CrossV2(CrossV2) = "cross_v2", 1..=2;
}

/// The inputs of a node. A job can write them as `inputs = "x"` or `inputs = ["x"]`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    One(String),
    Many(Vec<String>),
}

impl NodeSpec {
    /// Reads the section `[model.nodes.NAME]`.
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
            .map_err(|error| suggest_common_key(error, section, path))?;
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
            return Err("names no feature; name features, or remove the key to read all features"
                .to_owned());
        }
        let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
        twice.map_or(Ok(()), |at| Err(format!("`{}` is listed twice; remove one", names[at])))
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

/// Adds the keys that every node has to the suggestion in an error about an unknown key. The list
/// of an operation's attributes does not contain these keys.
fn suggest_common_key(error: ConfigError, section: &toml::Table, path: &str) -> ConfigError {
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

/// Checks the name of a node. The names of the node's parameters begin with it. For a layer with
/// several nodes, the name and a dot are also the beginning of their names.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(legal) {
        return Err(format!(
            "the name of a node must consist of letters, digits, `_` and `-`, found `{name}`"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("the node name `{name}` is reserved for the trainer; rename the node"));
    }
    Ok(())
}

impl NodeOp {
    /// Returns the function of one element that the operation computes, or `None` if the operation
    /// is not such a function.
    pub(super) fn unary(&self) -> Option<Unary> {
        Some(match self {
            Self::Relu(_) => Unary::Relu,
            Self::LeakyRelu(spec) => Unary::LeakyRelu { slope: spec.slope },
            Self::Sigmoid(_) => Unary::Sigmoid,
            Self::Tanh(_) => Unary::Tanh,
            Self::Gelu(_) => Unary::Gelu,
            Self::Silu(_) => Unary::Silu,
            Self::Softplus(_) => Unary::Softplus,
            Self::Square(_) => Unary::Square,
            Self::Sqrt(_) => Unary::Sqrt,
            Self::Exp(_) => Unary::Exp,
            Self::Ln(_) => Unary::Ln,
            Self::Scale(spec) => Unary::Scale { by: spec.by },
            Self::Offset(spec) => Unary::Offset { by: spec.by },
            _ => return None,
        })
    }

    /// Returns the function of two elements that the operation computes, or `None` if the operation
    /// is not such a function.
    pub(super) fn binary(&self) -> Option<Binary> {
        Some(match self {
            Self::Add(_) => Binary::Add,
            Self::Sub(_) => Binary::Sub,
            Self::Mul(_) => Binary::Mul,
            Self::Div(_) => Binary::Div,
            Self::SafeDiv(_) => Binary::SafeDiv,
            _ => return None,
        })
    }
}
