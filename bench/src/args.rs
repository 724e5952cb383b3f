//! The arguments of `zillion bench` and `zillion loadgen`.

mod gpu;
mod load;
mod online;
mod ps;
mod versions;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde::de::IntoDeserializer as _;
use serde::{Deserialize as _, Serialize};
use zillion_console::profile::ProfileArgs;
use zillion_rows::Dtype;

pub(crate) use gpu::{BenchGpuArgs, GpuPart};
pub(crate) use load::{BenchGrpcArgs, BenchServeArgs, ServeModel};
pub use load::{LoadgenArgs, Protocol};
pub(crate) use online::{
    BenchOnlineArgs, OnlineCatchupArgs, OnlineFigure, OnlineFreshnessArgs, OnlineIngestArgs,
    OnlineJoinerArgs, OnlineKillsArgs, OnlineMovielensArgs,
};
pub(crate) use ps::BenchPsArgs;
pub(crate) use versions::{
    BenchColdStartArgs, BenchHotLoadArgs, BenchOverloadArgs, BenchRegistryArgs, BenchRetrieveArgs,
    BenchTlsArgs, BenchWireArgs, VectorKind,
};

/// The arguments of `zillion bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Print JSON on stdout instead of text: one line, or one line for each run of `frappe`
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) benchmark: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure the rows pulled and pushed per second, and compare them with the limits of this
    /// machine's memory
    #[command(after_help = "\
Example: zillion bench embedding --rows 10000000 --dim 16 --threads 1 --json
         zillion bench embedding --rows 1000000 --threads 2 --check
Exit codes: 0 if the benchmark ended, 1 if --check found a wrong row.")]
    Embedding(BenchEmbeddingArgs),
    /// Measure the rows pulled and pushed per second in a table that is larger than its memory, and
    /// the reads and writes of the disk
    #[command(after_help = "\
Example: zillion bench spill --rows 10000000 --memory-share 0.125 --threads 2 --json
Exit codes: 0 if every row was present and correct at the end, 1 if not.")]
    Spill(BenchSpillArgs),
    /// Measure the longest times of many small pulls and pushes, while a table grows and while a
    /// checkpoint is written
    #[command(after_help = "\
Example: zillion bench stalls --rows 10000000 --threads 2 --json")]
    Stalls(BenchStallsArgs),
    /// Measure the cost of a table at its limit while new keys arrive all the time
    #[command(after_help = "\
Example: zillion bench capacity --max-mib 512 --threads 1 --json")]
    Capacity(BenchCapacityArgs),
    /// Measure the time and the bytes for writing the changed rows of a table, after 0.1, 1 and 10
    /// % of the rows have changed, and compare them with writing all rows
    #[command(after_help = "\
Example: zillion bench delta --rows 10000000 --dim 16 --json")]
    Delta(BenchDeltaArgs),
    /// Measure the time of a lookup in a published table, from mapped files and from records in
    /// memory, for each number type of published rows
    #[command(after_help = "\
Example: zillion bench lookup --rows 2000000 --json")]
    Lookup(BenchLookupArgs),
    /// Measure the rows read per second from a file: decoded to columns, and assembled to batches
    #[command(after_help = "\
Example: zillion bench reader --data train.parquet --threads 1 --json")]
    Reader(BenchReaderArgs),
    /// Measure the samples trained per second on Parquet data in Criteo's shape, and the test AUC
    /// of the same run
    #[command(after_help = "\
Example: zillion bench train --model deepfm --data criteo_like.parquet --threads 2 --json")]
    Train(BenchTrainArgs),
    /// Measure the scores per second of a published DeepFM in Criteo's shape, without a network
    #[command(after_help = "\
Example: zillion bench serve --candidates 500 --threads 2 --json")]
    Serve(BenchServeArgs),
    /// Measure a server under constant load while it receives one delta per second and rollbacks,
    /// and check every answer
    #[command(after_help = "\
Example: zillion bench hot-load --rows 1000000 --deltas 200 --delta-rows 10000 --rollbacks 10 --rate 300 --json
Exit codes: 0 if every request got a correct answer, 1 if not.")]
    HotLoad(BenchHotLoadArgs),
    /// Measure the time until a server is ready, with an empty and with a full cache, and its
    /// memory
    #[command(after_help = "\
Example: zillion bench cold-start --rows 10000000 --json")]
    ColdStart(BenchColdStartArgs),
    /// Send the same requests over every protocol, one at a time, and measure the time of each
    /// stage
    #[command(after_help = "\
Example: zillion bench wire --candidates 1,100,1000 --threads 1 --json")]
    Wire(BenchWireArgs),
    /// Measure the requests and rows per second of a server with its network, the processor time of
    /// both sides, and the latencies at a share of that load
    #[command(after_help = "\
Example: zillion bench grpc --candidates 1 --connections 4 --streams 8 --json
         zillion bench grpc --candidates 1000 --shared-fields 20 --protocol grpc,rank --json")]
    Grpc(BenchGrpcArgs),
    /// Send several times the requests that a server can answer, and measure its goodput and the
    /// latencies of admitted and of refused requests
    #[command(after_help = "\
Example: zillion bench overload --seconds 60 --threads 2 --json")]
    Overload(BenchOverloadArgs),
    /// Measure the rate of answers with TLS and without it, and the latency of requests while other
    /// connections make handshakes
    #[command(after_help = "\
Example: zillion bench tls --candidates 1,100 --json")]
    Tls(BenchTlsArgs),
    /// Measure a registry in which one model has very many versions
    #[command(after_help = "\
Example: zillion bench registry --versions 100000 --json
         zillion bench registry --versions 50000 --publish --json")]
    Registry(BenchRegistryArgs),
    /// Measure the time of a search for the nearest items of a user, among random vectors in
    /// clusters
    #[command(after_help = "\
Example: zillion bench retrieve --items 1000000 --dim 64 --k 100 --json")]
    Retrieve(BenchRetrieveArgs),
    /// Measure the keys per second and the times of pulls and pushes of a parameter server in a
    /// separate process
    #[command(after_help = "\
Example: zillion bench ps --rows 10000000 --json
         zillion bench ps --clients 8 --json
         zillion bench ps --rows 1000000 --idle 10000 --json")]
    Ps(BenchPsArgs),
    /// Measure online training: the freshness of answers, the rate of the feed, the time to catch
    /// up, and what remains after kills
    #[command(after_help = "\
Example: zillion bench online freshness --rate 10000 --seconds 600 --json
         zillion bench online kills --kills 20 --bytes 2GiB --json")]
    Online(BenchOnlineArgs),
    /// Measure a GPU: the floors of copies and launches, and the rates of products, lookups and row
    /// updates beside them
    #[command(after_help = "\
Example: zillion bench gpu --device cuda:0 --json")]
    Gpu(BenchGpuArgs),
    /// Train the job files of examples/frappe and print their AUCs beside the published ones
    #[command(after_help = "\
Example: zillion bench frappe --root data/frappe --seeds 5")]
    Frappe(BenchFrappeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchEmbeddingArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "10000000", value_parser = clap::value_parser!(u64).range(1..=u32::MAX.into()))]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Type of the weights: f32, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = parse_dtype)]
    pub(crate) dtype: Dtype,
    /// Number of compute threads; if there are several, the benchmark also measures one thread for
    /// comparison and takes twice as long
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Seconds for which each figure is measured
    #[arg(long, default_value = "2")]
    pub(crate) seconds: f64,
    /// Check at the end that every row holds the result of its pushes (not timed)
    #[arg(long)]
    pub(crate) check: bool,
}

/// Parses the type of weights from its name in job files.
fn parse_dtype(text: &str) -> Result<Dtype, serde::de::value::Error> {
    Dtype::deserialize(text.into_deserializer())
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchStallsArgs {
    /// Number of rows to which the table grows
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchCapacityArgs {
    /// Limit of the table's memory, in MiB
    #[arg(long, default_value = "512")]
    pub(crate) max_mib: u64,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Seconds for which each table is measured
    #[arg(long, default_value = "5")]
    pub(crate) seconds: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchSpillArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Share of the rows that fit into memory, above 0 and at most 1; the other rows are on disk
    #[arg(long, default_value = "0.125")]
    pub(crate) memory_share: f64,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Number of plans that are announced together; the plans announced before them are then looked
    /// up
    #[arg(long, default_value = "1")]
    pub(crate) ahead: NonZeroUsize,
    /// Seconds of warm-up before the measurement, to bring the frequent rows into memory
    #[arg(long, default_value = "60")]
    pub(crate) warm_up: f64,
    /// Seconds for which the stream is measured
    #[arg(long, default_value = "30")]
    pub(crate) seconds: f64,
    /// Folder for the rows that are not in memory
    #[arg(long, default_value = "runs/bench-spill")]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchDeltaArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Folder in which layers are written and then removed; absent: the folder for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchLookupArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "2000000", value_parser = clap::value_parser!(u64).range(1..1 << 31))]
    pub(crate) rows: u64,
    /// Number of batches of up to 4,000 keys for each law of the keys
    #[arg(long, default_value = "500")]
    pub(crate) batches: NonZeroUsize,
    /// Folder in which layers are written and then removed; absent: the folder for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchReaderArgs {
    /// Data to read: a file, a folder or a glob
    #[arg(long)]
    pub(crate) data: String,
    /// Job file whose columns are read; absent: the job that `zillion init` drafts for the data
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Number of measurements of each figure; the median is reported
    #[arg(long, default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchTrainArgs {
    /// Model that the benchmark trains
    #[arg(long, value_enum, default_value = "deepfm")]
    pub(crate) model: BenchModel,
    /// Parquet file in Criteo's shape (label, I1..I13, C1..C26); the last fifth of its rows is the
    /// test set
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Override a key of the benchmark's job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Decode and plan all batches before the first step; the difference from a run without this
    /// option is the cost of reading
    #[arg(long)]
    pub(crate) in_memory: bool,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BenchModel {
    Deepfm,
    Dcnv2,
    Dlrm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchFrappeArgs {
    /// Folder of the Frappe data set
    #[arg(long)]
    pub(crate) root: PathBuf,
    /// Folder of the job files
    #[arg(long, default_value = "examples/frappe")]
    pub(crate) jobs: PathBuf,
    /// Number of seeds for FM, Wide&Deep and DeepFM; the other models are run once
    #[arg(long, default_value = "5")]
    pub(crate) seeds: u64,
    /// Run only this job file (its name without .toml; repeatable)
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// Number of compute threads; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
}
