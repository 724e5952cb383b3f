//! The arguments of the command `tune`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::JobArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Number of trials, of which the first one is the job as written; overrides tune.trials
    #[arg(long, value_name = "N")]
    pub(crate) trials: Option<NonZeroUsize>,
    /// Folder of the trials; absent: tune-NAME beside the folder of the run, for a run in the
    /// folder NAME. A tune that is in the folder goes on
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
