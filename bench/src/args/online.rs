//! The arguments of the benchmarks of online training.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::Subcommand;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use zillion_rows::ByteSize;

use super::load::positive;

/// The arguments of `zillion bench online`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOnlineArgs {
    #[command(subcommand)]
    pub(crate) figure: OnlineFigure,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OnlineFigure {
    /// Measure the time from each event to the first answer of a server whose version has learned
    /// from it
    #[command(after_help = "\
Example: zillion bench online freshness --rate 10000 --seconds 600 --json
Exit codes: 0 if every event reached an answer and no request failed (a refusal by an overloaded server is no failure), 1 if not.")]
    Freshness(OnlineFreshnessArgs),
    /// Measure the rows per second that are consumed, decoded and cut into batches, without
    /// training
    #[command(after_help = "\
Example: zillion bench online ingest --rows 1000000 --json")]
    Ingest(OnlineIngestArgs),
    /// Measure the rows per second of `zillion online` while it learns from events that were
    /// written before it started
    #[command(after_help = "\
Example: zillion bench online catchup --rate 10000 --seconds 60 --json")]
    Catchup(OnlineCatchupArgs),
    /// Compare how much AUC fresher versions buy on MovieLens-1M: no update, and an update every
    /// hour, ten minutes and minute of event time
    #[command(after_help = "\
Example: zillion bench online movielens --data data/ml1m-published --seeds 3 --svg freshness.svg")]
    Movielens(OnlineMovielensArgs),
    /// Kill `zillion online` at random moments, repeat its log in another folder, and compare all
    /// events and versions
    #[command(after_help = "\
Example: zillion bench online kills --kills 20 --bytes 2GiB --seconds 600 --json
Exit codes: 0 if no event is lost or doubled and all versions are equal, 1 if not.")]
    Kills(OnlineKillsArgs),
    /// Measure the memory and the rate of a joiner to which several times the rows of its bound of
    /// memory come
    #[command(after_help = "\
Example: zillion bench online joiner --memory 256MiB --json
Exit codes: 0 if the memory of the process grew by at most 1.1 times the bound, 1 if not.")]
    Joiner(OnlineJoinerArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineMovielensArgs {
    /// Folder with the ratings sorted by time, as in examples/ml1m/README.md
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: PathBuf,
    /// Job that learns and is replayed
    #[arg(long, value_name = "FILE", default_value = "examples/ml1m/online.toml")]
    pub(crate) job: PathBuf,
    /// Override a key of the job while it goes on to learn (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number of seeds, each of which trains a model
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) seeds: u64,
    /// File for a plot
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineFreshnessArgs {
    /// Number of events per second
    #[arg(long, default_value = "10000")]
    pub(crate) rate: NonZeroU64,
    /// Seconds for which events are written
    #[arg(long, default_value = "600", value_parser = positive)]
    pub(crate) seconds: f64,
    /// Seconds at the beginning whose events do not count
    #[arg(long, default_value = "10", value_parser = positive)]
    pub(crate) warm_up: f64,
    /// Seconds between two checkpoints
    #[arg(long, default_value = "30", value_parser = positive)]
    pub(crate) checkpoint_seconds: f64,
    /// Seconds between two versions
    #[arg(long, default_value = "1", value_parser = positive)]
    pub(crate) publish_seconds: f64,
    #[command(flatten)]
    pub(crate) place: OnlinePlaceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineIngestArgs {
    /// Number of rows of each format
    #[arg(long, default_value = "1000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of measurements of each format; the median is reported
    #[arg(long, default_value = "3")]
    pub(crate) repeat: NonZeroUsize,
    /// Folder in which the events are written and then removed; absent: the folder for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineCatchupArgs {
    /// Number of events per second of the stream, as which the figure is expressed
    #[arg(long, default_value = "10000")]
    pub(crate) rate: NonZeroU64,
    /// Seconds of events that are written before the run starts
    #[arg(long, default_value = "60", value_parser = positive)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) place: OnlinePlaceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineKillsArgs {
    /// Number of times that the run is killed
    #[arg(long, default_value = "20")]
    pub(crate) kills: u32,
    /// Size of all events together, such as 2GiB
    #[arg(long, default_value = "2GiB", value_parser = parse_size)]
    pub(crate) bytes: ByteSize,
    /// Seconds for which events are written
    #[arg(long, default_value = "600", value_parser = positive)]
    pub(crate) seconds: f64,
    /// Seed of the moments of kills and of the pauses of the events
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Seconds between two checkpoints
    #[arg(long, default_value = "10", value_parser = positive)]
    pub(crate) checkpoint_seconds: f64,
    #[command(flatten)]
    pub(crate) place: OnlinePlaceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineJoinerArgs {
    /// Bound of memory of the joiner, such as 256MiB
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    pub(crate) memory: ByteSize,
    /// Number of rows that come, in multiples of the rows for which the bound has room
    #[arg(long, default_value = "4")]
    pub(crate) times: NonZeroU64,
    /// Size of a row in bytes
    #[arg(long, default_value = "100")]
    pub(crate) row_bytes: NonZeroUsize,
    /// Folder in which the rows are written and then removed; absent: the folder for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

/// The place and the size of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct OnlinePlaceArgs {
    /// Number of compute threads of the run; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Folder in which everything is written and then removed; absent: the folder for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

/// Parses a size in the form of job files.
fn parse_size(text: &str) -> Result<ByteSize, serde::de::value::Error> {
    ByteSize::deserialize(text.into_deserializer())
}
