//! Arguments of `zillion model export`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use zillion_registry::VersionId;

use super::ModelRef;

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The version; absent: where the pointer stands
    #[arg(long, conflicts_with = "pointer")]
    pub(crate) version: Option<VersionId>,
    /// The pointer that says which version
    #[arg(long, default_value = "stable")]
    pub(crate) pointer: String,
    /// Folder to write into; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// Only this part of the version (repeatable); absent: all of it
    #[arg(long, value_enum)]
    pub(crate) only: Vec<ExportPart>,
    /// Write into a folder that has something in it; files of the same names are replaced
    #[arg(long)]
    pub(crate) force: bool,
    /// Folder that files are fetched to and merged in; absent: .cache below a local registry
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print what was written as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportPart {
    /// Rows of the tables as Parquet, and the side tables
    Rows,
    /// Dense parameters as safetensors
    Dense,
    /// The dense graph as ONNX
    Graph,
}
