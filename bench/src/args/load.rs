//! The arguments of the commands that measure scoring: `loadgen`, which sends requests to a server,
//! and `bench serve`, which scores without a network.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use zillion_console::parse_dense_type;
use zillion_registry::VersionId;
use zillion_rows::ByteSize;
use zillion_scorer::DenseType;

/// The arguments of `zillion loadgen`.
#[derive(Debug, clap::Args)]
pub struct LoadgenArgs {
    /// URL of the server
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    pub(crate) url: String,
    /// Name of the model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: String,
    /// Registry that the server reads; this program reads the inputs of the model from it, and the
    /// versions for --check
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
    /// Version to ask for; absent: the version that the server chooses
    #[arg(long)]
    pub(crate) version: Option<VersionId>,
    /// File whose rows are sent, in their order
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
    /// Override a key of [data], which describes the format of the file, as in
    /// --set data.delimiter=';' (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number of requests per second
    #[arg(long, default_value = "100", value_name = "RPS", value_parser = positive)]
    pub(crate) rate: f64,
    /// Seconds for which requests are sent
    #[arg(long, default_value = "10", value_parser = positive)]
    pub(crate) seconds: f64,
    /// Number of rows in a request
    #[arg(long, default_value = "100", value_name = "ROWS")]
    pub(crate) candidates: NonZeroUsize,
    /// Protocol of the requests
    #[arg(long, value_enum, default_value = "v2")]
    pub(crate) protocol: Protocol,
    /// Inputs that all rows of a rank request share, with the values of the first row (repeatable,
    /// or separated by commas)
    #[arg(long, value_name = "INPUT", value_delimiter = ',')]
    pub(crate) context: Vec<String>,
    /// Number of connections; a request waits while all are busy, and the wait is part of its
    /// latency
    #[arg(long, default_value = "8")]
    pub(crate) connections: NonZeroUsize,
    /// Number of different requests, which are sent in a cycle
    #[arg(long, default_value = "16")]
    pub(crate) bodies: NonZeroUsize,
    /// Time limit of a request in milliseconds, counted from its scheduled time; a request that
    /// takes longer counts as failed
    #[arg(long, default_value = "10000", value_name = "MS")]
    pub(crate) timeout_ms: u64,
    /// Compare every answer bit for bit with scores that this program computes with the same
    /// version
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the figures, including those of each second, as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchServeArgs {
    /// Model that computes the scores; din needs a history
    #[arg(long, value_enum, default_value = "deepfm")]
    pub(crate) model: ServeModel,
    /// Number of rows in a request
    #[arg(long, default_value = "500")]
    pub(crate) candidates: NonZeroUsize,
    /// Number of threads, which share the work of each request; one request is scored at a time
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Number of rows in the table
    #[arg(long, default_value = "2000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of requests that are timed; absent: 3000 with 1 row, 1000 with 100 rows, 400 with 500
    /// rows, otherwise 250
    #[arg(long)]
    pub(crate) requests: Option<NonZeroUsize>,
    /// Number type of the dense layers: f32, bf16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_dense_type)]
    pub(crate) dense: DenseType,
    /// Number of the 26 ids, from the first on, that belong to the user: they have one value for
    /// all rows of a request, and another one in each request
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=26))]
    pub(crate) shared_fields: u8,
    /// Number of ids in the user's history; the model then has one more feature, which is pooled;
    /// absent: no history
    #[arg(long)]
    pub(crate) history: Option<NonZeroUsize>,
    /// Read the rows from records in memory, as `zillion serve --row-records` does, instead of the
    /// mapped files
    #[arg(long)]
    pub(crate) row_records: bool,
    /// GPU that computes the scores, as cuda:0; absent: processors compute them
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Memory of the GPU, as 8GiB; absent: four fifths of what is free
    #[arg(long, value_name = "SIZE", requires = "device")]
    pub(crate) gpu_memory: Option<ByteSize>,
}

/// A model that the benchmarks of scoring publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServeModel {
    /// DeepFM with layers of 400, 400 and 400
    Deepfm,
    /// DCNv2 with three cross layers, beside layers of 512, 256 and 128
    Dcnv2,
    /// Attention over the history for the last id
    Din,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchGrpcArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "2000000")]
    pub(crate) rows: NonZeroU64,
    /// Number of rows in a request (repeatable, or separated by commas)
    #[arg(long, default_value = "1,1000", value_delimiter = ',')]
    pub(crate) candidates: Vec<NonZeroUsize>,
    /// Number of the 26 ids, from the first on, that belong to the user: they have one value for
    /// all rows of a request. Requests of one row and predict requests share nothing
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u8).range(0..=26))]
    pub(crate) shared_fields: u8,
    /// Protocol of the requests (repeatable, or separated by commas)
    #[arg(long, value_enum, default_value = "grpc", value_delimiter = ',')]
    pub(crate) protocol: Vec<Protocol>,
    /// Number of connections to the server
    #[arg(long, default_value = "4")]
    pub(crate) connections: NonZeroUsize,
    /// Number of requests in flight on each connection; more than 1 needs gRPC
    #[arg(long, default_value = "1")]
    pub(crate) streams: NonZeroUsize,
    /// Seconds of each run
    #[arg(long, default_value = "5", value_parser = positive)]
    pub(crate) seconds: f64,
    /// Seconds of requests before the first run
    #[arg(long, default_value = "1", value_parser = positive)]
    pub(crate) warm_up: f64,
    /// Number of runs of each kind; the figures are those of the median one
    #[arg(long, default_value = "3")]
    pub(crate) repeat: NonZeroUsize,
    /// Number of requests per second of the open loop; absent: a share of the capacity
    #[arg(long, value_name = "RPS", value_parser = positive)]
    pub(crate) rate: Option<f64>,
    /// Share of the measured capacity at which the open loop sends requests
    #[arg(long, default_value = "0.7", value_parser = positive, conflicts_with = "rate")]
    pub(crate) load_share: f64,
    /// Processors that the server keeps to, as in `0,2-3`; absent: all of them
    #[arg(long, value_name = "LIST")]
    pub(crate) server_cpus: Option<String>,
    /// Number of threads of the server that score; absent: one per core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Number type of the dense layers of the server: f32, bf16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_dense_type)]
    pub(crate) dense: DenseType,
    /// GPU of the server, as cuda:0; absent: processors compute the scores
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Memory of the GPU, as 8GiB; absent: four fifths of what is free
    #[arg(long, value_name = "SIZE", requires = "device")]
    pub(crate) gpu_memory: Option<ByteSize>,
    /// Folder in which the registry and the cache are made and then removed; absent: the folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

/// The protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Open Inference Protocol v2
    V2,
    /// Predict request of TF-Serving, row by row
    Predict,
    /// Rank request: one context and many candidates
    Rank,
    /// Open Inference Protocol v2 over gRPC, with raw tensors
    Grpc,
}

pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if f64::is_finite(number) && number > 0.0 => Ok(number),
        _ => Err("the value must be a number above 0".to_owned()),
    }
}
