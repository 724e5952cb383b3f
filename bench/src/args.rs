//! The arguments of `zillion bench` and `zillion loadgen`.

mod load;
mod versions;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use zillion_console::profile::ProfileArgs;
use zillion_rows::Dtype;

pub(crate) use load::BenchServeArgs;
pub use load::{LoadgenArgs, Protocol};
pub(crate) use versions::{BenchColdStartArgs, BenchHotLoadArgs, BenchRegistryArgs, BenchWireArgs};

/// The arguments of `zillion bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Rows pulled and pushed a second, beside the limits of this machine's memory
    #[command(after_help = "\
Example: zillion bench embedding --rows 10000000 --dim 16 --threads 1 --json
         zillion bench embedding --rows 1000000 --threads 2 --check
Exit codes: 0, and with --check 1 where a row is not what was pushed.")]
    Embedding(BenchEmbeddingArgs),
    /// Rows pulled and pushed a second in a table that is larger than its memory, and what the disk
    /// does for it
    #[command(after_help = "\
Example: zillion bench spill --rows 10000000 --memory-share 0.125 --threads 2 --json
Exit codes: 0 every row was there and right at the end, 1 not.")]
    Spill(BenchSpillArgs),
    /// The longest of very many small pulls and pushes while a table grows, and while a checkpoint
    /// is written
    #[command(after_help = "\
Example: zillion bench stalls --rows 10000000 --threads 2 --json")]
    Stalls(BenchStallsArgs),
    /// Measure the cost of a table at its limit, under a stream that never ends to bring new keys
    #[command(after_help = "\
Example: zillion bench capacity --max-mib 512 --threads 1 --json")]
    Capacity(BenchCapacityArgs),
    /// Seconds and bytes of a version's rows, where 0.1, 1 and 10 % of a table changed, beside
    /// those of all rows
    #[command(after_help = "\
Example: zillion bench delta --rows 10000000 --dim 16 --json")]
    Delta(BenchDeltaArgs),
    /// Rows read a second from a file: decoded to columns, and put together as batches
    #[command(after_help = "\
Example: zillion bench reader --data train.parquet --threads 1 --json")]
    Reader(BenchReaderArgs),
    /// Samples trained a second from Criteo-shaped Parquet, with the test AUC of the same run
    #[command(after_help = "\
Example: zillion bench train --model deepfm --data criteo_like.parquet --threads 2 --json")]
    Train(BenchTrainArgs),
    /// Scores a second of a published DeepFM of Criteo's shape, without a network
    #[command(after_help = "\
Example: zillion bench serve --candidates 500 --threads 2 --json")]
    Serve(BenchServeArgs),
    /// A server under constant load while a delta a second and rollbacks come in; every answer is
    /// checked
    #[command(after_help = "\
Example: zillion bench hot-load --rows 1000000 --deltas 200 --delta-rows 10000 --rollbacks 10 --rate 300 --json
Exit codes: 0 every answer was there and right, 1 not.")]
    HotLoad(BenchHotLoadArgs),
    /// Measure how long a server takes to be ready, from the store and from its cache, and its
    /// memory
    #[command(after_help = "\
Example: zillion bench cold-start --rows 10000000 --json")]
    ColdStart(BenchColdStartArgs),
    /// The same requests over every protocol, one at a time: what each costs, and where its time
    /// goes
    #[command(after_help = "\
Example: zillion bench wire --candidates 1,100,1000 --threads 1 --json")]
    Wire(BenchWireArgs),
    /// Measure a registry in which one model has very many versions
    #[command(after_help = "\
Example: zillion bench registry --versions 100000 --json")]
    Registry(BenchRegistryArgs),
    /// Train the job files of examples/frappe and print their AUCs beside the published ones
    #[command(after_help = "\
Example: zillion bench frappe --root data/frappe --seeds 5")]
    Frappe(BenchFrappeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchEmbeddingArgs {
    /// Rows of the table
    #[arg(long, default_value = "10000000", value_parser = clap::value_parser!(u64).range(1..=u32::MAX.into()))]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Type of the weights
    #[arg(long, default_value = "f32")]
    pub(crate) dtype: BenchDtype,
    /// Compute threads; several are measured in turns with one, which takes twice as long
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Seconds that each figure is measured for, on the clock of all threads
    #[arg(long, default_value = "2")]
    pub(crate) seconds: f64,
    /// At the end hold every row against what was pushed (off the clock)
    #[arg(long)]
    pub(crate) check: bool,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// [`Dtype`] as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BenchDtype {
    F32,
    F16,
    Bf16,
}

impl From<BenchDtype> for Dtype {
    fn from(dtype: BenchDtype) -> Self {
        match dtype {
            BenchDtype::F32 => Self::F32,
            BenchDtype::F16 => Self::F16,
            BenchDtype::Bf16 => Self::Bf16,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchStallsArgs {
    /// Rows that the table grows to
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchCapacityArgs {
    /// The table's limit, in MiB
    #[arg(long, default_value = "512")]
    pub(crate) max_mib: u64,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Seconds that each table is measured for
    #[arg(long, default_value = "5")]
    pub(crate) seconds: f64,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchSpillArgs {
    /// Rows of the table
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// The part of the rows' memory that they may take
    #[arg(long, default_value = "0.125")]
    pub(crate) memory_share: f64,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Plans that are announced at once; those after them are announced before these are looked up
    #[arg(long, default_value = "1")]
    pub(crate) ahead: NonZeroUsize,
    /// Seconds that the stream runs before it is measured, so that memory holds what it asks for
    #[arg(long, default_value = "60")]
    pub(crate) warm_up: f64,
    /// Seconds that it is measured for
    #[arg(long, default_value = "30")]
    pub(crate) seconds: f64,
    /// Folder of the rows that are not in memory
    #[arg(long, default_value = "runs/bench-spill")]
    pub(crate) folder: PathBuf,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchDeltaArgs {
    /// Rows of the table
    #[arg(long, default_value = "10000000")]
    pub(crate) rows: u64,
    /// Number of floats in a row
    #[arg(long, default_value = "16")]
    pub(crate) dim: usize,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Folder that layers are written below, and removed from again; absent: the one for temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchReaderArgs {
    /// A file, folder or glob
    #[arg(long)]
    pub(crate) data: String,
    /// The job whose columns are read; absent: what `init` would draft for the file
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Number of compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Number of times that each figure is taken; the median is reported
    #[arg(long, default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchTrainArgs {
    /// Model that is trained
    #[arg(long, value_enum, default_value = "deepfm")]
    pub(crate) model: BenchModel,
    /// Criteo-shaped Parquet: label, I1..I13, C1..C26; the last fifth of the rows is the test set
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// Number of compute threads
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Override a key of the benchmark's job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Decode and plan all batches before the first step, to see what reading beside the steps
    /// costs
    #[arg(long)]
    pub(crate) in_memory: bool,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BenchModel {
    Deepfm,
    Dcnv2,
    Dlrm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchFrappeArgs {
    /// Folder of the data set
    #[arg(long)]
    pub(crate) root: PathBuf,
    /// Folder of the job files
    #[arg(long, default_value = "examples/frappe")]
    pub(crate) jobs: PathBuf,
    /// Seeds of FM, Wide&Deep and DeepFM; the other models are run once
    #[arg(long, default_value = "5")]
    pub(crate) seeds: u64,
    /// Only this job file (its name without .toml; repeatable)
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// Compute threads; absent: one a core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one line of JSON a run on stdout instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}
