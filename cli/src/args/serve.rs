//! The arguments of `zillion serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The settings of a server. Each is an option of the command line and a key of the section
/// `[serve]` in the settings file.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServeArgs {
    /// TOML file with a section [serve], whose keys are these options; it is read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// URL of the registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
    /// Name of a model (repeatable); NAME@latest or NAME@POINTER chooses the version that answers
    /// by default, which is otherwise that of the pointer `stable`
    #[arg(long, value_name = "NAME")]
    #[serde(rename = "models", skip_serializing_if = "Vec::is_empty")]
    pub(crate) model: Vec<String>,
    /// Let clients load and unload models of the registry (Triton's explicit mode); then --model
    /// may be left out
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) model_control: bool,
    /// Address to listen on; port 0 takes a free port, which is printed [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Additional address to listen on for gRPC; the address of --http answers gRPC too
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc: Option<String>,
    /// Folder for the versions that are fetched and merged; absent: .cache below a local registry,
    /// zillion/HASH in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Number of threads that score; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Milliseconds between two checks of the registry; absent: 200 for a folder, 2000 for a bucket
    #[arg(long, value_name = "MS")]
    pub(crate) poll_ms: Option<u64>,
    /// Number of earlier versions that stay open [default: 8]
    #[arg(long)]
    pub(crate) retain: Option<usize>,
    /// Largest number of bytes of a request's body [default: 33554432]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Largest number of rows of a request [default: 16384]
    #[arg(long, value_name = "ROWS")]
    pub(crate) max_rows: Option<usize>,
    /// Largest number of values of a request, over all inputs [default: 4194304]
    #[arg(long, value_name = "VALUES")]
    pub(crate) max_values: Option<usize>,
    /// Largest number of waiting requests; more are refused with 429 [default: 1024]
    #[arg(long, value_name = "REQUESTS")]
    pub(crate) max_waiting: Option<usize>,
    /// Largest number of connections at a time; more wait to be accepted [default: 1024]
    #[arg(long, value_name = "CONNECTIONS")]
    pub(crate) max_connections: Option<usize>,
    /// Milliseconds from a request's body to its answer; a later answer is 504 [default: 1000]
    #[arg(long, value_name = "MS")]
    pub(crate) request_ms: Option<u64>,
    /// Milliseconds in which the head of a request must arrive, and then its body [default: 10000]
    #[arg(long, value_name = "MS")]
    pub(crate) receive_ms: Option<u64>,
    /// Milliseconds after a stop signal during which the server still accepts requests and reports
    /// that it is not ready [default: 0]
    #[arg(long, value_name = "MS")]
    pub(crate) lame_duck_ms: Option<u64>,
    /// Milliseconds in which open requests may finish when the server stops [default: 10000]
    #[arg(long, value_name = "MS")]
    pub(crate) drain_ms: Option<u64>,
    /// Name of the server in the registry; absent: the name of the machine and the process id
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The filter of the log in the settings file. It is no option of this command, because the
    /// option `--log-filter` belongs to every command.
    #[arg(skip)]
    pub(crate) log_filter: Option<String>,
}
