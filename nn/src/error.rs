//! The errors of models, their parameters and their inputs.

/// An error of this crate. Its message names the node, the parameter or the input with the problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer whose input shapes do not fit each other. The remedy is to change its inputs or its
    /// sizes.
    #[error("layer `{node}`: {reason}")]
    Shape {
        /// The name of the node.
        node: String,
        /// The reason, with the values that do not fit each other.
        reason: String,
    },
    /// A name that two layers of one model share. The remedy is to rename one of them.
    #[error("layer `{node}`: another layer has this name; rename one of them")]
    DuplicateName {
        /// The name that two layers share.
        node: String,
    },
    /// An operation without a gradient rule, between the loss and a trainable value.
    #[error(
        "layer `{node}`: the operation {op} has no gradient, but the loss depends on trainable \
         values through it; replace the layer"
    )]
    NotDifferentiable {
        /// The name of the operation.
        op: &'static str,
        /// The name of the node.
        node: String,
    },
    /// An input of a run that does not fit the graph.
    #[error("{input}: {reason}")]
    Input {
        /// The input that does not fit.
        input: String,
        /// The reason, with the values that do not fit each other.
        reason: String,
    },
    /// A row that a metric cannot use. The remedy is to check the row in the data, or the model
    /// that scored it.
    #[error("row {row}: {reason}")]
    Row {
        /// The number of the row, counted from 0 over all evaluated rows.
        row: u64,
        /// The reason why the metric cannot use the row.
        reason: String,
    },
    /// A parameter that does not fit the model, because it was made for another model.
    #[error("parameter `{name}`: {reason}")]
    Param {
        /// The name of the parameter.
        name: String,
        /// The reason, with the values that do not fit each other.
        reason: String,
    },
    /// A node that ONNX cannot represent, or a name that two values of the ONNX file would share.
    /// The remedy is to change the layer, or to use the safetensors file.
    #[error("`{node}` cannot be written as ONNX: {reason}")]
    Onnx {
        /// The name of the node, the feature or the parameter.
        node: String,
        /// The reason why the node cannot be written.
        reason: String,
    },
    /// Bytes that are not a readable safetensors file.
    #[error("the file of dense parameters cannot be read: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// An invalid key in the model section of a job.
    #[error(transparent)]
    Config(#[from] zillion_config::ConfigError),
    /// A run that was stopped before its end, because its result would have come too late.
    #[error(
        "the computation of the model was stopped, because its time limit was reached; score \
         fewer rows at a time, or raise the time limit"
    )]
    Late,
    /// A node that a GPU cannot compute.
    #[error("layer `{node}`: a GPU cannot compute the operation {op}: {reason}; train on the CPU")]
    NotOnGpu {
        /// The name of the node.
        node: String,
        /// The name of the operation.
        op: &'static str,
        /// The reason why it cannot be computed.
        reason: String,
    },
    /// An error of the GPU.
    #[error(transparent)]
    Gpu(#[from] zillion_device::gpu::GpuError),
    /// A setting whose value is not allowed.
    #[error("setting `{name}`: {reason}")]
    Setting {
        /// The name of the setting, as a job writes it.
        name: &'static str,
        /// The reason, with the given value and the allowed values.
        reason: String,
    },
}

/// The result of a function of this crate.
pub type Result<T> = std::result::Result<T, Error>;
