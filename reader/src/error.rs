//! The errors of reading files.
//!
//! A message names the file and the place in it, shows the refused text (shortened) and names a
//! remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use zillion_feature::SchemaError;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, ReaderError>;

/// The reason why rows cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// A setting that is wrong, or that contradicts the schema or the data.
    #[error("`{key}`: {problem}")]
    Setting {
        /// The problem, and the remedy.
        problem: String,
        /// The key of the setting in the job file, or the path of the file that is wrong.
        key: String,
    },
    /// A pattern that is not a valid glob.
    #[error("`{pattern}` is not a valid glob ({problem}); correct the glob, or list the files")]
    BadPattern {
        /// The problem that the glob parser reports.
        problem: String,
        /// The pattern in the job file.
        pattern: String,
    },
    /// A path, directory or glob that matches no file.
    #[error(
        "`{pattern}` matches no file (looked for {looked_for}); check the path and `data.root`"
    )]
    NoFiles {
        /// The pattern in the job file.
        pattern: String,
        /// The path that the pattern expands to.
        looked_for: PathBuf,
    },
    /// A file that appears twice in one list.
    #[error(
        "{path} is listed twice, or by two patterns or links ({first}), and its rows would count twice; \
         list it once"
    )]
    ListedTwice {
        /// The path of the file.
        path: PathBuf,
        /// The path by which the file was found first.
        first: PathBuf,
    },
    /// A file whose extension names no known format.
    #[error(
        "{path} has an unknown ending; set `data.format` to parquet, arrow, csv, tsv, jsonl or \
         libsvm, or exclude the file with a glob such as `*.parquet`"
    )]
    UnknownFormat {
        /// The path of the file.
        path: PathBuf,
    },
    /// An error of the operating system, or compressed data that is damaged or truncated.
    #[error("cannot {what} ({source}): {path}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The error of the operating system or of the decompressor.
        source: io::Error,
        /// The path of the file.
        path: PathBuf,
    },
    /// A file of zero bytes.
    #[error("{path} is empty; remove it from the list, or write it again")]
    EmptyFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// A list of files that contain no row.
    #[error(
        "{path} has no rows, only a header or metadata ({files} file(s) read); give a file with \
         rows"
    )]
    NoRows {
        /// The number of files that were read.
        files: usize,
        /// The path of the first of these files.
        path: PathBuf,
    },
    /// A Parquet or Arrow file that cannot be decoded.
    #[error(
        "{path}: {what} ({reason}); write or copy the file again, because it is probably incomplete"
    )]
    Damaged {
        /// The part of the file that is damaged.
        what: String,
        /// The problem that the decoder reports.
        reason: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A text file in another encoding than `data.encoding`, which is UTF-8 without the setting.
    #[error(
        "{path} is {encoding}, not UTF-8; set `data.encoding` to its encoding, such as \"utf-16le\" or \"windows-1252\""
    )]
    Encoding {
        /// The encoding that the file seems to have.
        encoding: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// A text file without a header, although the job expects one.
    #[error(
        "the file has no header: its first line has no names of columns but values such as \
         `{value}`; write the names into its first line, or, if no file of the job has them, give \
         them with `data.header = [\"..\"]`: {path}"
    )]
    NoHeader {
        /// A value of the first line.
        value: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column that the job needs and that the file does not have.
    #[error("column `{column}` of {used_by} is missing; {hint}: {path}")]
    MissingColumn {
        /// The name of the column.
        column: String,
        /// The feature, label or setting that reads the column.
        used_by: String,
        /// The names of the most similar columns, and other remedies.
        hint: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column name that occurs several times in a header.
    #[error(
        "column `{column}` appears {times} times in the header; rename the other columns: {path}"
    )]
    AmbiguousColumn {
        /// The name of the column.
        column: String,
        /// The number of times that the name occurs.
        times: usize,
        /// The path of the file.
        path: PathBuf,
    },
    /// A column whose type does not fit its use.
    #[error("column `{column}` is {mismatch}: {path}")]
    ColumnType {
        /// The name of the column.
        column: String,
        /// The type of the column, the type that the feature, label or setting needs, and the
        /// remedy.
        mismatch: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A value that cannot be used.
    #[error("column `{column}`, {place}: {problem}: {path}")]
    Value {
        /// The name of the column.
        column: String,
        /// The row, with its byte in a text file or with its row group or record batch.
        place: Place,
        /// The value as text, its problem, and the remedy.
        problem: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A record with too many or too few cells.
    #[error("{place}: {}: {path}", cell_count(*found, *expected))]
    CellCount {
        /// The row, with its byte in the file.
        place: Place,
        /// The number of cells in the record.
        found: usize,
        /// The number of cells in the header.
        expected: usize,
        /// The path of the file.
        path: PathBuf,
    },
    /// A row that does not have the form that its format requires.
    #[error("{place}: {problem}: {path}")]
    Record {
        /// The row, with its byte in the file.
        place: Place,
        /// The problem of the row, and the remedy.
        problem: String,
        /// The path of the file.
        path: PathBuf,
    },
    /// A record that is longer than the limit.
    #[error(
        "{path}: the record that starts at byte {byte} does not end within {limit} MiB; close its \
         quotes, or set `data.quote = \"\"` if quotes mean nothing here"
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
        "{place}: a quote is opened and never closed; close it, or set `data.quote = \"\"` if \
         quotes mean nothing here: {path}"
    )]
    OpenQuote {
        /// The row, with its byte in the file.
        place: Place,
        /// The path of the file.
        path: PathBuf,
    },
    /// A batch whose ids in one multi-hot column are too many for 32-bit offsets.
    #[error("a batch of {rows} rows holds 2^31 ids or more in one column; lower the batch size")]
    BatchTooLarge {
        /// The number of rows of the batch.
        rows: usize,
    },
    /// A group of rows that does not fit a batch.
    #[error(
        "the group {group} has more than {rows} rows, so it does not fit a batch, and the loss \
         compares the rows of whole groups; raise `train.batch_size`, or split the group"
    )]
    GroupTooLarge {
        /// The key of the group, for a message.
        group: String,
        /// The number of rows of a batch.
        rows: usize,
    },
    /// A group whose rows do not stand beside each other.
    #[error(
        "row {row} of the training data belongs to the group {group}, which had ended before it, \
         and the loss compares the rows of whole groups; sort the data by `columns.group`"
    )]
    GroupTwice {
        /// The key of the group, for a message.
        group: String,
        /// The row, counted from 1 over all files.
        row: u64,
    },
    /// A cursor whose position lies after the last row.
    #[error(
        "row {row} is beyond the end of the data, which has {rows} rows; give the same files as \
         in the run that this position comes from"
    )]
    BeyondEnd {
        /// The position of the cursor, as a number of rows.
        row: u64,
        /// The number of rows of the data.
        rows: u64,
    },
    /// A second attempt to read a stream.
    #[error("{path} is a stream and can be read only once; write it to a file to read it again")]
    StreamConsumed {
        /// The name of the stream.
        path: PathBuf,
    },
    /// A dense table for which the data has too many distinct keys.
    #[error(
        "table `{table}` has more than {cap} distinct keys in the data; raise its `max_rows` or \
         make it dynamic (`dense = false`)"
    )]
    VocabularyTooLarge {
        /// The maximum number of keys.
        cap: usize,
        /// The name of the table.
        table: String,
    },
    /// A pass that meets more bad rows than it may leave out.
    #[error(
        "more than {limit} bad row(s) in one pass; repair the data, or raise `data.max_bad_rows`. \
         The first: {}",
        examples.join("; ")
    )]
    TooManyBadRows {
        /// The number of bad rows that may be left out.
        limit: u64,
        /// The messages of the first few bad rows.
        examples: Vec<String>,
    },
    /// An output path of a conversion at which there are already other files, or files of another
    /// conversion.
    #[error(
        "{}: {what}; choose another output path, or set `force` to write all parts again",
        path.display()
    )]
    OtherConversion {
        /// The difference between the two conversions, or the files that were found.
        what: String,
        /// The path of the manifest of the conversion.
        path: PathBuf,
    },
    /// An error of the schema, such as absent statistics.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl ReaderError {
    /// Returns the error about the setting or the file that `key` names.
    pub(crate) fn setting(key: impl fmt::Display, problem: impl Into<String>) -> Self {
        Self::Setting { problem: problem.into(), key: key.to_string() }
    }

    /// Returns a function that converts an I/O error into the error about an action on a file.
    /// `what` names the action.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::Io { what, source, path: path.to_owned() }
    }

    /// Returns a function that converts the reason of a decoder into the error about a damaged
    /// file. `what` names the problem.
    pub(crate) fn damaged(what: &'static str, path: &Path) -> impl Fn(String) -> Self + Copy {
        move |reason| Self::Damaged { what: what.to_owned(), reason, path: path.to_owned() }
    }

    /// Returns whether the error concerns one row only, so that this row can be left out
    /// ([`data.max_bad_rows`]). Such errors are a value that cannot be used, a record that does not
    /// follow its format, or a record with too many or too few cells. After such an error, the
    /// start of the next row is still known.
    ///
    /// All other errors end the reading: a file that cannot be opened or decoded, a column that is
    /// missing or has another type, a quote that is never closed (the start of the next row is then
    /// unknown), and a limit that several rows exceed together.
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
    /// The number of the row in the file, counted from 1. The header does not count as a row.
    pub row: u64,
    /// A second coordinate, which helps to find the row in the file.
    pub near: Near,
}

/// The second coordinate of a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// The byte of the (decompressed) text at which the row starts, counted from 0.
    Byte(u64),
    /// The row group of a Parquet file, counted from 0.
    RowGroup(usize),
    /// The record batch of an Arrow file, counted from 0.
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

/// Returns the message about a record that has more or fewer cells than the header.
pub(crate) fn cell_count(found: usize, expected: usize) -> String {
    format!(
        "{found} cell(s) where the header has {expected}; check the delimiter and the quotes of \
         this row"
    )
}
