//! The arguments of `zillion predict`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use zillion_console::parse_dense_type;
use zillion_registry::VersionId;
use zillion_scorer::DenseType;

#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    /// Folder of a checkpoint, or folder of a run (the best epoch is used); not with --model
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) first: PathBuf,
    /// File of rows, or - for stdin (checkpoints only)
    #[arg(value_name = "FILE")]
    pub(crate) second: Option<PathBuf>,
    /// Name of the model; a version of it scores the rows instead of a checkpoint
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// URL of the registry for --model: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or
    /// az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
    /// Number of the version; absent: the one that the pointer `stable` names
    #[arg(long, requires = "model")]
    pub(crate) version: Option<VersionId>,
    /// Number of rows in a batch that a version scores [default: 4096]
    #[arg(long, value_name = "ROWS", requires = "model")]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Folder for the fetched files of a version; absent: .cache below a local registry,
    /// zillion/HASH in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER", requires = "model")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: super::TrustArgs,
    #[command(flatten)]
    pub(crate) fetch: super::FetchArgs,
    /// Score only the first N rows, or with --fetch print only theirs
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "fetch_rows",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) rows: Option<u64>,
    /// Format of stdin (the format of a file follows from its name)
    #[arg(long, default_value = "csv", value_parser = ["csv", "tsv", "jsonl", "libsvm"])]
    pub(crate) format: String,
    /// Override a key of [data], as in --set data.delimiter=';' (repeatable); the other keys come
    /// from the job of the checkpoint, or with --model from the defaults
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number type of the dense layers: f32, bf16 or int8, as a server with --dense scores; absent:
    /// that of the version, or f32 for a checkpoint
    #[arg(long, value_name = "TYPE", value_parser = parse_dense_type)]
    pub(crate) dense: Option<DenseType>,
    /// Device that computes the scores: cpu, or a GPU such as cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Columns of FILE to copy beside the scores, as in --keep user_id,item_id: cells before the
    /// scores, or with --json an object `kept`
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    /// Print one JSON object for each row instead of a line of probabilities
    #[arg(long)]
    pub(crate) json: bool,
}
