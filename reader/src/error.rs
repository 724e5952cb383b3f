//! Errors between a file and a batch.
//!
//! A message names the file and the place in it, shows the text that was refused (shortened) and
//! says what the operator can do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use zillion_feature::SchemaError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ReaderError>;

/// Why rows cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// A setting of the `[data]` section, or a value that a schema and the data do not agree on.
    #[error("`{key}`: {problem}")]
    Setting {
        /// The problem, and what to do.
        problem: String,
        /// The key of the job file.
        key: String,
    },
    /// A pattern that is not a valid glob.
    #[error("`{pattern}` is not a valid glob ({problem}); correct it, or name the files")]
    BadPattern {
        /// The reason that the glob parser gives.
        problem: String,
        /// The pattern as given.
        pattern: String,
    },
    /// A path, directory or glob without a single file.
    #[error(
        "`{pattern}` matches no file (looked for {looked_for}); check the path and `data.root`"
    )]
    NoFiles {
        /// The pattern as given.
        pattern: String,
        /// The path that the pattern led to.
        looked_for: PathBuf,
    },
    /// The same file twice in one list.
    #[error("{path} is listed twice, and its rows would count twice; list it once")]
    ListedTwice {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file whose ending says nothing about its format.
    #[error(
        "{path} has an ending that names no format; set `data.format` to parquet, arrow, csv, tsv, jsonl or libsvm, or leave the file out with a glob such as `*.parquet`"
    )]
    UnknownFormat {
        /// The path of the file.
        path: PathBuf,
    },
    /// The operating system refused, or compressed data is damaged or cut off.
    #[error("cannot {what} ({source}): {path}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The operating system's (or the decompressor's) reason.
        source: io::Error,
        /// The path of the file.
        path: PathBuf,
    },
    /// A file of zero bytes.
    #[error("{path} is empty; remove it from the list or write it again")]
    EmptyFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// Files without a single row.
    #[error(
        "{path} has no rows, only a header or metadata ({files} file(s) looked at); give a file with rows"
    )]
    NoRows {
        /// The number of files that were looked at.
        files: usize,
        /// The first of them.
        path: PathBuf,
    },
    /// A Parquet or Arrow file that cannot be decoded.
    #[error(
        "{path}: {what} ({reason}); the file was probably cut off while it was written or copied, write it again"
    )]
    Damaged {
        /// The part of the file that is damaged.
        what: String,
        /// The reason that the decoder gives.
        reason: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// Text in an encoding other than UTF-8.
    #[error("{path} is {encoding}, not UTF-8; convert it (`iconv -t UTF-8`)")]
    Encoding {
        /// The encoding that the file seems to have.
        encoding: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column that the job needs and the file does not have.
    #[error("column `{column}` of {used_by} is missing; {hint}: {path}")]
    MissingColumn {
        /// The name of the column.
        column: String,
        /// The feature, label or setting that reads it.
        used_by: String,
        /// The nearest columns, and what else may help.
        hint: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column name that a header has more than once.
    #[error("column `{column}` appears {times} times in the header; rename the others: {path}")]
    AmbiguousColumn {
        /// The name of the column.
        column: String,
        /// The number of times that it appears.
        times: usize,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column whose type does not fit its use.
    #[error("column `{column}` is {mismatch}: {path}")]
    ColumnType {
        /// The name of the column.
        column: String,
        /// Its type, what the feature, label or setting that reads it needs, and what to do.
        mismatch: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A value that cannot be used.
    #[error("column `{column}`, {place}: {problem}: {path}")]
    Value {
        /// The name of the column.
        column: String,
        /// Row and byte or row group.
        place: Place,
        /// The text, what is wrong with it and what to do.
        problem: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A record with too many or too few cells.
    #[error("{place}: {}: {path}", cell_count(*found, *expected))]
    CellCount {
        /// The row and its byte.
        place: Place,
        /// Cells of the record.
        found: usize,
        /// Cells of the header.
        expected: usize,
        /// The path of the file.
        path: PathBuf,
    },
    /// A row that is not what its format says.
    #[error("{place}: {problem}: {path}")]
    Record {
        /// The row and its byte.
        place: Place,
        /// The problem of the row, and what to do.
        problem: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A record that does not end.
    #[error(
        "{path}: the record that starts at byte {byte} does not end within {limit} MiB; close its quotes, or set `data.quote = \"\"` if quotes mean nothing here"
    )]
    RecordTooLong {
        /// The limit in MiB.
        limit: usize,
        /// The byte of the decompressed text at which the record starts.
        byte: u64,
        /// The path of the file.
        path: PathBuf,
    },
    /// A quote that is opened and never closed.
    #[error(
        "{place}: a quote is opened and never closed; close it, or set `data.quote = \"\"` if quotes mean nothing here: {path}"
    )]
    OpenQuote {
        /// The row and its byte.
        place: Place,
        /// The path of the file.
        path: PathBuf,
    },
    /// A batch with more ids in one multi-hot column than an `i32` offset can count.
    #[error("a batch of {rows} rows holds 2^31 ids or more in one column; lower the batch size")]
    BatchTooLarge {
        /// Rows of the batch.
        rows: usize,
    },
    /// A cursor behind the last row.
    #[error(
        "row {row} is beyond the data, which has {rows} rows; the files are not the ones that this position was taken from"
    )]
    BeyondEnd {
        /// The row from which reading should have gone on.
        row: u64,
        /// Rows that there are.
        rows: u64,
    },
    /// A stream asked for a second time.
    #[error("{path} is a stream and can be read only once; write it to a file to read it again")]
    StreamConsumed {
        /// The name of the stream.
        path: PathBuf,
    },
    /// A dense table with too many keys.
    #[error(
        "table `{table}` has more than {cap} distinct keys in the data; raise its `max_rows` or make it dynamic (`dense = false`)"
    )]
    VocabularyTooLarge {
        /// The largest number of keys that is allowed.
        cap: usize,
        /// The name of the table.
        table: String,
    },
    /// More bad rows than a pass may leave out.
    #[error(
        "more than {limit} bad row(s) in one pass; mend the data or raise `data.max_bad_rows`. The first: {}",
        examples.join("; ")
    )]
    TooManyBadRows {
        /// The number of bad rows that may be left out.
        limit: u64,
        /// The messages of the first few.
        examples: Vec<String>,
    },
    /// The output of a conversion holds something else, or another conversion's parts.
    #[error(
        "{}: {what}; convert to another place, or set `force` to make all of it anew",
        path.display()
    )]
    OtherConversion {
        /// The difference that was found.
        what: String,
        /// The description of the conversion.
        path: PathBuf,
    },
    /// A schema whose statistics are absent.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl ReaderError {
    /// Returns whether the error is about one row, which can be left out ([`data.max_bad_rows`])
    /// without a doubt about the rows behind it: a value that cannot be used, a record that is not
    /// what its format says or has too many or too few cells.
    ///
    /// Everything else ends the reading: a file that cannot be opened or decoded, a column that is
    /// missing or of another type, a quote that is never closed (it is not known where the next row
    /// starts), and limits of this program that rows meet together.
    ///
    /// [`data.max_bad_rows`]: crate::DataConfig::max_bad_rows
    #[must_use]
    pub fn is_about_one_row(&self) -> bool {
        matches!(self, Self::Value { .. } | Self::CellCount { .. } | Self::Record { .. })
    }
}

/// The place of a row in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Data row of the file, counted from 1; a header is not a row.
    pub row: u64,
    /// The second coordinate, which helps to find the row.
    pub near: Near,
}

/// The second coordinate of a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// Byte of the (decompressed) text at which the row starts, counted from 0.
    Byte(u64),
    /// Row group of a Parquet file, counted from 0.
    RowGroup(usize),
    /// Record batch of an Arrow file, counted from 0.
    RecordBatch(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.near {
            Near::Byte(byte) => write!(f, "row {} (byte {byte})", self.row),
            Near::RowGroup(group) => write!(f, "row {} (row group {group})", self.row),
            Near::RecordBatch(batch) => write!(f, "row {} (record batch {batch})", self.row),
        }
    }
}

/// Returns what is wrong with a record of another width than the header.
pub(crate) fn cell_count(found: usize, expected: usize) -> String {
    format!(
        "{found} cell(s) where the header has {expected}; check the delimiter and the quotes of this row"
    )
}
