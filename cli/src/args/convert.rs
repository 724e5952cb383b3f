//! Arguments of `zillion data convert`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::ValueEnum;
use zillion_reader::ConvertType;

#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Files, folders or globs, in the order of their rows
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) input: Vec<String>,
    /// Folder for the parts; or one file, if its name ends in .parquet or .arrow
    #[arg(long, value_name = "FOLDER|FILE")]
    pub(crate) output: PathBuf,
    /// What is written; absent: what the name of the one file says, else Parquet
    #[arg(long, value_enum)]
    pub(crate) to: Option<ConvertKind>,
    /// Read text files as this job does, and take the types of its columns from it
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Override a key of [data], as in --set data.delimiter=; (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Type of a column of a text file (repeatable): int64, uint64, float, string, label, list<int64>,
    /// list<uint64>, list<string>; absent: what the job says, or what its first rows look like
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = typed)]
    pub(crate) types: Vec<(String, ConvertType)>,
    /// Bad rows that may be left out; the first one more is an error
    #[arg(long, value_name = "ROWS", default_value = "0")]
    pub(crate) max_bad_rows: u64,
    /// File that gets the rows that were left out, one JSON object a line
    #[arg(long, value_name = "FILE", requires = "max_bad_rows")]
    pub(crate) rejects: Option<PathBuf>,
    /// Rows of the data that a part of a folder stands for, 1,048,576 if absent: a killed conversion keeps whole parts
    #[arg(long, value_name = "ROWS")]
    pub(crate) part_rows: Option<NonZeroU64>,
    /// Rows of a row group, or of a record batch
    #[arg(long, value_name = "ROWS", default_value = "65536")]
    pub(crate) group_rows: NonZeroUsize,
    /// Begin anew over what another conversion, or something else, has left in the output
    #[arg(long)]
    pub(crate) force: bool,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertKind {
    /// Parquet
    Parquet,
    /// Arrow IPC, which is Feather V2
    Arrow,
}

fn typed(text: &str) -> Result<(String, ConvertType), String> {
    match text.rsplit_once('=') {
        Some((column, of)) if !column.is_empty() => Ok((column.to_owned(), of.parse()?)),
        _ => Err("a type is given as COLUMN=TYPE".to_owned()),
    }
}
