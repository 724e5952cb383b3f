//! The arguments of `zillion stream`.

use std::path::PathBuf;

use clap::Subcommand;

use super::JobArgs;
use crate::moment::Moment;

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Show the place of a run in its streams: lag, watermark, pending rows, rejected messages
    #[command(after_help = "\
Example: zillion stream status runs/clicks")]
    Status(StreamRunArgs),
    /// Show the newest decisions of a run: what was consumed, where batches end, what was published
    #[command(after_help = "\
Example: zillion stream tail runs/clicks --last 50")]
    Tail(StreamListArgs),
    /// Show the newest rejected messages with their reasons, or write their bytes into a folder
    #[command(after_help = "\
Example: zillion stream dead runs/clicks --last 5
         zillion stream dead runs/clicks --export rejected
The folder gets a file of lines for each stream, and a file for each message that is no line of text.
The messages can be repaired and sent again.")]
    Dead(StreamDeadArgs),
    /// Repeat the log of a run in another folder, which gives the same versions
    #[command(after_help = "\
Example: zillion stream replay job.toml --of runs/clicks --set run.output=runs/again
             --set publish.registry=runs/again-registry
The versions go into a registry or a model of their own: a model that has versions is refused.
The log must have all decisions since its beginning. Runs remove those that no kept checkpoint needs.")]
    Replay(StreamReplayArgs),
    /// Set the streams of a stopped run to a time, to their start or to their end
    #[command(after_help = "\
Example: zillion stream reset job.toml --to-end --dry-run
         zillion stream reset job.toml --to 2026-03-01T12:00:00Z --yes
The consequences are printed first. Rows that are read again are learned from twice; the model itself does not change.")]
    Reset(StreamResetArgs),
    /// Let a run consume nothing until it is resumed
    #[command(after_help = "\
Example: zillion stream pause runs/clicks")]
    Pause(StreamRunArgs),
    /// Let a paused run go on
    #[command(after_help = "\
Example: zillion stream resume runs/clicks")]
    Resume(StreamRunArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamRunArgs {
    /// Folder of the run (run.output)
    pub(crate) run: PathBuf,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamListArgs {
    /// Folder of the run (run.output)
    pub(crate) run: PathBuf,
    /// Number of decisions to print
    #[arg(long, value_name = "N", default_value = "20")]
    pub(crate) last: usize,
    /// Print each decision as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamDeadArgs {
    /// Folder of the run (run.output)
    pub(crate) run: PathBuf,
    /// Number of messages to print
    #[arg(long, value_name = "N", default_value = "20")]
    pub(crate) last: usize,
    /// New folder to which the bytes of all rejected messages are written
    #[arg(long, value_name = "FOLDER", conflicts_with = "last")]
    pub(crate) export: Option<PathBuf>,
    /// Print each message as one line of JSON on stdout
    #[arg(long, conflicts_with = "export")]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[group(id = "place", required = true, multiple = false, args = ["to", "to_start", "to_end"])]
pub(crate) struct StreamResetArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Time of the first event that is read next, as in 2026-03-01T12:00:00Z or in milliseconds
    /// since 1970; for topics of Kafka, the time of the message
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<Moment>,
    /// Read all messages that still exist
    #[arg(long)]
    pub(crate) to_start: bool,
    /// Leave all messages out that exist now
    #[arg(long)]
    pub(crate) to_end: bool,
    /// Reset the streams; without this option, the consequences are only printed
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the consequences without changing anything
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StreamReplayArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Folder of the run whose log is repeated
    #[arg(long, value_name = "FOLDER")]
    pub(crate) of: PathBuf,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
