//! The arguments of `zillion publish`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::ModelRef;

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Publish every row, even where a delta would do
    #[arg(long)]
    pub(crate) base: bool,
    /// Pointer that is moved to the version afterwards
    #[arg(long, default_value = "stable", value_name = "POINTER")]
    pub(crate) promote: String,
    /// Leave all pointers where they are
    #[arg(long, conflicts_with = "promote")]
    pub(crate) no_promote: bool,
    /// Files whose first rows become parity rows; absent: the job's validation, test or training
    /// files
    #[arg(long, value_name = "FILE")]
    pub(crate) parity: Vec<String>,
    /// Number of parity rows
    #[arg(long, default_value = "64")]
    pub(crate) parity_rows: NonZeroUsize,
    /// Override a key of the checkpoint's job, as in --set data.root=... (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the version as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
