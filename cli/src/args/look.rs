//! Arguments of a look inside a model.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
pub(crate) struct FetchArgs {
    /// Print a node's values as lines of JSON (repeatable; `zillion model graph` lists the nodes)
    #[arg(long, value_name = "NODE")]
    pub(crate) fetch: Vec<String>,
    /// Rows to print, counted from 0, as in 0,5,7
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "fetch")]
    pub(crate) fetch_rows: Vec<u64>,
    /// Print the first N rows
    #[arg(long, value_name = "N", requires = "fetch", conflicts_with = "fetch_rows")]
    pub(crate) rows: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GraphArgs {
    /// Job file, or the folder of a run or a checkpoint, or with --model the number of a version
    pub(crate) job: PathBuf,
    /// Override a key of the job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The training graph, with the loss and the gradients
    #[arg(long)]
    pub(crate) train: bool,
    /// With shapes, bytes and floating-point operations a batch: as a table, for Graphviz, as a picture
    #[arg(long, value_enum)]
    pub(crate) format: Option<GraphFormat>,
    /// The graph before and after this pass, or after every one of them with all; of in_place, which changes buffers and
    /// not the graph, the bytes that they take
    #[arg(long, value_name = "PASS")]
    pub(crate) pass: Option<String>,
    /// Rows of the batch that bytes and operations are counted for; absent: the job's batch size
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<NonZeroUsize>,
    /// Values a row that bytes and operations are counted for in columns of lists
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "model")]
    pub(crate) list_len: NonZeroUsize,
    /// The model whose version it is
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// The registry of that model
    #[arg(long, env = "ZILLION_REGISTRY", value_name = "URL")]
    pub(crate) registry: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// A line a node
    Text,
    /// Graphviz
    Dot,
    /// A picture
    Svg,
}
