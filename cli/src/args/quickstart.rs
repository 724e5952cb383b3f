//! The arguments of `zillion quickstart`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct QuickstartArgs {
    /// Show online training in two minutes: events stream in, a server follows, and flipped labels
    /// are caught and rolled back
    #[arg(long, conflicts_with_all = ["rows", "keep_serving"])]
    pub(crate) online: bool,
    /// Shorten the scenes of --online, so that it ends after half a minute
    #[arg(long, requires = "online")]
    pub(crate) short: bool,
    /// Number of rows of the generated click log
    #[arg(long, default_value = "200000", value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) rows: u64,
    /// Folder for the data, the job file and the runs [with --online: runs/quickstart-online]
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    pub(crate) output: PathBuf,
    /// Leave the server running at the end
    #[arg(long)]
    pub(crate) keep_serving: bool,
    /// Seed of the data and of training
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
