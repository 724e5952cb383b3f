//! Arguments of what a new user meets first: a run without data, a look at data, a job file for it.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Subcommand;
use clap_complete::Shell;

use super::JobArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct QuickstartArgs {
    /// Rows of the generated click log
    #[arg(long, default_value = "200000", value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) rows: u64,
    /// Folder for the data, the job file and the runs
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    pub(crate) output: PathBuf,
    /// Leave the server running at the end
    #[arg(long)]
    pub(crate) keep_serving: bool,
    /// Seed of the data and of training
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Rows of the training data to look at
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: u64,
    /// Compare the model's gradients with finite differences on a few rows of the data
    #[arg(long)]
    pub(crate) gradients: bool,
    /// Print the findings as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// A Parquet, Arrow, CSV, TSV, JSON lines or libsvm file of labelled rows (text may be .gz or .zst)
    pub(crate) data: PathBuf,
    /// The job file to write; - for stdout
    #[arg(long, value_name = "FILE", default_value = "job.toml")]
    pub(crate) out: PathBuf,
    /// Column that says what happened, 0 or 1; absent: guessed
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    pub(crate) what: Data,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// What the columns of a file hold, and how two sets of files differ
    #[command(after_help = "\
Example: zillion data inspect train.parquet --against test.parquet")]
    Inspect(InspectArgs),
    /// Write data files as Parquet or Arrow; started again after a kill, it goes on where it was
    #[command(after_help = "\
Example: zillion data convert 'logs/*.csv.gz' --output clicks --type zip=string
         zillion data convert day_0.tsv --job job.toml --output day_0.arrow")]
    Convert(super::ConvertArgs),
    /// Add a list column to Parquet files: what the same user did before each row
    #[command(after_help = "\
Example: zillion data history --by user_id --of item_id --time timestamp --when label=1 \\
             --last 50 --in train.parquet,valid.parquet,test.parquet --out with-histories")]
    History(HistoryArgs),
    /// From one sequence a user to rows that ask for the next item: leave one out
    #[command(after_help = "\
Writes train.parquet, valid.parquet and test.parquet with the columns BY, history and item. The last item of
a sequence is asked for in test, the one before in valid, every earlier one but the first in train.
Example: zillion data next-item --in sequences.parquet --by user_id --items items --out beauty")]
    NextItem(NextItemArgs),
    /// Write a synthetic, Criteo-shaped click log as Parquet: train, valid and test
    #[command(after_help = "\
Example: zillion data synth --rows 1000000 --out clicks")]
    Synth(SynthArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Files, folders or globs
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Read text files as this job does; absent: delimiter, quotes and null markers are guessed
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// A second set of files: how it drifted from the first
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) against: Vec<String>,
    /// Look at this many rows of each set; absent: at all
    #[arg(long)]
    pub(crate) rows: Option<u64>,
    /// Most frequent values to show of each column
    #[arg(long, default_value = "5")]
    pub(crate) top: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Column that says whose rows belong together
    #[arg(long, value_name = "COLUMN")]
    pub(crate) by: String,
    /// Column whose values the history lists
    #[arg(long, value_name = "COLUMN")]
    pub(crate) of: String,
    /// Column that orders the rows: whole numbers, dates or timestamps
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: String,
    /// Only rows with this value go into histories, as in --when label=1 (repeatable: all must hold)
    #[arg(long, value_name = "COLUMN=VALUE", value_parser = condition)]
    pub(crate) when: Vec<(String, String)>,
    /// Items that are kept of a history: the most recent
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) last: NonZeroUsize,
    /// Leave out what is not older than this, in units of the time column; 0 leaves out the row's own moment
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub(crate) lag: u64,
    /// Name of the new column
    #[arg(long, value_name = "COLUMN", default_value = "history")]
    pub(crate) name: String,
    /// Parquet files, folders or globs: one timeline
    #[arg(long = "in", value_name = "FILE", required = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) input: Vec<String>,
    /// Folder for the new files, which keep their names
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

fn condition(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, value)) if !column.is_empty() => Ok((column.to_owned(), value.to_owned())),
        _ => Err("a condition is COLUMN=VALUE".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct NextItemArgs {
    /// Column that says whose sequence it is
    #[arg(long, value_name = "COLUMN")]
    pub(crate) by: String,
    /// Column of the sequences: lists, oldest first
    #[arg(long, value_name = "COLUMN")]
    pub(crate) items: String,
    /// Items that are kept of what came before: the most recent
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) last: NonZeroUsize,
    /// Parquet files, folders or globs
    #[arg(long = "in", value_name = "FILE", required = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) input: Vec<String>,
    /// Folder for the new files
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// Rows over all three files: eight tenths to train, one to validate, one to test
    #[arg(long, default_value = "200000", value_parser = clap::value_parser!(u64).range(10..))]
    pub(crate) rows: u64,
    /// Folder for the files
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Seed of the data
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder for one page a command; absent: the main page on stdout
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Folder whose disk is measured: where checkpoints, versions or caches will lie; absent: this one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// MiB that are written and read to measure the disk
    #[arg(long, default_value = "256", value_name = "MIB")]
    pub(crate) disk_mib: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
