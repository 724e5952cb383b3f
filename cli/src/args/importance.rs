//! The arguments of the command `importance`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use zillion_nn::optim::PlateauMetric;

#[derive(Debug, clap::Args)]
pub(crate) struct ImportanceArgs {
    /// Folder of a checkpoint, or folder of a run (the best epoch is used)
    #[arg(value_name = "RUN")]
    pub(crate) checkpoint: PathBuf,
    /// Files with labelled rows; absent: the test files of the job
    #[arg(value_name = "DATA")]
    pub(crate) data: Vec<String>,
    /// Number of permutations of each feature; the spread is that between them
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) repeat: NonZeroU32,
    /// Seed of the permutations
    #[arg(long, default_value = "0")]
    pub(crate) seed: u64,
    /// Largest number of rows to evaluate, which are held in memory: the first ones of the data
    #[arg(long, value_name = "N", default_value = "100000")]
    pub(crate) rows: NonZeroUsize,
    /// Metric that gets worse: auc, gauc, pr_auc, logloss, rmse, mae, ndcg@K or recall@K; absent:
    /// auc, or rmse for a label that is a number
    #[arg(long, value_parser = parse_metric)]
    pub(crate) metric: Option<PlateauMetric>,
    /// Override a key of `[data]` of the checkpoint's job, as in --set data.root=... (repeatable);
    /// the other keys stay as the run has them
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the report as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses the name of a metric.
fn parse_metric(text: &str) -> Result<PlateauMetric, String> {
    PlateauMetric::try_from(text.to_owned())
}
