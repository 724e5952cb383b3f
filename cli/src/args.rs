//! The command line. Parsing has no side effects; `commands` resolves and acts.

mod first_run;
mod look;
mod table;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use first_run::{
    CheckArgs, CompletionsArgs, Data, DataArgs, HistoryArgs, InitArgs, InspectArgs, ManArgs,
    NextItemArgs, QuickstartArgs, SynthArgs,
};
pub(crate) use look::{FetchArgs, GraphArgs, Model, ModelArgs};
pub(crate) use table::{Table, TableArgs, TableStatsArgs, TableTopArgs, TopBy};

/// Trains and serves recommendation models whose weight is in sparse embedding tables.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate a click log, train on it, interrupt and resume, test: no data needed
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
    /// Score rows from a file or stdin through a checkpoint, one line a row
    #[command(after_help = "\
Example: zillion predict runs/frappe-deepfm rows.csv > scores.csv
         cat rows.csv | zillion predict runs/frappe-deepfm -")]
    Predict(PredictArgs),
    /// Look into the tables of a checkpoint
    #[command(arg_required_else_help = true)]
    Table(TableArgs),
    /// Look into a model
    #[command(arg_required_else_help = true)]
    Model(ModelArgs),
    /// Look into data, or make some
    #[command(arg_required_else_help = true)]
    Data(DataArgs),
    /// Measure this machine and this build
    #[command(arg_required_else_help = true)]
    Bench(BenchArgs),
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
    /// Print the job with every default and override, and stop
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    /// Print values of nodes every N steps
    #[arg(long, value_name = "N", default_value = "1", requires = "fetch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) fetch_every: u64,
    /// Pause after each step: loss, gradient norms, the rows with the largest loss
    #[arg(long)]
    pub(crate) step: bool,
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

#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// File of rows, or - for stdin
    pub(crate) input: String,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    /// How stdin is written (a file's ending says it)
    #[arg(long, value_enum, default_value = "csv")]
    pub(crate) format: StdinFormat,
    /// Override a key of the checkpoint's job, as in --set data.delimiter=';' (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one JSON object a row instead of a line of probabilities
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StdinFormat {
    Csv,
    Tsv,
    Jsonl,
    Libsvm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Rows pulled and pushed a second, beside the limits of this machine's memory
    #[command(after_help = "\
Example: zillion bench embedding --rows 10000000 --dim 16 --threads 1 --json")]
    Embedding(BenchEmbeddingArgs),
    /// Rows read a second from a file: decoded to columns, and put together as batches
    #[command(after_help = "\
Example: zillion bench reader --data train.parquet --threads 1 --json")]
    Reader(BenchReaderArgs),
    /// Samples trained a second from Criteo-shaped Parquet, with the test AUC of the same run
    #[command(after_help = "\
Example: zillion bench train --model deepfm --data criteo_like.parquet --threads 2 --json")]
    Train(BenchTrainArgs),
    /// Train the job files of examples/frappe and print their AUCs beside the published ones
    #[command(after_help = "\
Example: zillion bench frappe --root ../shared/data/frappe_x1r --seeds 5")]
    Frappe(BenchFrappeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchEmbeddingArgs {
    /// Rows of the table
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Floats a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Seconds that each figure is measured for
    #[arg(long, default_value = "2")]
    pub(crate) seconds: f64,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchReaderArgs {
    /// A file, folder or glob
    #[arg(long)]
    pub(crate) data: String,
    /// The job whose columns are read; absent: what `init` would draft for the file
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// How often each figure is taken; the median is reported
    #[arg(long, default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchTrainArgs {
    /// Model
    #[arg(long, value_enum, default_value = "deepfm")]
    pub(crate) model: BenchModel,
    /// Criteo-shaped Parquet: label, I1..I13, C1..C26; the last fifth of the rows is the test set
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// Compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Override a key of the benchmark's job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BenchModel {
    Deepfm,
    Dcnv2,
    Dlrm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchFrappeArgs {
    /// Folder of the data set
    #[arg(long)]
    pub(crate) root: PathBuf,
    /// Folder of the job files
    #[arg(long, default_value = "examples/frappe")]
    pub(crate) jobs: PathBuf,
    /// Seeds of FM, Wide&Deep and DeepFM; the other models are run once
    #[arg(long, default_value = "5")]
    pub(crate) seeds: u64,
    /// Only this job file (its name without .toml; repeatable)
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON a run on stdout instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}
