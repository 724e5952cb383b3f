//! Arguments of the commands about versions: publish, model, serve, explain.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Subcommand;
use serde::Serialize;
use zillion_registry::VersionId;

/// Which model of which registry.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelRef {
    /// The registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: String,
    /// The model's name
    #[arg(long, value_name = "NAME")]
    pub(crate) model: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Publish every row, even where a delta would do
    #[arg(long)]
    pub(crate) base: bool,
    /// Pointer that is moved to the version afterwards
    #[arg(long, default_value = "stable", value_name = "POINTER")]
    pub(crate) promote: String,
    /// Move no pointer
    #[arg(long, conflicts_with = "promote")]
    pub(crate) no_promote: bool,
    /// Files whose first rows become parity rows; absent: the job's validation, test or training files
    #[arg(long, value_name = "FILE")]
    pub(crate) parity: Vec<String>,
    /// Number of parity rows
    #[arg(long, default_value = "64")]
    pub(crate) parity_rows: NonZeroUsize,
    /// Override a key of the checkpoint's job, as in --set data.root=... (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the version as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    pub(crate) what: ModelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// List a registry's models, or a model's versions, the newest first
    #[command(after_help = "\
Example: zillion model list --registry registry --model clicks --limit 20")]
    List(ListArgs),
    /// Show a version, or where a pointer has stood
    #[command(after_help = "\
Example: zillion model show --registry registry --model clicks --version 12")]
    Show(ShowArgs),
    /// What changed from one version to another
    #[command(after_help = "\
Example: zillion model diff 11 12 --registry registry --model clicks")]
    Diff(DiffArgs),
    /// Move a pointer to a version
    #[command(after_help = "\
Example: zillion model promote 12 --to stable --registry registry --model clicks")]
    Promote(PromoteArgs),
    /// Move a pointer back to the version before, or to one that is named
    #[command(after_help = "\
Example: zillion model rollback --pointer stable --registry registry --model clicks")]
    Rollback(RollbackArgs),
    /// Read every byte of a version and of what it stands on
    #[command(after_help = "\
Example: zillion model verify --registry registry --model clicks")]
    Verify(VerifyArgs),
    /// Remove files that no version in use needs
    #[command(after_help = "\
Example: zillion model gc --keep 16 --dry-run --registry registry --model clicks")]
    Gc(GcArgs),
    /// Keep a version's files whatever gc is told; --remove lets it go
    #[command(after_help = "\
Example: zillion model pin 12 --registry registry --model clicks")]
    Pin(PinArgs),
    /// Write a version as files that other programs open: Parquet, safetensors, ONNX
    #[command(after_help = "\
Example: zillion model export --registry registry --model clicks --output exported
         zillion model export --registry registry --model clicks --version 12 --only rows --output rows-12")]
    Export(super::ExportArgs),
    /// List the nodes of a model: name, shape, operation and inputs
    #[command(after_help = "\
Example: zillion model graph job.toml --train
         zillion model graph job.toml --train --pass all
         zillion model graph runs/clicks --format svg > clicks.svg
         zillion model graph 12 --registry registry --model clicks --format dot | dot -Tpdf > clicks.pdf")]
    Graph(super::GraphArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: String,
    /// The model; absent: all models
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Versions below this one: the next page
    #[arg(long, value_name = "VERSION")]
    pub(crate) before: Option<VersionId>,
    /// Versions of a page
    #[arg(long, default_value = "20")]
    pub(crate) limit: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The version; absent: the newest
    #[arg(long)]
    pub(crate) version: Option<VersionId>,
    /// Show the newest moves of this pointer instead
    #[arg(long, conflicts_with = "version")]
    pub(crate) pointer: Option<String>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// From this version
    pub(crate) from: VersionId,
    /// To this one
    pub(crate) to: VersionId,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PromoteArgs {
    /// The version
    pub(crate) version: VersionId,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The pointer
    #[arg(long, default_value = "stable", value_name = "POINTER")]
    pub(crate) to: String,
    /// Why; kept in the pointer's log
    #[arg(long)]
    pub(crate) note: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The pointer
    #[arg(long, default_value = "stable")]
    pub(crate) pointer: String,
    /// The version to go back to; absent: where the pointer stood before
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<VersionId>,
    /// Why; kept in the pointer's log
    #[arg(long)]
    pub(crate) note: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The version; absent: the newest
    #[arg(long)]
    pub(crate) version: Option<VersionId>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The newest versions that stay, beside those in use
    #[arg(long, default_value = "16")]
    pub(crate) keep: usize,
    /// Seconds after they were written that files are left alone: a publisher may be about to name them
    #[arg(long, default_value = "3600", value_name = "SECONDS")]
    pub(crate) grace: u64,
    /// Count only
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PinArgs {
    /// The version
    pub(crate) version: VersionId,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Let it go
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The version; absent: where the pointer `stable` stands
    #[arg(long)]
    pub(crate) version: Option<VersionId>,
    /// The table
    #[arg(long)]
    pub(crate) table: String,
    /// The id as the data has it
    #[arg(long)]
    pub(crate) key: String,
    /// Take the id as text, as a number, or as the key itself (0x...); absent: as the table's features do
    #[arg(long, value_enum)]
    pub(crate) key_type: Option<KeyType>,
    /// Folder that files are fetched to
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum KeyType {
    I64,
    U64,
    String,
    Hash,
}

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
    /// Let clients load and unload models of the registry (Triton's explicit mode); then --model may be left out
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
    /// Folder that versions are fetched to and merged in; absent: .cache below a local registry, zillion/HASH in the user's cache folder for a remote one
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
    /// Versions that were current before and stay open [default: 8]
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
    /// Connections; more wait to be accepted [default: 1024]
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
    /// Milliseconds that a server that is told to stop goes on to take requests while it says that it is not ready
    /// [default: 0]
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
