//! The arguments of `zillion model`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use zillion_registry::VersionId;

use super::{JobArgs, OperatorArgs, TrustArgs};
use crate::moment::Moment;

/// The registry and the name of a model.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelRef {
    /// URL of the registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: String,
    /// Name of the model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// List a registry's models, or a model's versions, the newest first
    #[command(after_help = "\
Example: zillion model list --registry runs/registry --model clicks --limit 20")]
    List(ListArgs),
    /// Show a version, or the newest moves of a pointer
    #[command(after_help = "\
Example: zillion model show 12 --registry runs/registry --model clicks")]
    Show(ShowArgs),
    /// Compare two versions: rows, dense parameters, graph, metrics
    #[command(after_help = "\
Example: zillion model diff 11 12 --registry runs/registry --model clicks")]
    Diff(DiffArgs),
    /// Move a pointer to a version
    #[command(after_help = "\
Example: zillion model promote 12 --to stable --registry runs/registry --model clicks
         zillion model promote 12 --registry runs/registry --model clicks --sign release.key --valid-for 30d")]
    Promote(PromoteArgs),
    /// Move a pointer back to its previous version, or to a given version
    #[command(after_help = "\
Example: zillion model rollback --pointer stable --registry runs/registry --model clicks")]
    Rollback(RollbackArgs),
    /// Take a version and all that build on it out of use; pointers on them move back
    #[command(after_help = "\
Example: zillion model quarantine 12 --reason 'flipped labels' --registry runs/registry --model clicks
         zillion model quarantine 12 --lift --reason 'false alarm' --registry runs/registry --model clicks")]
    Quarantine(QuarantineArgs),
    /// Rewind an online run to a version; later versions go into quarantine
    #[command(after_help = "\
Example: zillion model rewind job.toml --to-version 12 --reason 'wrong labels since noon' --dry-run
         zillion model rewind job.toml --to-time 2026-03-01T12:00:00Z --reason 'wrong labels' --yes
The consequences are printed first. A live run acts within a second, a stopped one is rewound at once.")]
    Rewind(RewindArgs),
    /// List the moves of a pointer, the newest first: who, when, from, to, kind, reason
    #[command(after_help = "\
Example: zillion model log --pointer stable --limit 50 --registry runs/registry --model clicks")]
    Log(LogArgs),
    /// Read and verify all files of a version and of its ancestors
    #[command(after_help = "\
Example: zillion model verify 12 --registry runs/registry --model clicks")]
    Verify(VerifyArgs),
    /// Remove the files that no version in use needs
    #[command(after_help = "\
Example: zillion model gc --keep 16 --dry-run --registry runs/registry --model clicks
         zillion model gc --keep 1000 --keep-for 86400 --history --registry runs/registry --model clicks")]
    Gc(GcArgs),
    /// Protect the files of a version from gc; --remove ends the protection
    #[command(after_help = "\
Example: zillion model pin 12 --registry runs/registry --model clicks")]
    Pin(PinArgs),
    /// Write a version as files that other programs can open: Parquet, safetensors, ONNX
    #[command(after_help = "\
Example: zillion model export --registry runs/registry --model clicks --output exported
         zillion model export --registry runs/registry --model clicks 12 --only rows --output rows-12")]
    Export(ExportArgs),
    /// List the nodes of a model: name, shape, operation and inputs
    #[command(after_help = "\
Example: zillion model graph job.toml --train
         zillion model graph job.toml --train --pass all
         zillion model graph runs/clicks --format svg > clicks.svg
         zillion model graph 12 --registry runs/registry --model clicks --format dot | dot -Tpdf > clicks.pdf")]
    Graph(GraphArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// URL of the registry: a folder, file:///..., s3://BUCKET/PREFIX, gs://... or az://...
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: String,
    /// Name of the model whose versions are listed; absent: list the models
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// List only versions with a smaller number than this, for example to get the next page
    #[arg(long, value_name = "VERSION")]
    pub(crate) before: Option<VersionId>,
    /// Maximum number of versions to list
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
    /// Number of the version; absent: the newest
    #[arg(value_name = "VERSION", conflicts_with = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    /// Pointer whose newest moves are shown instead of a version
    #[arg(long, conflicts_with_all = ["number", "version"])]
    pub(crate) pointer: Option<String>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// Number of the first version
    pub(crate) from: VersionId,
    /// Number of the second version, which is compared with the first one
    pub(crate) to: VersionId,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PromoteArgs {
    /// Number of the version
    #[arg(value_name = "VERSION", conflicts_with = "version", required_unless_present = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Name of the pointer to move
    #[arg(long, default_value = "stable", value_name = "POINTER")]
    pub(crate) to: String,
    /// Reason for the move, which is written to the log of the pointer
    #[arg(long)]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Name of the pointer to move
    #[arg(long, default_value = "stable")]
    pub(crate) pointer: String,
    /// Version to which the pointer moves; absent: the version to which it pointed before
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<VersionId>,
    /// Reason for the move, which is written to the log of the pointer
    #[arg(long)]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QuarantineArgs {
    /// Number of the version
    #[arg(value_name = "VERSION", conflicts_with = "version", required_unless_present = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Reason, which is written to the log of each pointer
    #[arg(long)]
    pub(crate) reason: String,
    /// End the quarantine of the version; no pointer moves
    #[arg(long)]
    pub(crate) lift: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RewindArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Number of the last good version
    #[arg(long, value_name = "VERSION", required_unless_present = "to_time")]
    pub(crate) to_version: Option<VersionId>,
    /// Time of the last good version: the newest one that was published at or before it, as in
    /// 2026-03-01T12:00:00Z or in milliseconds since 1970
    #[arg(long, value_name = "TIME", conflicts_with = "to_version")]
    pub(crate) to_time: Option<Moment>,
    /// Reason, which is written to the log of decisions and to the log of each pointer
    #[arg(long)]
    pub(crate) reason: String,
    /// Rewind the run; without this option, the consequences are only printed
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
pub(crate) struct LogArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Name of the pointer
    #[arg(long, default_value = "stable")]
    pub(crate) pointer: String,
    /// List only moves with a smaller number than this, for example to get the next page
    #[arg(long, value_name = "NUMBER")]
    pub(crate) before: Option<u64>,
    /// Maximum number of moves to list
    #[arg(long, default_value = "20")]
    pub(crate) limit: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Number of the version; absent: the newest
    #[arg(value_name = "VERSION", conflicts_with = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Number of the newest versions whose files are kept, in addition to the versions in use
    #[arg(long, default_value = "16")]
    pub(crate) keep: usize,
    /// Seconds during which a new file is kept, because a running publish may need it
    #[arg(long, default_value = "3600", value_name = "SECONDS")]
    pub(crate) grace: u64,
    /// Seconds during which a new version is in use, even if it is not one of the newest
    #[arg(long, default_value = "0", value_name = "SECONDS")]
    pub(crate) keep_for: u64,
    /// Remove the manifests of versions out of use too, and the moves of pointers except the newest
    /// ones, as many as --keep says
    #[arg(long)]
    pub(crate) history: bool,
    /// Report what would be removed without removing it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PinArgs {
    /// Number of the version
    #[arg(value_name = "VERSION", conflicts_with = "version", required_unless_present = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Remove the pin, so that gc may remove the files
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Number of the version; absent: the one that the pointer names
    #[arg(value_name = "VERSION", conflicts_with_all = ["version", "pointer"])]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, conflicts_with = "pointer", value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    /// Pointer that names the version
    #[arg(long, default_value = "stable")]
    pub(crate) pointer: String,
    /// Folder for the files, which is created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// Part of the version to write (repeatable); absent: the whole version
    #[arg(long, value_enum)]
    pub(crate) only: Vec<ExportPart>,
    /// Write into a folder that is not empty, and replace files with the same names
    #[arg(long)]
    pub(crate) force: bool,
    /// Folder for the files that are fetched and merged; absent: .cache below a local registry,
    /// zillion/HASH in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the description of the export as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportPart {
    /// The rows of the tables as Parquet files, and the side tables
    Rows,
    /// The dense parameters as a safetensors file
    Dense,
    /// The dense graph as an ONNX file
    Graph,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GraphArgs {
    /// Job file, or the folder of a run or a checkpoint, or with --model the number of a version
    pub(crate) job: PathBuf,
    /// Override a key of the job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Show the training graph, with the loss and the gradients
    #[arg(long)]
    pub(crate) train: bool,
    /// Format of a list with the bytes and the floating-point operations of a batch; absent: a
    /// plain list of the nodes
    #[arg(long, value_enum)]
    pub(crate) format: Option<GraphFormat>,
    /// Pass whose effect on the graph is shown, or `all` for every pass; the pass in_place changes
    /// only the buffers, so their bytes are shown
    #[arg(long, value_name = "PASS")]
    pub(crate) pass: Option<String>,
    /// Number of rows of the batch for which bytes and operations are counted; absent: the batch
    /// size of the job
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<NonZeroUsize>,
    /// Number of values in each list when bytes and operations are counted
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "model")]
    pub(crate) list_len: NonZeroUsize,
    /// Name of the model that the version belongs to
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// URL of the registry that has the model
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Text with one line for each node
    Text,
    /// Text in the language of Graphviz
    Dot,
    /// Picture that a browser can show
    Svg,
}
