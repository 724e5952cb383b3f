//! The definition of the command line. Parsing has no side effects. The module `commands` runs the
//! parsed commands.

mod access;
mod cluster;
mod data;
mod doctor;
mod explain;
mod gpu;
mod importance;
mod job;
mod manual;
mod model;
mod online;
mod predict;
mod ps;
mod publish;
mod quickstart;
mod rows;
mod runs;
mod serve;
mod stream;
mod table;
mod telemetry;
mod tune;

use clap::{Parser, Subcommand};
use zillion_bench::{BenchArgs, LoadgenArgs};

pub(crate) use {
    access::*, cluster::*, data::*, doctor::*, explain::*, gpu::*, importance::*, job::*,
    manual::*, model::*, online::*, predict::*, ps::*, publish::*, quickstart::*, rows::*, runs::*,
    serve::*, stream::*, table::*, telemetry::*, tune::*,
};

/// Trains and serves recommendation models with large sparse embedding tables
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
For check: 0 the job can run, 1 it cannot (also for a wrong job file), 3 it could run, but should not.
Every key of a job can be set with --set a.b=c or ZILLION_A__B=c.";

const CHECK_CODES: &str = "\
Example: zillion check job.toml --set data.root=data
Exit codes: 0 the job can run, 1 it cannot, 3 it could run, but should not (too little memory or disk, or a label
with only one value).";

const TUNE_EXAMPLE: &str = "\
Example: zillion tune job.toml --trials 12
         zillion train runs/tune-clicks/best.toml
The section [tune] of the job names the keys and their ranges. A tune that was stopped goes on with the same command.";

const PREDICT_USAGE: &str = "\
zillion predict [OPTIONS] <CHECKPOINT> <FILE>
       zillion predict [OPTIONS] --registry <URL> --model <NAME> [--version <VERSION>] <FILE>";

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one value in a process")]
pub(crate) enum Command {
    /// Run the whole loop on generated data: train, resume, publish, serve, train on, hot load,
    /// roll back
    #[command(after_help = "\
Example: zillion quickstart --rows 200000 --output runs/quickstart")]
    Quickstart(QuickstartArgs),
    /// Write a commented job file for a file of rows
    #[command(after_help = "\
Example: zillion init clicks.csv --label clicked --out job.toml")]
    Init(InitArgs),
    /// Report the problems and the cost of a job before it runs
    #[command(after_help = CHECK_CODES)]
    Check(CheckArgs),
    /// Train a job, validate each epoch and test the best one
    #[command(after_help = "\
Example: zillion data synth --rows 100000 --out clicks
         zillion init clicks/train.parquet --out job.toml
         zillion train job.toml")]
    Train(TrainArgs),
    /// Train a job with other settings, and find the best ones by successive halving
    #[command(after_help = TUNE_EXAMPLE)]
    Tune(TuneArgs),
    /// Follow streams of events, learn from them, and publish versions until stopped
    #[command(after_help = "\
Example: zillion online job.toml --metrics 127.0.0.1:9091")]
    Online(OnlineArgs),
    /// Show and control the streams of a run that follows them
    #[command(subcommand, arg_required_else_help = true)]
    Stream(StreamCommand),
    /// Score labelled rows with a checkpoint and report the metrics
    #[command(after_help = "\
Example: zillion eval runs/clicks --data clicks/valid.parquet")]
    Eval(EvalArgs),
    /// Measure how much worse a model scores if the values of each feature are permuted
    #[command(after_help = "\
Example: zillion importance runs/clicks clicks/valid.parquet")]
    Importance(ImportanceArgs),
    /// Score rows from a file or stdin with a checkpoint or a published version, and print one line
    /// for each row
    #[command(override_usage = PREDICT_USAGE, after_help = "\
Example: zillion predict runs/clicks rows.csv > scores.csv
         cat rows.csv | zillion predict runs/clicks -
         zillion predict --registry runs/registry --model clicks --version 12 rows.csv")]
    Predict(PredictArgs),
    /// Write one static page about runs: curves, calibration, tables, slices and a comparison
    #[command(after_help = "\
The page is one file without scripts. It needs no server and no network.
Example: zillion board runs/a runs/b --out board.html")]
    Board(BoardArgs),
    /// Compare runs: the settings that differ, and the figures
    #[command(after_help = "\
Example: zillion compare runs/a runs/b")]
    Compare(CompareArgs),
    /// Inspect the tables of a checkpoint, shrink them, or plan their settings
    #[command(subcommand, arg_required_else_help = true)]
    Table(Table),
    /// Publish a checkpoint as a version: a base with all rows, or a delta with the changes since
    /// the previous version
    #[command(after_help = "\
Example: zillion publish runs/clicks --registry runs/registry --model clicks")]
    Publish(PublishArgs),
    /// Serve published versions over HTTP, and follow the registry
    #[command(after_help = "\
Example: zillion serve --registry runs/registry --model clicks --http 127.0.0.1:8080
         curl localhost:8080/v1/models/clicks:predict -d '{\"instances\": [{\"user\": 7, \"item\": 42}]}'")]
    Serve(ServeArgs),
    /// Run servers that hold the tables of a training run in other processes, or show their state
    #[command(subcommand, arg_required_else_help = true)]
    Ps(ParameterService),
    /// Train a job with several servers and trainers on this machine
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(Cluster),
    /// Send rows of a file to a server at a constant rate, measure the response times, and check
    /// the answers
    #[command(after_help = "\
Example: zillion loadgen --registry runs/registry --model clicks --data test.csv --rate 200 --seconds 10 --check
Exit codes: 0 every request was answered (with --check: correctly), 1 otherwise.")]
    Loadgen(LoadgenArgs),
    /// Manage versions of models: list, show, compare, promote, roll back, verify, pin, export,
    /// clean up, or list the nodes of a model
    #[command(subcommand, arg_required_else_help = true)]
    Model(ModelCommand),
    /// Make keys that sign versions, and choose the keys that are trusted
    #[command(subcommand, arg_required_else_help = true)]
    Key(KeyCommand),
    /// Make the tokens by which callers prove their identity to a server
    #[command(subcommand, arg_required_else_help = true)]
    Access(AccessCommand),
    /// Verify the audit logs of servers
    #[command(subcommand, arg_required_else_help = true)]
    Audit(AuditCommand),
    /// Show which version wrote a key's row last, and the values of the row
    #[command(after_help = "\
Example: zillion explain --registry runs/registry --model clicks --table item --key 42")]
    Explain(ExplainArgs),
    /// Inspect, convert, split, filter or generate data, change lists to rows, and add histories
    /// and counters
    #[command(subcommand, arg_required_else_help = true)]
    Data(Data),
    /// Measure the speed of this machine with this build
    #[command(arg_required_else_help = true)]
    Bench(BenchArgs),
    /// Report the properties of this machine that are important for Zillion, and how to improve
    /// them
    #[command(after_help = "\
Example: zillion doctor --dir /var/lib/zillion")]
    Doctor(DoctorArgs),
    /// Check a GPU against the processor
    #[command(subcommand, arg_required_else_help = true)]
    Gpu(GpuCommand),
    /// Print the completions for a shell
    #[command(after_help = "\
Example: zillion completions bash > ~/.local/share/bash-completion/completions/zillion")]
    Completions(CompletionsArgs),
    /// Print the manual as man pages
    #[command(after_help = "\
Example: zillion man --out ~/.local/share/man/man1")]
    Man(ManArgs),
}
