//! Arguments of the benchmarks of versions and of servers that follow them.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchHotLoadArgs {
    /// Rows of the base
    #[arg(long, default_value = "1000000")]
    pub(crate) rows: NonZeroU64,
    /// Deltas, one a second
    #[arg(long, default_value = "200")]
    pub(crate) deltas: usize,
    /// Keys that training touches between two deltas
    #[arg(long, default_value = "10000")]
    pub(crate) delta_rows: NonZeroUsize,
    /// Rollbacks of one delta, spread over the deltas
    #[arg(long, default_value = "10")]
    pub(crate) rollbacks: usize,
    /// Number of requests a second
    #[arg(long, default_value = "300", value_name = "RPS", value_parser = super::load::positive)]
    pub(crate) rate: f64,
    /// Rows of a request
    #[arg(long, default_value = "100")]
    pub(crate) candidates: NonZeroUsize,
    /// Threads of the server that score; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Seconds without loads, before the deltas
    #[arg(long, default_value = "30", value_parser = super::load::positive)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of load after the deltas, in which there is one rollback over 100 of them and a
    /// delta after it
    #[arg(long, default_value = "20", value_parser = super::load::positive)]
    pub(crate) last_seconds: f64,
    /// Folder that the registry and the cache are made below, and removed from again; absent: the
    /// one for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchColdStartArgs {
    /// Rows of the version
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: NonZeroU64,
    /// Rows of a request
    #[arg(long, default_value = "100")]
    pub(crate) candidates: NonZeroUsize,
    /// Starts with a full cache
    #[arg(long, default_value = "5")]
    pub(crate) starts: NonZeroUsize,
    /// Folder that the registry and the cache are made below, and removed from again; absent: the
    /// one for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchRegistryArgs {
    /// Versions of the model
    #[arg(long, default_value = "100000")]
    pub(crate) versions: NonZeroU64,
    /// Folder that the registry is made below, and removed from again; absent: the one for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchWireArgs {
    /// Rows of the table
    #[arg(long, default_value = "2000000")]
    pub(crate) rows: NonZeroU64,
    /// Rows of a request (repeatable, or separated by commas)
    #[arg(long, default_value = "1,100,1000", value_delimiter = ',', value_parser = at_least_one)]
    pub(crate) candidates: Vec<usize>,
    /// Requests that are measured; absent: by their size
    #[arg(long)]
    pub(crate) requests: Option<NonZeroUsize>,
    /// Threads of the server that score; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Folder that the registry and the cache are made below, and removed from again; absent: the
    /// one for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a whole number above 0 is wanted".to_owned()),
    }
}
