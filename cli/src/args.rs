//! The command line. Parsing has no side effects; `commands` resolves and acts.

mod convert;
mod export;
mod first_run;
mod look;
mod predict;
mod registry;
mod table;
mod table_tools;
mod telemetry;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use zillion_bench::{BenchArgs, LoadgenArgs};
use zillion_console::profile::ProfileArgs;

pub(crate) use convert::{ConvertArgs, ConvertKind};
pub(crate) use export::{ExportArgs, ExportPart};
pub(crate) use first_run::{
    CheckArgs, CompletionsArgs, Data, DataArgs, DoctorArgs, HistoryArgs, InitArgs, InspectArgs,
    ManArgs, NextItemArgs, QuickstartArgs, SynthArgs,
};
pub(crate) use look::{FetchArgs, GraphArgs, GraphFormat};
pub(crate) use predict::{PredictArgs, StdinFormat};
pub(crate) use registry::{
    DiffArgs, ExplainArgs, GcArgs, KeyType, ListArgs, ModelArgs, ModelCommand, ModelRef, PinArgs,
    PromoteArgs, PublishArgs, RollbackArgs, ServeArgs, ShowArgs, VerifyArgs,
};
pub(crate) use table::{Table, TableArgs, TableStatsArgs, TableTopArgs, TopBy};
pub(crate) use table_tools::{
    HistogramOf, ShrinkBy, TableExplainArgs, TableHistogramArgs, TablePlanArgs, TableShrinkArgs,
};
pub(crate) use telemetry::{LogFormat, TelemetryArgs};

/// Trains and serves recommendation models whose weight is in sparse embedding tables.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 usage (command line or job file), 3 refused by a guard.
Of check: 0 it can run, 1 it cannot (a wrong job file included), 3 it can but should not.
Every key of a job can be set with --set a.b=c or ZILLION_A__B=c.";

const CHECK_CODES: &str = "\
Example: zillion check job.toml --set data.root=data
Exit codes: 0 it can run, 1 it cannot, 3 it can but should not (memory, disk, a label without two values).";

const PREDICT_USAGE: &str = "\
zillion predict [OPTIONS] <CHECKPOINT> <FILE>
       zillion predict [OPTIONS] --registry <URL> --model <NAME> [--version <VERSION>] <FILE>";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The whole loop on data that it makes: train, resume, publish, serve, train on, hot load, roll back
    #[command(after_help = "\
Example: zillion quickstart --rows 200000 --output runs/quickstart")]
    Quickstart(QuickstartArgs),
    /// Write a commented job file for a file of rows
    #[command(after_help = "\
Example: zillion init clicks.csv --label clicked --out job.toml")]
    Init(InitArgs),
    /// Say what would go wrong with a job and what it will cost, before it runs
    #[command(after_help = CHECK_CODES)]
    Check(CheckArgs),
    /// Train a job, validate each epoch, test the best one
    #[command(after_help = "\
Example: zillion train examples/frappe/job.toml --set data.root=../shared/data/frappe_x1r")]
    Train(TrainArgs),
    /// Score labelled rows through a checkpoint and report the metrics
    #[command(after_help = "\
Example: zillion eval runs/frappe-deepfm --data ../shared/data/frappe_x1r/valid.parquet")]
    Eval(EvalArgs),
    /// Score rows from a file or stdin through a checkpoint or a published version, one line a row
    #[command(override_usage = PREDICT_USAGE, after_help = "\
Example: zillion predict runs/frappe-deepfm rows.csv > scores.csv
         cat rows.csv | zillion predict runs/frappe-deepfm -
         zillion predict --registry registry --model clicks --version 12 rows.csv")]
    Predict(PredictArgs),
    /// Look into the tables of a checkpoint
    #[command(arg_required_else_help = true)]
    Table(TableArgs),
    /// Publish a checkpoint as a version: a base, or what changed since the version before
    #[command(after_help = "\
Example: zillion publish runs/clicks --registry registry --model clicks")]
    Publish(PublishArgs),
    /// Serve published versions over HTTP, and follow the registry
    #[command(after_help = "\
Example: zillion serve --registry registry --model clicks --http 127.0.0.1:8080
         curl localhost:8080/v1/models/clicks:predict -d '{\"instances\": [{\"user\": 7, \"item\": 42}]}'")]
    Serve(ServeArgs),
    /// Send rows of a file to a server at a constant rate, measure, and check the answers
    #[command(after_help = "\
Example: zillion loadgen --registry registry --model clicks --data test.csv --rate 200 --seconds 10 --check
Exit codes: 0 every answer was there (and right, with --check), 1 not.")]
    Loadgen(LoadgenArgs),
    /// Versions of models: list, show, compare, promote, roll back, verify, clean up; a model's nodes
    #[command(arg_required_else_help = true)]
    Model(ModelArgs),
    /// Where a key's row in a version comes from, and what it holds
    #[command(after_help = "\
Example: zillion explain --registry registry --model clicks --table item --key 42")]
    Explain(ExplainArgs),
    /// Look into data, or make some
    #[command(arg_required_else_help = true)]
    Data(DataArgs),
    /// Measure this machine and this build
    #[command(arg_required_else_help = true)]
    Bench(BenchArgs),
    /// Say what this machine gives Zillion, and with what it would do better
    #[command(after_help = "\
Example: zillion doctor --dir /var/lib/zillion")]
    Doctor(DoctorArgs),
    /// Print a shell's completions
    #[command(after_help = "\
Example: zillion completions bash > ~/.local/share/bash-completion/completions/zillion")]
    Completions(CompletionsArgs),
    /// Print the manual as man pages
    #[command(after_help = "\
Example: zillion man --out ~/.local/share/man/man1")]
    Man(ManArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Job file
    pub(crate) job: PathBuf,
    /// Override a key of the job, as in --set train.epochs=3 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Go on from the newest checkpoint in run.output (begin if there is none)
    #[arg(long)]
    pub(crate) resume: bool,
    /// Begin a new run from this checkpoint or run: its rows and parameters, other data
    #[arg(long, value_name = "FOLDER")]
    pub(crate) from: Option<PathBuf>,
    /// Print the job with every default and override, and stop
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    /// Print values of nodes every N steps
    #[arg(long, value_name = "N", default_value = "1", requires = "fetch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) fetch_every: u64,
    /// Pause after each step: loss, gradient norms, the rows with the largest loss
    #[arg(long)]
    pub(crate) step: bool,
    /// Serve /metrics for Prometheus here while it trains; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvalArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Files to score; absent: the test files of the job
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<String>,
    /// Refuse the checkpoint unless it belongs to this job
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Override a key of the checkpoint's job, as in --set data.root=... (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the report as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
