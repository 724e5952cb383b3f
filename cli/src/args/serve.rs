//! The arguments of `zillion serve`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zillion_console::parse_dense_type;
use zillion_rows::ByteSize;
use zillion_scorer::DenseType;
use zillion_serving::{Proof, RequestLogSettings, TrafficSettings};

use crate::commands::serve::listeners::ListenerSettings;

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
    /// by default; NAME alone follows the pointer `stable`
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
    /// Address of a second port for gRPC; the address of --http answers gRPC too
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc: Option<String>,
    /// Address for health, metadata, metrics and control, with a network thread of its own; the
    /// other addresses then answer neither metrics nor control
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Listeners with settings of their own, which only the settings file can list
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) listener: Vec<ListenerSettings>,
    /// Number of network threads of each address, to which its connections are dealt; absent: one
    /// for each core, at most 16; --admin has one
    #[arg(long, value_name = "THREADS")]
    pub(crate) network_threads: Option<NonZeroUsize>,
    /// Kind of proof of identity that callers may use (repeatable): token, jwt or mtls; absent:
    /// every caller may make every call
    #[arg(long, value_name = "KIND", value_parser = parse_proof)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) auth: Vec<Proof>,
    /// TOML file of the tokens, certificates and issuers that prove identities; it is read again
    /// when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Certificate of the server in PEM; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates of the authorities that sign clients' certificates, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Allow other machines to reach the server without a proof of identity, because another
    /// program protects it
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
    /// File for the audit log of control actions and refused callers
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// Folder of trusted public keys; a version or a pointer move that none of them signed is not
    /// served
    #[arg(long, env = "ZILLION_TRUST", value_name = "FOLDER")]
    pub(crate) trust: Option<PathBuf>,
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
    /// Number of earlier versions that stay loaded [default: 8]
    #[arg(long)]
    pub(crate) retain: Option<usize>,
    /// Maximum number of bytes in the body of a request [default: 33554432]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Maximum number of rows in a request [default: 16384]
    #[arg(long, value_name = "ROWS")]
    pub(crate) max_rows: Option<usize>,
    /// Maximum number of values in a request, over all inputs [default: 4194304]
    #[arg(long, value_name = "VALUES")]
    pub(crate) max_values: Option<usize>,
    /// Milliseconds of estimated work that may wait; requests beyond are refused with 429
    /// [default: 30]
    #[arg(long, value_name = "MS")]
    pub(crate) queue_ms: Option<u64>,
    /// Microseconds of average work up to which a request is scored by the network thread that read
    /// it, if no request waits; at most 2000, and 0 for never [default: 200, on a GPU 0]
    #[arg(long, value_name = "US")]
    pub(crate) inline_us: Option<u64>,
    /// Maximum number of bytes of a model's files in the cache; the files of loaded versions stay
    #[arg(long, value_name = "BYTES")]
    pub(crate) cache_bytes: Option<u64>,
    /// Copy the rows of versions into memory instead of mapping their files
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) load_into_memory: bool,
    /// Look rows up in records in memory on huge pages: fast, and safe from damaged files, at the
    /// cost of about the memory of the files
    #[arg(long, conflicts_with = "load_into_memory")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) row_records: bool,
    /// Number type of the dense layers: f32, or bf16 or int8, which are faster and round scores a
    /// little; absent: the type with which each version was published
    #[arg(long, value_name = "TYPE", value_parser = parse_dense_type)]
    pub(crate) dense: Option<DenseType>,
    /// Device that computes the scores of all models: cpu, or a GPU such as cuda:0 [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Memory of the GPU that all models together may use, as in 8GiB; absent: four fifths of what
    /// is free at the start
    #[arg(long, value_name = "BYTES")]
    pub(crate) gpu_memory: Option<ByteSize>,
    /// Milliseconds since the last answer of the registry after which the server is not ready;
    /// absent: the server stays ready
    #[arg(long, value_name = "MS")]
    pub(crate) max_stale_ms: Option<u64>,
    /// Milliseconds that the registry has to answer before a starting server serves the versions
    /// of its cache [default: 150]
    #[arg(long, value_name = "MS")]
    pub(crate) registry_wait_ms: Option<u64>,
    /// Maximum number of milliseconds for which the server waits until another server has loaded a
    /// new version [default: 0]
    #[arg(long, value_name = "MS")]
    pub(crate) stagger_ms: Option<u64>,
    /// Shares of requests for canary and shadow versions by model, which only the settings file can
    /// list
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) traffic: BTreeMap<String, TrafficSettings>,
    /// Folder for the log of requests, in the columns of the stream that training reads
    #[arg(long = "request-log", value_name = "FOLDER")]
    #[serde(skip)]
    pub(crate) request_log_folder: Option<PathBuf>,
    /// Share of the requests that are logged, above 0 and up to 1 [default: 1]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip)]
    pub(crate) request_log_share: Option<f64>,
    /// Largest number of bytes of the request log on the disk; beyond it, the oldest files are
    /// removed [default: 1073741824]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip)]
    pub(crate) request_log_disk_bytes: Option<u64>,
    /// Milliseconds after which a file of the request log is completed, so that a trainer sees it
    /// [default: 2000]
    #[arg(long, value_name = "MS")]
    #[serde(skip)]
    pub(crate) request_log_close_ms: Option<u64>,
    /// The settings of the request log in the settings file, which has more of them than there are
    /// options
    #[arg(skip)]
    #[serde(skip_serializing_if = "is_unset")]
    pub(crate) request_log: RequestLogSettings,
    /// Largest number of bytes of bodies and answers in the server; requests beyond are refused
    /// with 429 [default: 536870912]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_bytes_in_flight: Option<usize>,
    /// Largest number of items that a request may retrieve [default: 1000]
    #[arg(long, value_name = "ITEMS")]
    pub(crate) max_retrieved: Option<usize>,
    /// Largest number of bytes of an answer [default: 67108864]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_answer_bytes: Option<usize>,
    /// Largest number of connections of a listener from one address [default: 1024]
    #[arg(long, value_name = "CONNECTIONS")]
    pub(crate) max_connections_per_address: Option<usize>,
    /// Milliseconds after which a connection without requests is closed [default: 300000]
    #[arg(long, value_name = "MS")]
    pub(crate) idle_ms: Option<u64>,
    /// Milliseconds in which a client must take the next 64 KiB of an answer [default: 10000]
    #[arg(long, value_name = "MS")]
    pub(crate) write_ms: Option<u64>,
    /// Largest number of waiting requests; more are refused with 429 [default: 1024]
    #[arg(long, value_name = "REQUESTS")]
    pub(crate) max_waiting: Option<usize>,
    /// Largest number of connections of a listener; the longest idle one makes room [default: 1024]
    #[arg(long, value_name = "CONNECTIONS")]
    pub(crate) max_connections: Option<usize>,
    /// Time limit in milliseconds from the body of a request to its answer; after it, the answer is
    /// status 504 [default: 1000]
    #[arg(long, value_name = "MS")]
    pub(crate) request_ms: Option<u64>,
    /// Time limit in milliseconds for the head of a request, and then for its body [default: 10000]
    #[arg(long, value_name = "MS")]
    pub(crate) receive_ms: Option<u64>,
    /// Milliseconds after a stop signal during which the server reports that it is not ready but
    /// still accepts requests [default: 0]
    #[arg(long, value_name = "MS")]
    pub(crate) lame_duck_ms: Option<u64>,
    /// Milliseconds that open requests get to finish when the server stops [default: 10000]
    #[arg(long, value_name = "MS")]
    pub(crate) drain_ms: Option<u64>,
    /// Name of the server in the registry; absent: made from the name of the machine and the
    /// process id
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The filter of the log in the settings file. It is no option of this command, because the
    /// option `--log-filter` belongs to every command.
    #[arg(skip)]
    pub(crate) log_filter: Option<String>,
}

impl ServeArgs {
    /// Returns the settings with the options of the request log in their section.
    pub(crate) fn with_request_log_options(&self) -> Self {
        let mut settings = self.clone();
        let log = &mut settings.request_log;
        log.folder = self.request_log_folder.clone().or(log.folder.take());
        log.share = self.request_log_share.or(log.share);
        log.max_disk_bytes = self.request_log_disk_bytes.or(log.max_disk_bytes);
        log.close_ms = self.request_log_close_ms.or(log.close_ms);
        settings
    }
}

/// Returns whether no setting of the request log is set.
fn is_unset(settings: &RequestLogSettings) -> bool {
    *settings == RequestLogSettings::default()
}

/// Parses the name of a kind of proof.
fn parse_proof(text: &str) -> Result<Proof, String> {
    match text {
        "token" => Ok(Proof::Token),
        "jwt" => Ok(Proof::Jwt),
        "mtls" => Ok(Proof::Mtls),
        _ => Err("use token, jwt or mtls".to_owned()),
    }
}
