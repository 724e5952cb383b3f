//! The arguments of `zillion data`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use zillion_feature::DateOrder;
use zillion_reader::ColumnType;

use super::{CountersArgs, ExplodeArgs, FilterArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Describe the columns of files, and compare two sets of files
    #[command(after_help = "\
Example: zillion data inspect train.parquet --against test.parquet")]
    Inspect(InspectArgs),
    /// Convert data files to Parquet or Arrow; a killed conversion continues when the command is
    /// started again
    #[command(after_help = "\
Example: zillion data convert 'logs/*.csv.gz' --output clicks --type zip=string
         zillion data convert day_0.tsv --job job.toml --output day_0.arrow")]
    Convert(ConvertArgs),
    /// Cut data into parts, such as training, validation and test, as Parquet files
    #[command(after_help = "\
Without --by-time or --by-group, the part of each row is drawn at random. The same seed gives the same parts.
Example: zillion data split clicks.csv --out clicks
         zillion data split clicks.csv --out clicks --by-group user
         zillion data split clicks.csv --out clicks --by-time day --parts train=0.9,valid=0.05,test=0.05")]
    Split(SplitArgs),
    /// Change lists to rows, such as a list of shown items to one row for each impression
    #[command(after_help = "\
The other columns of a row are repeated for each element.
Example: zillion data explode sessions.parquet --columns items,clicks --position position --out impressions")]
    Explode(ExplodeArgs),
    /// Select rows by a condition, and by the number of rows of their ids
    #[command(after_help = "\
A comparison with a missing value is not true. Texts stand between single quotes, names with spaces between double
quotes. Dates and timestamps are compared with texts such as '2026-03-01' or '2026-03-01 12:00:00' in UTC.
Example: zillion data filter clicks.csv --where \"clicks >= 1 and country = 'DE'\" --out german
         zillion data filter clicks.csv --min-count user_id=5 --min-count item_id=5 --out frequent")]
    Filter(FilterArgs),
    /// Add recent counts and rates of ids, such as the click rate of an item in the last seven days
    #[command(after_help = "\
A row counts only rows with an earlier time, so it never sees its own label or a later one.
The new columns are COLUMN_rows_WINDOW, COLUMN_positives_WINDOW and COLUMN_rate_WINDOW. A rate is
(positives + smoothing * base) / (rows + smoothing).
Example: zillion data counters train.parquet test.parquet --by item_id,user_id --time timestamp \\
             --positive click --windows 1d,7d --lag 1h --out with-counters")]
    Counters(CountersArgs),
    /// Add a list column to Parquet files: for each row, the earlier items of the same user
    #[command(after_help = "\
Example: zillion data history --by user_id --of item_id --time timestamp --when label=1 \\
             --last 50 --in train.parquet,valid.parquet,test.parquet --out with-histories")]
    History(HistoryArgs),
    /// Make rows from the sequence of each user, with the next item as the target (leave one out)
    #[command(after_help = "\
Writes train.parquet, valid.parquet and test.parquet with the columns BY, history and item. The last item of
a sequence is the target in test, the item before it in valid, and every earlier item but the first in train.
Example: zillion data next-item --in sequences.parquet --by user_id --items items --out beauty")]
    NextItem(NextItemArgs),
    /// Write a synthetic click log with the columns of Criteo as three Parquet files: train, valid
    /// and test
    #[command(after_help = "\
Example: zillion data synth --rows 1000000 --out clicks")]
    Synth(SynthArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Files, folders or globs to describe
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Read text files with the settings of this job; absent: delimiter, quotes and null markers
    /// are guessed
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Second set of files; the report then shows how it differs from the first set
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) against: Vec<String>,
    /// Number of rows to read from each set of files; absent: all rows
    #[arg(long)]
    pub(crate) rows: Option<u64>,
    /// Number of the most frequent values to show for each column
    #[arg(long, default_value = "5")]
    pub(crate) top: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SplitArgs {
    /// Files, folders or globs, in the order of their rows
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) input: Vec<String>,
    /// Folder for the new files, which have the names of the parts
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Names of the parts, each with its fraction of the rows
    #[arg(
        long,
        value_name = "NAME=FRACTION",
        value_delimiter = ',',
        value_parser = parse_part,
        default_value = "train=0.8,valid=0.1,test=0.1"
    )]
    pub(crate) parts: Vec<(String, f64)>,
    /// Split by this column: the rows with the smallest values go to the first part
    #[arg(long, value_name = "COLUMN", conflicts_with = "by_group")]
    pub(crate) by_time: Option<String>,
    /// Order of day and month in dates such as 01.02.2024
    #[arg(long, value_enum, value_name = "ORDER", requires = "by_time")]
    pub(crate) date_order: Option<DateOrderKind>,
    /// Keep all rows with the same value in this column, such as the user's id, in one part
    #[arg(long, value_name = "COLUMN")]
    pub(crate) by_group: Option<String>,
    /// Seed of the random draws
    #[arg(long, default_value = "1", conflicts_with = "by_time")]
    pub(crate) seed: u64,
    /// Replace existing files of the parts
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Maximum number of bad rows that are left out; one more bad row is an error
    #[arg(long, value_name = "ROWS", default_value = "0")]
    pub(crate) max_bad_rows: u64,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a part such as `train=0.8`.
fn parse_part(text: &str) -> Result<(String, f64), String> {
    let (name, fraction) = text.split_once('=').ok_or("write a part as NAME=FRACTION")?;
    let fraction = fraction
        .parse()
        .map_err(|_| format!("`{fraction}` is not a number; write a fraction such as 0.9"))?;
    Ok((name.to_owned(), fraction))
}

/// The order of day and month in dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DateOrderKind {
    /// The day comes first, as in 31.12.2024
    #[value(name = "day_first")]
    DayFirst,
    /// The month comes first, as in 12/31/2024
    #[value(name = "month_first")]
    MonthFirst,
}

impl DateOrderKind {
    pub(crate) fn order(self) -> DateOrder {
        match self {
            Self::DayFirst => DateOrder::DayFirst,
            Self::MonthFirst => DateOrder::MonthFirst,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Column whose value names the group of a row, such as the user's id
    #[arg(long, value_name = "COLUMN")]
    pub(crate) by: String,
    /// Column with the items that the history lists
    #[arg(long, value_name = "COLUMN")]
    pub(crate) of: String,
    /// Column with the time of a row: whole numbers, dates or timestamps
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: String,
    /// Order of day and month in dates such as 01.02.2024
    #[arg(long, value_enum, value_name = "ORDER")]
    pub(crate) date_order: Option<DateOrderKind>,
    /// Put only rows with this value into histories, as in --when label=1 (repeatable; a row must
    /// have all values)
    #[arg(long, value_name = "COLUMN=VALUE", value_parser = parse_condition)]
    pub(crate) when: Vec<(String, String)>,
    /// Maximum number of items in a history; the most recent items are kept
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) last: NonZeroUsize,
    /// Age in units of the time column; items of this age or less are left out of a history; 0
    /// leaves out only the items with the same time as the row
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub(crate) lag: u64,
    /// Name of the new column
    #[arg(long, value_name = "COLUMN", default_value = "history")]
    pub(crate) name: String,
    /// Parquet files, folders or globs, which are read as one timeline
    #[arg(long = "in", value_name = "FILE", required = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) input: Vec<String>,
    /// Folder for the new files, which keep their names
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Replace existing files in the folder
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NextItemArgs {
    /// Column with the owner of each sequence, such as the user's id
    #[arg(long, value_name = "COLUMN")]
    pub(crate) by: String,
    /// Column with the sequences: lists of items, the oldest item first
    #[arg(long, value_name = "COLUMN")]
    pub(crate) items: String,
    /// Maximum number of earlier items in a row; the most recent items are kept
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) last: NonZeroUsize,
    /// Parquet files, folders or globs to read
    #[arg(long = "in", value_name = "FILE", required = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) input: Vec<String>,
    /// Folder for the three new files
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Replace existing files in the folder
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// Total number of rows: eight tenths for training, one tenth for validation, one tenth for the
    /// test
    #[arg(long, default_value = "200000", value_parser = clap::value_parser!(u64).range(10..))]
    pub(crate) rows: u64,
    /// Folder for the three files
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Seed of the data
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_condition(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, value)) if !column.is_empty() => Ok((column.to_owned(), value.to_owned())),
        _ => Err("write a condition as COLUMN=VALUE".to_owned()),
    }
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReadArgs {
    /// Read text files with the settings of this job, and take the types of the columns from it
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Override a key of [data], as in --set data.delimiter=; (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Type of a column of a text file (repeatable): int64, uint64, float, string, label,
    /// list<int64>, list<uint64>, list<string>; absent: the type in the job, or a guess from the
    /// first rows
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = parse_type)]
    pub(crate) types: Vec<(String, ColumnType)>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Files, folders or globs, in the order of their rows
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) input: Vec<String>,
    /// Folder for the parts, or one file if the name ends in .parquet or .arrow
    #[arg(long, value_name = "FOLDER|FILE")]
    pub(crate) output: PathBuf,
    /// Format of the output; absent: the format that the name of the output file shows, otherwise
    /// Parquet
    #[arg(long, value_enum)]
    pub(crate) to: Option<ConvertKind>,
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Maximum number of bad rows that are left out; one more bad row is an error
    #[arg(long, value_name = "ROWS", default_value = "0")]
    pub(crate) max_bad_rows: u64,
    /// File for the rows that are left out, one JSON object on each line
    #[arg(long, value_name = "FILE", requires = "max_bad_rows")]
    pub(crate) rejects: Option<PathBuf>,
    /// Number of input rows for each part in a folder; absent: 1,048,576; a conversion that is
    /// killed keeps its complete parts
    #[arg(long, value_name = "ROWS")]
    pub(crate) part_rows: Option<NonZeroU64>,
    /// Number of rows in a row group (Parquet) or a record batch (Arrow)
    #[arg(long, value_name = "ROWS", default_value = "65536")]
    pub(crate) group_rows: NonZeroUsize,
    /// Start from the beginning, and replace files in the output that another conversion or program
    /// wrote
    #[arg(long)]
    pub(crate) force: bool,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertKind {
    /// Parquet files, compressed with zstd
    Parquet,
    /// Arrow IPC files, also known as Feather V2
    Arrow,
}

fn parse_type(text: &str) -> Result<(String, ColumnType), String> {
    match text.rsplit_once('=') {
        Some((column, of)) if !column.is_empty() => Ok((column.to_owned(), of.parse()?)),
        _ => Err("write a type as COLUMN=TYPE".to_owned()),
    }
}
