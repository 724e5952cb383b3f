//! The errors of models, their parameters and their inputs.

/// The errors of this crate. Each names the node, the parameter or the input to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer whose shapes do not fit: change its inputs or sizes.
    #[error("layer `{node}`: {reason}")]
    Shape {
        /// The name of the node.
        node: String,
        /// The reason: the values that do not fit each other.
        reason: String,
    },
    /// A name that two layers of one model share: rename one.
    #[error("layer `{node}`: another layer has this name; rename one of them")]
    DuplicateName {
        /// The name that two layers share.
        node: String,
    },
    /// The loss depends on trainable values through an operation without a gradient rule.
    #[error("layer `{node}`: the operation {op} has no gradient")]
    NotDifferentiable {
        /// The name of the operation.
        op: &'static str,
        /// The name of the node.
        node: String,
    },
    /// The batch given to a run does not fit the graph.
    #[error("{input}: {reason}")]
    Input {
        /// The input that does not fit.
        input: String,
        /// The reason: the values that do not fit each other.
        reason: String,
    },
    /// A row that cannot be judged: look at it in the data, or at the model that scored it.
    #[error("row {row}: {reason}")]
    Row {
        /// The row, counted from the first one evaluated.
        row: u64,
        /// The reason why the row cannot be judged.
        reason: String,
    },
    /// A stored or given parameter does not fit the model: it was made for another one.
    #[error("parameter `{name}`: {reason}")]
    Param {
        /// The name of the parameter.
        name: String,
        /// The reason: the values that do not fit each other.
        reason: String,
    },
    /// A node that has no form in ONNX, or a name that ONNX needs twice: change the layer, or use
    /// the safetensors file.
    #[error("`{node}` cannot be written as ONNX: {reason}")]
    Onnx {
        /// The node, feature or parameter.
        node: String,
        /// The reason why the node has no form in ONNX.
        reason: String,
    },
    /// Bytes that are not a readable safetensors file.
    #[error("the file of dense parameters cannot be read: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// A key of the job, in a model that the job writes node by node.
    #[error(transparent)]
    Config(#[from] zillion_config::ConfigError),
    /// A setting outside its range.
    #[error("setting `{name}`: {reason}")]
    Setting {
        /// The name of the setting, as a job writes it.
        name: &'static str,
        /// The reason: the found value and what is allowed.
        reason: String,
    },
}

/// The result of a function of this crate.
pub type Result<T> = std::result::Result<T, Error>;
