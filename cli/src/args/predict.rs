//! The arguments of `zillion predict`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use zillion_registry::VersionId;

#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken); not with --model
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) first: PathBuf,
    /// File of rows, or - for stdin (checkpoints only)
    #[arg(value_name = "FILE")]
    pub(crate) second: Option<PathBuf>,
    /// Score through a version of this model instead of a checkpoint
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// The registry of --model: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
    /// Number of the version; absent: the one that the pointer `stable` names
    #[arg(long, requires = "model")]
    pub(crate) version: Option<VersionId>,
    /// Rows of a version that are scored together [default: 4096]
    #[arg(long, value_name = "ROWS", requires = "model")]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Folder that a version's files are fetched to; absent: .cache below a local registry,
    /// zillion/HASH in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER", requires = "model")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fetch: super::FetchArgs,
    /// Format of stdin (the format of a file follows from its name)
    #[arg(long, value_enum, default_value = "csv")]
    pub(crate) format: StdinFormat,
    /// Override a key of the checkpoint's job, as in --set data.delimiter=';' (repeatable); for a
    /// version, describe the format of the file
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one JSON object a row instead of a line of probabilities
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StdinFormat {
    Csv,
    Tsv,
    Jsonl,
    Libsvm,
}
