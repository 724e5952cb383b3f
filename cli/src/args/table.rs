//! The arguments of `zillion table`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Subcommand, ValueEnum};

use super::JobArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum Table {
    /// Show the rows and bytes of tables, and the distributions of pushes, ages and norms
    #[command(after_help = "\
Example: zillion table stats runs/clicks --table user")]
    Stats(TablesArgs),
    /// List the rows with the most pushes, the largest norms or the latest pushes, or show the row
    /// of one id
    #[command(after_help = "\
Example: zillion table top runs/clicks --table user --by norm -n 5
         zillion table top runs/clicks --table genres --data train.parquet
         zillion table top runs/clicks --table user --key 42")]
    Top(TableTopArgs),
    /// Show the distribution of pushes, last steps, norms or ages of the rows
    #[command(after_help = "\
Example: zillion table histogram runs/clicks --of norm --svg norms.svg")]
    Histogram(TableHistogramArgs),
    /// Show everything about one key: its row in comparison with other rows, and the effect of
    /// admission and eviction on it
    #[command(after_help = "\
Example: zillion table explain runs/clicks --table user --key 42")]
    Explain(TableExplainArgs),
    /// Write a new checkpoint without the rarely used rows of one table
    #[command(after_help = SHRINK)]
    Shrink(TableShrinkArgs),
    /// Forecast the tables of a job with other settings, from one pass over the data
    #[command(after_help = PLAN)]
    Plan(TablePlanArgs),
}

const SHRINK: &str = "\
Example: zillion table shrink runs/clicks --table user --min-count 3 --out runs/clicks-small --eval test.parquet
         zillion table shrink runs/clicks --table user --keep-rows 1000000 --by norm --dry-run
The new checkpoint can be evaluated, published and trained further (zillion train --from) like any other.";

const PLAN: &str = "\
Example: zillion table plan job.toml --sample day-1.parquet --svg plan.svg
Rows come in the order and the steps of the job. Figures are exact for tables of up to --keys keys. For larger
tables, a sample of the keys is followed and the errors are shown.";

/// The tables of a checkpoint that a command shows, and the form of its output.
#[derive(Debug, clap::Args)]
pub(crate) struct TablesArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Name of a table to show (repeatable); absent: all tables
    #[arg(long)]
    pub(crate) table: Vec<String>,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// The one table of a checkpoint that a command reads, and the form of its output.
#[derive(Debug, clap::Args)]
pub(crate) struct OneTableArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TableTopArgs {
    #[command(flatten)]
    pub(crate) source: OneTableArgs,
    /// Measure by which the rows are sorted; the largest come first
    #[arg(long, value_enum, default_value = "count")]
    pub(crate) by: TopBy,
    /// Number of rows to show
    #[arg(short, value_name = "ROWS", default_value = "20")]
    pub(crate) n: usize,
    /// Id whose row is shown instead of a list: an id as in the data, or a key as 0x and 16 digits
    #[arg(long, value_name = "ID", conflicts_with_all = ["by", "n"], allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// File in which the texts of keys are searched, in the format of the job's data (repeatable;
    /// not needed for integer ids)
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopBy {
    /// Number of pushes of the row
    Count,
    /// L2 norm of the row
    Norm,
    /// Step of the last push
    Recent,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TableHistogramArgs {
    #[command(flatten)]
    pub(crate) source: TablesArgs,
    /// Measure whose distribution is shown
    #[arg(long, value_enum)]
    pub(crate) of: HistogramOf,
    /// Maximum number of ranges in a histogram
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) bins: u16,
    /// SVG file for a plot of the histograms
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HistogramOf {
    /// Number of pushes of the row
    Count,
    /// Step of the last push
    #[value(name = "last_step", alias = "last-step")]
    LastStep,
    /// L2 norm of the row
    Norm,
    /// Steps since the last push
    Age,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TableExplainArgs {
    #[command(flatten)]
    pub(crate) source: OneTableArgs,
    /// Id as in the data, or a key as 0x and 16 digits
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub(crate) key: String,
    /// File in which the text of the key is searched, in the format of the job's data (repeatable;
    /// not needed for integer ids)
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("rule").required(true).args(["keep_rows", "min_count", "unseen_steps", "min_norm"])))]
pub(crate) struct TableShrinkArgs {
    #[command(flatten)]
    pub(crate) source: OneTableArgs,
    /// Folder of the new checkpoint
    #[arg(long, value_name = "FOLDER", required_unless_present = "dry_run")]
    pub(crate) out: Option<PathBuf>,
    /// Number of rows to keep; --by gives their order
    #[arg(long, value_name = "ROWS")]
    pub(crate) keep_rows: Option<u64>,
    /// Measure by which --keep-rows sorts the rows; the largest are kept
    #[arg(long, value_enum, default_value = "count", conflicts_with_all = ["min_count", "unseen_steps", "min_norm"])]
    pub(crate) by: ShrinkBy,
    /// Keep only rows with at least this number of pushes
    #[arg(long, value_name = "PUSHES")]
    pub(crate) min_count: Option<u32>,
    /// Keep only rows whose last push was at most this number of steps ago; the counts of keys
    /// without a row follow the same rule
    #[arg(long, value_name = "STEPS")]
    pub(crate) unseen_steps: Option<u64>,
    /// Keep only rows with at least this L2 norm
    #[arg(long, value_name = "NORM")]
    pub(crate) min_norm: Option<f32>,
    /// Report which rows would be removed, but write no checkpoint
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// File of labelled rows on which both checkpoints are compared (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) eval: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShrinkBy {
    /// Number of pushes; if it is equal, the row with the later push comes first
    Count,
    /// Step of the last push; if it is equal, the row with more pushes comes first
    #[value(name = "last_step", alias = "last-step")]
    LastStep,
    /// L2 norm of the row
    Norm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TablePlanArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Data file to read in the format of the job's data (repeatable); absent: the training data of
    /// the job
    #[arg(long, value_name = "DATA")]
    pub(crate) sample: Vec<PathBuf>,
    /// Number of rows to read, rounded up to complete steps; absent: all rows
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows: Option<u64>,
    /// Maximum number of keys that are counted in each table; each takes about 96 bytes; if there
    /// are more keys, a sample of them is counted
    #[arg(long, default_value = "1048576", value_parser = clap::value_parser!(u32).range(1024..=268_435_456))]
    pub(crate) keys: u32,
    /// SVG file for a plot of the forecasts
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
