//! The arguments of `zillion gpu`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Run the checks of a GPU: copies, events, graphs and products, and every kernel against the
    /// processor, bit for bit
    #[command(after_help = "\
Example: zillion gpu check --small
         zillion gpu check --device cuda:0 --json
Exit codes: 0 every check passed, 1 a check failed or there is no GPU that can be used.")]
    Check(GpuCheckArgs),
    /// Compile the kernels for an architecture without a GPU, and report what each needs
    #[command(hide = true)]
    Compile(GpuCompileArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GpuCheckArgs {
    /// GPU to check: cuda:0 is the first one
    #[arg(long, default_value = "cuda:0")]
    pub(crate) device: String,
    /// Use small shapes, and leave out the check of all inputs of the elementary functions
    #[arg(long)]
    pub(crate) small: bool,
    /// Run only the checks whose names contain this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Leave out the checks whose names contain this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub(crate) skip: Vec<String>,
    /// Folder of compiled kernels; absent: $ZILLION_GPU_KERNELS, or the user's cache
    #[arg(long, value_name = "FOLDER")]
    pub(crate) kernels: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GpuCompileArgs {
    /// Architecture of the GPU, such as sm_90
    #[arg(long)]
    pub(crate) arch: String,
    /// Folder for the compiled kernels
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
