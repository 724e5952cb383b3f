//! The arguments of the benchmarks of versions, and of the benchmarks of servers that load
//! versions.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchHotLoadArgs {
    /// Number of rows in the base
    #[arg(long, default_value = "1000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of deltas; one delta is published per second
    #[arg(long, default_value = "200")]
    pub(crate) deltas: usize,
    /// Number of keys that are trained between two deltas
    #[arg(long, default_value = "10000")]
    pub(crate) delta_rows: NonZeroUsize,
    /// Number of rollbacks to the previous version, spread evenly over the deltas
    #[arg(long, default_value = "10")]
    pub(crate) rollbacks: usize,
    /// Number of requests per second
    #[arg(long, default_value = "300", value_name = "RPS", value_parser = super::load::positive)]
    pub(crate) rate: f64,
    /// Number of rows in a request
    #[arg(long, default_value = "100")]
    pub(crate) candidates: NonZeroUsize,
    /// Number of threads of the server that score; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Seconds of load before the deltas, in which the server loads no version
    #[arg(long, default_value = "30", value_parser = super::load::positive)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of load after the deltas, in which one rollback over 100 deltas is made and one
    /// delta is published
    #[arg(long, default_value = "20", value_parser = super::load::positive)]
    pub(crate) last_seconds: f64,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchColdStartArgs {
    /// Number of rows in the version
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of rows in a request
    #[arg(long, default_value = "100")]
    pub(crate) candidates: NonZeroUsize,
    /// Number of starts with a full cache
    #[arg(long, default_value = "5")]
    pub(crate) starts: NonZeroUsize,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchRegistryArgs {
    /// Number of versions of the model
    #[arg(long, default_value = "100000")]
    pub(crate) versions: NonZeroU64,
    /// Publish every version with a training run, and compare the times of the first and of the
    /// last publications; absent: copy the manifest of one version
    #[arg(long)]
    pub(crate) publish: bool,
    /// Folder in which the registry is made and then removed; absent: the folder for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchWireArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "2000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of rows in a request (repeatable, or separated by commas)
    #[arg(long, default_value = "1,100,1000", value_delimiter = ',')]
    pub(crate) candidates: Vec<NonZeroUsize>,
    /// Number of requests that are measured; absent: 5000 with up to 10 rows, 1000 with up to 200
    /// rows, otherwise 300
    #[arg(long)]
    pub(crate) requests: Option<NonZeroUsize>,
    /// Number of threads of the server that score; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Log all requests, to measure the cost of the request log
    #[arg(long)]
    pub(crate) request_log: bool,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchOverloadArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "200000")]
    pub(crate) rows: NonZeroU64,
    /// Number of rows in a request (repeatable, or separated by commas)
    #[arg(long, default_value = "1,100,1000", value_delimiter = ',')]
    pub(crate) candidates: Vec<NonZeroUsize>,
    /// Seconds of overload for each size of requests
    #[arg(long, default_value = "60", value_parser = super::load::positive)]
    pub(crate) seconds: f64,
    /// Requests that are due, as a multiple of the measured capacity
    #[arg(long, default_value = "3", value_parser = super::load::positive)]
    pub(crate) factor: f64,
    /// Number of connections of the overload
    #[arg(long, default_value = "256")]
    pub(crate) connections: NonZeroUsize,
    /// Protocol of the requests
    #[arg(long, value_enum, default_value = "v2")]
    pub(crate) protocol: super::Protocol,
    /// Processors that the server keeps to, as in `0,2-3`; absent: all of them. The generator
    /// then has the others for itself
    #[arg(long, value_name = "LIST")]
    pub(crate) server_cpus: Option<String>,
    /// Number of threads of the server that score; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchTlsArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "200000")]
    pub(crate) rows: NonZeroU64,
    /// Number of rows in a request (repeatable, or separated by commas)
    #[arg(long, default_value = "1,100", value_delimiter = ',')]
    pub(crate) candidates: Vec<NonZeroUsize>,
    /// Number of handshakes per second beside the requests
    #[arg(long, default_value = "1000", value_parser = super::load::positive)]
    pub(crate) handshakes: f64,
    /// Number of requests per second beside the handshakes
    #[arg(long, default_value = "500", value_parser = super::load::positive)]
    pub(crate) requests: f64,
    /// Seconds of requests, first without and then with handshakes
    #[arg(long, default_value = "10", value_parser = super::load::positive)]
    pub(crate) seconds: f64,
    /// Number of threads of the server that score; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchRetrieveArgs {
    /// Number of items among which each search looks
    #[arg(long, default_value = "1000000")]
    pub(crate) items: std::num::NonZeroU32,
    /// Number of floats of a vector
    #[arg(long, default_value = "64")]
    pub(crate) dim: NonZeroUsize,
    /// Number of items that a search returns
    #[arg(long, default_value = "100")]
    pub(crate) k: NonZeroUsize,
    /// Number of searches that are timed
    #[arg(long, default_value = "200")]
    pub(crate) searches: NonZeroUsize,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Time the approximate search, and compare its items with those of the exact one
    #[arg(long)]
    pub(crate) approximate: bool,
    /// Kind of the random vectors
    #[arg(long, value_enum, default_value = "clusters")]
    pub(crate) vectors: VectorKind,
    /// File with the items of a published version (in the registry, files/../*.items): each vector
    /// lies between those of three of these items
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vectors", "dim"])]
    pub(crate) like: Option<PathBuf>,
}

/// The kinds of random vectors of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum VectorKind {
    /// Clusters whose elements all have the same size
    Clusters,
    /// Clusters whose elements become smaller with their position, as principal components do
    Decaying,
    /// Normal draws without clusters
    Gaussian,
}
