//! The arguments of `zillion serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::Serialize;

#[derive(Clone, Debug, clap::Args, Serialize)]
pub(crate) struct ServeArgs {
    /// TOML file with a section [serve], whose keys are these options; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// The registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) registry: Option<String>,
    /// A model (repeatable); NAME@latest and NAME@POINTER say what answers by default (stable)
    #[arg(long, value_name = "NAME")]
    #[serde(rename = "models", skip_serializing_if = "Vec::is_empty")]
    pub(crate) model: Vec<String>,
    /// Let clients load and unload models of the registry (Triton's explicit mode); then --model
    /// may be left out
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) model_control: bool,
    /// Address to listen on; port 0 takes a free one, which is printed [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    /// Another address to listen on, for gRPC; --http answers gRPC too
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc: Option<String>,
    /// Folder that versions are fetched to and merged in; absent: .cache below a local registry,
    /// zillion/HASH in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<PathBuf>,
    /// Threads that score; absent: one a core
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Milliseconds between two looks at the registry; absent: 200 of a folder, 2000 of a bucket
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) poll_ms: Option<u64>,
    /// Number of earlier versions that stay open [default: 8]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retain: Option<usize>,
    /// Largest body of a request [default: 33554432]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Most rows of a request [default: 16384]
    #[arg(long, value_name = "ROWS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_rows: Option<usize>,
    /// Most values of a request, over all inputs [default: 4194304]
    #[arg(long, value_name = "VALUES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_values: Option<usize>,
    /// Requests that may wait; more are refused with 429 [default: 1024]
    #[arg(long, value_name = "REQUESTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_waiting: Option<usize>,
    /// Most connections at a time; more wait to be accepted [default: 1024]
    #[arg(long, value_name = "CONNECTIONS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_connections: Option<usize>,
    /// Milliseconds from a request's body to its answer; then 504 [default: 1000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_ms: Option<u64>,
    /// Milliseconds for a request's head, and for its body [default: 10000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receive_ms: Option<u64>,
    /// Milliseconds for which a server that is told to stop still accepts requests while it reports
    /// that it is not ready [default: 0]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lame_duck_ms: Option<u64>,
    /// Milliseconds that open requests have when the server is told to stop [default: 10000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_ms: Option<u64>,
    /// The server's name in the registry; absent: the machine's name and the process
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}
