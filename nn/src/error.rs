//! What can be wrong with a model, its parameters or its inputs.

/// Errors of this crate. Each names the node, parameter or input to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not fit: change the layer's inputs or sizes.
    #[error("{reason}, at layer {node:?}")]
    Shape {
        /// The node's name.
        node: String,
        /// What does not fit.
        reason: String,
    },
    /// Two layers of one model cannot share a name: rename one.
    #[error("a layer of this name exists already: {node:?}")]
    DuplicateName {
        /// The name.
        node: String,
    },
    /// The loss depends on trainable values through an operation without a gradient rule.
    #[error("{op} has no gradient, at layer {node:?}")]
    NotDifferentiable {
        /// The operation.
        op: &'static str,
        /// The node's name.
        node: String,
    },
    /// The batch given to a run does not fit the graph.
    #[error("{reason}, in {input}")]
    Input {
        /// Which input.
        input: String,
        /// What does not fit.
        reason: String,
    },
    /// A row that cannot be judged: look at it in the data, or at the model that scored it.
    #[error("{reason}, row {row}")]
    Row {
        /// The row, counted from the first one evaluated.
        row: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A stored or given parameter does not fit the model: it was made for another one.
    #[error("{reason}, parameter {name:?}")]
    Param {
        /// The parameter's name.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// A node that ONNX cannot say, or a name that it needs twice: change the layer, or use the safetensors.
    #[error("cannot be written as ONNX: {reason}, at {node:?}")]
    Onnx {
        /// The node, feature or parameter.
        node: String,
        /// What stands in the way.
        reason: String,
    },
    /// Bytes that are not a readable safetensors file.
    #[error("dense parameters cannot be read: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// A key of the job: of a model that it writes down node by node.
    #[error(transparent)]
    Config(#[from] zillion_config::ConfigError),
    /// Settings outside their range.
    #[error("{reason}, setting {name}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is allowed.
        reason: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
