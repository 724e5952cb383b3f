//! The arguments of the commands of `zillion data` that rewrite files row by row.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use zillion_datatools::{Condition, Span};
use zillion_feature::TimeUnit;
use zillion_rows::ByteSize;

use super::{DateOrderKind, ReadArgs};

/// The files of a command that rewrites them row by row.
#[derive(Debug, clap::Args)]
pub(crate) struct RowFilesArgs {
    /// Files, folders or globs, in the order of their rows
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) input: Vec<String>,
    /// Folder for the new files, which have the names of the inputs and the ending .parquet
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Replace existing files in the folder
    #[arg(long)]
    pub(crate) overwrite: bool,
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

#[derive(Debug, clap::Args)]
pub(crate) struct ExplodeArgs {
    #[command(flatten)]
    pub(crate) files: RowFilesArgs,
    /// Columns of lists that become rows; the lists of a row must have the same length
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', required = true)]
    pub(crate) columns: Vec<String>,
    /// Name of a new column with the position in the list, counted from 0
    #[arg(long, value_name = "COLUMN")]
    pub(crate) position: Option<String>,
    /// Keep a row without elements as one row with missing values; absent: such rows are left out
    #[arg(long)]
    pub(crate) keep_empty: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FilterArgs {
    #[command(flatten)]
    pub(crate) files: RowFilesArgs,
    /// Condition that a row fulfils, as in "clicks >= 1 and country in ('DE', 'AT')": =, !=, <, <=,
    /// >, >=, in, is null, and, or, not, parentheses
    #[arg(long = "where", value_name = "CONDITION")]
    pub(crate) condition: Option<Condition>,
    /// Order of day and month in dates such as 01.02.2024, for --where
    #[arg(long, value_enum, value_name = "ORDER", requires = "condition")]
    pub(crate) date_order: Option<DateOrderKind>,
    /// Minimum number of rows that a value of this column has over all files (repeatable); only
    /// rows that fulfil --where count
    #[arg(long, value_name = "COLUMN=ROWS", value_parser = parse_min_count)]
    pub(crate) min_count: Vec<(String, u32)>,
    /// Maximum memory for the counts of --min-count
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_memory)]
    pub(crate) max_memory: ByteSize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CountersArgs {
    #[command(flatten)]
    pub(crate) files: RowFilesArgs,
    /// Columns of ids whose rows are counted, each for itself
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', required = true)]
    pub(crate) by: Vec<String>,
    /// Column with the event time: whole numbers, dates or timestamps; without --sort the rows must
    /// be sorted by it, from file to file too
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: String,
    /// Unit of event times that are whole numbers; needed for spans such as 7d
    #[arg(long, value_enum, value_name = "UNIT")]
    pub(crate) time_unit: Option<TimeUnitKind>,
    /// Order of day and month in event times such as 01.02.2024
    #[arg(long, value_enum, value_name = "ORDER")]
    pub(crate) date_order: Option<DateOrderKind>,
    /// Column that is 1 or true in a positive row, or a condition as in "rating >= 4"; rows without
    /// a value are not counted
    #[arg(long, value_name = "COLUMN|CONDITION", value_parser = parse_positive)]
    pub(crate) positive: Condition,
    /// Lengths of the windows: numbers with s, m, h, d or w, numbers of units of the time column,
    /// or all
    #[arg(long, value_name = "SPAN", value_delimiter = ',', default_value = "1d,7d,all")]
    pub(crate) windows: Vec<Span>,
    /// Time until the label of a row is known; a row counts only rows that are older than this, and
    /// never a row with its own time
    #[arg(long, value_name = "SPAN", default_value = "0")]
    pub(crate) lag: Span,
    /// Number of rows at the base rate that are added to the rows of an id; the base rate is that
    /// of all rows that count
    #[arg(long, value_name = "ROWS", default_value = "20")]
    pub(crate) smoothing: f64,
    /// Sort the rows by time in memory first; absent: the files must be sorted, and may be larger
    /// than memory
    #[arg(long)]
    pub(crate) sort: bool,
    /// Maximum memory for the distinct ids and the rows in the longest window, or for all rows with
    /// --sort
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_memory)]
    pub(crate) max_memory: ByteSize,
}

/// The unit of event times that are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeUnitKind {
    /// Seconds since the start of 1970
    S,
    /// Milliseconds since the start of 1970
    Ms,
    /// Microseconds since the start of 1970
    Us,
    /// Nanoseconds since the start of 1970
    Ns,
}

impl TimeUnitKind {
    pub(crate) fn unit(self) -> TimeUnit {
        match self {
            Self::S => TimeUnit::Second,
            Self::Ms => TimeUnit::Millisecond,
            Self::Us => TimeUnit::Microsecond,
            Self::Ns => TimeUnit::Nanosecond,
        }
    }
}

/// Parses a size in the form of job files.
fn parse_memory(text: &str) -> Result<ByteSize, serde::de::value::Error> {
    ByteSize::deserialize(text.into_deserializer())
}

/// Parses a minimum count such as `user_id=5`.
fn parse_min_count(text: &str) -> Result<(String, u32), String> {
    let parsed = text.rsplit_once('=').and_then(|(column, least)| {
        let least = least.parse().ok().filter(|&least| least > 0)?;
        (!column.is_empty()).then(|| (column.to_owned(), least))
    });
    parsed.ok_or_else(|| "write a minimum count as COLUMN=ROWS, as in user_id=5".to_owned())
}

/// Parses the name of a column, which must be 1 or true, or a condition.
fn parse_positive(text: &str) -> Result<Condition, String> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    match !text.is_empty() && text.chars().all(is_name) {
        true => Ok(Condition::is_one(text)),
        false => text.parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_conditions_are_parsed() {
        assert_eq!(parse_min_count("user_id=5"), Ok(("user_id".to_owned(), 5)));
        for text in ["user_id", "=5", "user_id=0", "user_id=-1", "user_id=x"] {
            assert!(parse_min_count(text).unwrap_err().contains("user_id=5"), "{text}");
        }
        assert_eq!(parse_positive("click").map(|c| c.to_string()), Ok("click = 1".to_owned()));
        assert_eq!(parse_positive("a > 3").map(|c| c.to_string()), Ok("a > 3".to_owned()));
        assert!(parse_positive("a >").is_err());
    }
}
