//! Arguments of a look into tables.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::table_tools::{TableExplainArgs, TableHistogramArgs, TablePlanArgs, TableShrinkArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct TableArgs {
    #[command(subcommand)]
    pub(crate) what: Table,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Table {
    /// Rows, bytes, and how often, how lately and how far rows have moved
    #[command(after_help = "\
Example: zillion table stats runs/clicks --table user")]
    Stats(TableStatsArgs),
    /// The rows that come most often, have moved furthest or moved last; or the row of one id
    #[command(after_help = "\
Example: zillion table top runs/clicks --table user --by norm -n 5
         zillion table top runs/clicks --table genres --data train.parquet
         zillion table top runs/clicks --table user --key 42")]
    Top(TableTopArgs),
    /// How pushes, last steps, norms or ages are spread over the rows
    #[command(after_help = "\
Example: zillion table histogram runs/clicks --of norm --svg norms.svg")]
    Histogram(TableHistogramArgs),
    /// All that is known of one key: its row among the others, and what admission and eviction will do with it
    #[command(after_help = "\
Example: zillion table explain runs/clicks --table user --key 42")]
    Explain(TableExplainArgs),
    /// Write a checkpoint again without the rows of one table that are hardly used
    #[command(after_help = SHRINK)]
    Shrink(TableShrinkArgs),
    /// What a job's tables would hold under other settings, from one pass over data
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
    /// The table
    #[arg(long)]
    pub(crate) table: String,
    /// What the first rows are first by
    #[arg(long, value_enum, default_value = "count")]
    pub(crate) by: TopBy,
    /// Rows to show
    #[arg(short, value_name = "ROWS", default_value = "20")]
    pub(crate) n: usize,
    /// One id instead, with its whole row: an id as the data has it, or a key as 0x and 16 digits
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
    /// Pushes
    Count,
    /// L2 norm of the row
    Norm,
    /// Step of the last push
    Recent,
}
