//! The arguments of `zillion table`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Subcommand, ValueEnum};

use super::JobArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct TableArgs {
    #[command(subcommand)]
    pub(crate) what: Table,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Table {
    /// Show rows and bytes, and how often, how recently and how far rows have moved
    #[command(after_help = "\
Example: zillion table stats runs/clicks --table user")]
    Stats(TableStatsArgs),
    /// List the rows with the most pushes, the largest norms or the latest pushes; or show the row
    /// of one id
    #[command(after_help = "\
Example: zillion table top runs/clicks --table user --by norm -n 5
         zillion table top runs/clicks --table genres --data train.parquet
         zillion table top runs/clicks --table user --key 42")]
    Top(TableTopArgs),
    /// Show how pushes, last steps, norms or ages are spread over the rows
    #[command(after_help = "\
Example: zillion table histogram runs/clicks --of norm --svg norms.svg")]
    Histogram(TableHistogramArgs),
    /// Show all that is known of one key: its row compared with the others, and what admission and
    /// eviction will do with it
    #[command(after_help = "\
Example: zillion table explain runs/clicks --table user --key 42")]
    Explain(TableExplainArgs),
    /// Write a checkpoint again without the rows of one table that are hardly used
    #[command(after_help = SHRINK)]
    Shrink(TableShrinkArgs),
    /// Forecast a job's tables under other settings, from one pass over data
    #[command(after_help = PLAN)]
    Plan(TablePlanArgs),
}

const SHRINK: &str = "\
Example: zillion table shrink runs/clicks --table user --min-count 3 --out runs/clicks-small --eval test.parquet
         zillion table shrink runs/clicks --table user --keep-rows 1000000 --by norm --dry-run
The new checkpoint is evaluated, published and trained on (zillion train --from) like any other.";

const PLAN: &str = "\
Example: zillion table plan job.toml --sample day-1.parquet --svg plan.svg
Rows come in the job's order and steps. Figures are exact for tables of up to --keys keys; of larger ones a
sample of the keys is followed and the errors are said.";

#[derive(Debug, clap::Args)]
pub(crate) struct TableStatsArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Only this table (repeatable); absent: all
    #[arg(long)]
    pub(crate) table: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TableTopArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// Order of the rows: the largest come first
    #[arg(long, value_enum, default_value = "count")]
    pub(crate) by: TopBy,
    /// Number of rows to show
    #[arg(short, value_name = "ROWS", default_value = "20")]
    pub(crate) n: usize,
    /// Show the whole row of one id instead: an id as the data has it, or a key as 0x and 16 digits
    #[arg(long, value_name = "ID", conflicts_with_all = ["by", "n"], allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// Files to find the texts of keys in, read as the job says (integer ids need none)
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Only this table (repeatable); absent: all
    #[arg(long)]
    pub(crate) table: Vec<String>,
    /// Measure whose distribution over the rows is shown
    #[arg(long, value_enum)]
    pub(crate) of: HistogramOf,
    /// Largest number of ranges
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) bins: u16,
    /// Write a plot too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// An id as the data has it, or a key as 0x and 16 digits
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub(crate) key: String,
    /// Files to find the text of a key in, read as the job says (integer ids need none)
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("rule").required(true).args(["keep_rows", "min_count", "unseen_steps", "min_norm"])))]
pub(crate) struct TableShrinkArgs {
    /// Checkpoint folder, or a run's folder (its best epoch is taken)
    pub(crate) checkpoint: PathBuf,
    /// Folder of the new checkpoint
    #[arg(long, value_name = "FOLDER", required_unless_present = "dry_run")]
    pub(crate) out: Option<PathBuf>,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// Keep this many rows, the first in the order of --by
    #[arg(long, value_name = "ROWS")]
    pub(crate) keep_rows: Option<u64>,
    /// Order of the rows for --keep-rows: the largest stay
    #[arg(long, value_enum, default_value = "count", conflicts_with_all = ["min_count", "unseen_steps", "min_norm"])]
    pub(crate) by: ShrinkBy,
    /// Keep rows with at least this many pushes
    #[arg(long, value_name = "PUSHES")]
    pub(crate) min_count: Option<u32>,
    /// Keep rows (and keys that wait for one) whose last push is at most this many steps ago
    #[arg(long, value_name = "STEPS")]
    pub(crate) unseen_steps: Option<u64>,
    /// Keep rows with at least this L2 norm
    #[arg(long, value_name = "NORM")]
    pub(crate) min_norm: Option<f32>,
    /// Only report what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Score these labelled rows through both checkpoints and compare (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) eval: Vec<PathBuf>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShrinkBy {
    /// Pushes; among rows with the same number, the row that was pushed last is kept first
    Count,
    /// Step of the last push; among rows with the same step, the row with more pushes is kept first
    #[value(name = "last_step", alias = "last-step")]
    LastStep,
    /// L2 norm of the row
    Norm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TablePlanArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Files to go over, read as the job says (repeatable); absent: the job's training data
    #[arg(long, value_name = "DATA")]
    pub(crate) sample: Vec<PathBuf>,
    /// Stop after the step that contains this row; absent: at the end
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows: Option<u64>,
    /// Keys that are followed in each table, about 96 bytes each; if there are more keys, a sample
    /// of them is followed
    #[arg(long, default_value = "1048576", value_parser = clap::value_parser!(u32).range(1024..=268_435_456))]
    pub(crate) keys: u32,
    /// Write a plot too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
