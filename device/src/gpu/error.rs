//! The errors of a GPU.

/// An error of a GPU, with the remedy for the operator.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// A library is missing or has a version that cannot be used.
    #[error("the GPU cannot be used: {library} {problem}")]
    Library {
        /// The name of the library's file.
        library: &'static str,
        /// The problem and the remedy.
        problem: String,
    },
    /// There is no such device, or it cannot be used.
    #[error("the GPU `{device}` cannot be used: {problem}")]
    Device {
        /// The name of the device, such as `cuda:0`.
        device: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// The memory of the device is exhausted.
    #[error(
        "the memory of the GPU is exhausted: {bytes} bytes were asked for, and {free} are free; use \
         a smaller batch, smaller tables, or a GPU with more memory"
    )]
    OutOfMemory {
        /// The bytes of the refused request.
        bytes: usize,
        /// The bytes that were free.
        free: u64,
    },
    /// The budget of the device's memory is exhausted.
    #[error(
        "the budget of the GPU's memory is exhausted: {bytes} bytes were asked for, and {used} of \
         {budget} are in use; give the budget more, keep fewer versions and models loaded, or send \
         fewer rows at once"
    )]
    Budget {
        /// The bytes of the refused request.
        bytes: usize,
        /// The bytes that were in use.
        used: u64,
        /// The bytes of the budget.
        budget: u64,
    },
    /// The system refused pinned memory.
    #[error(
        "{bytes} bytes of pinned memory were refused; free memory of the machine, or use a smaller \
         batch: {problem}"
    )]
    PinnedMemory {
        /// The bytes of the refused request.
        bytes: usize,
        /// The text of the driver.
        problem: String,
    },
    /// A part does not lie within its range.
    #[error("{bytes} bytes from byte {offset} do not lie in a range of {whole} bytes")]
    Range {
        /// The first byte of the part.
        offset: usize,
        /// The number of bytes of the part.
        bytes: usize,
        /// The number of bytes of the range.
        whole: usize,
    },
    /// A kernel is unknown to the device.
    #[error("the kernel `{name}` is not in the unit `{unit}`: {problem}; build zillion anew")]
    UnknownKernel {
        /// The name of the kernel.
        name: &'static str,
        /// The name of its unit.
        unit: &'static str,
        /// The text of the driver.
        problem: String,
    },
    /// A launch cannot be made.
    #[error("the launch {launch} was refused: {problem}")]
    Launch {
        /// The kernel, the grid, the block and the shapes.
        launch: String,
        /// The reason of the refusal.
        problem: String,
    },
    /// A product cannot be made.
    #[error("the {product} was refused: {problem}")]
    Product {
        /// The sizes of the product.
        product: String,
        /// The reason of the refusal.
        problem: String,
    },
    /// A handle does not belong to the device, or is no longer valid.
    #[error("the {what} {number} does not exist on this device")]
    Handle {
        /// The kind of the handle.
        what: &'static str,
        /// The number of the handle.
        number: u64,
    },
    /// A call is not allowed while a stream records a graph, or a graph cannot be recorded.
    #[error("a graph could not be recorded: {0}")]
    Capture(String),
    /// The driver reported an error.
    #[error("the GPU failed to {action}: {problem}")]
    Driver {
        /// The action, as a verb phrase.
        action: &'static str,
        /// The name and the text of the error.
        problem: String,
    },
    /// The device has failed. It cannot be used until the process starts again.
    #[error(
        "the GPU failed to {action}: {problem}; the last launches were {launches}; start the \
         program again, and run `zillion gpu check`"
    )]
    Lost {
        /// The action that noticed the failure, as a verb phrase.
        action: &'static str,
        /// The name and the text of the error.
        problem: String,
        /// The kernels that were launched last, the newest first.
        launches: String,
    },
    /// A unit of kernels could not be compiled.
    #[error("the kernels `{unit}` could not be compiled for {arch}: {problem}")]
    Compile {
        /// The name of the unit.
        unit: &'static str,
        /// The architecture of the GPU.
        arch: String,
        /// The log of the compiler, or what is wrong.
        problem: String,
    },
    /// The folder of compiled kernels cannot be used.
    #[error("the folder of compiled kernels cannot be used: {0}")]
    Cache(String),
    /// The emulated device found a mistake in the program that drives it.
    #[error("the emulated GPU found a mistake: {0}")]
    Mistake(String),
    /// A check of a device failed.
    #[error("the check `{check}` failed: {problem}")]
    Check {
        /// The name of the check.
        check: &'static str,
        /// The difference that was found.
        problem: String,
    },
}
