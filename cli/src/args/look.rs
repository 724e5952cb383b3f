//! Arguments of a look inside a model.

use std::path::PathBuf;

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
    /// Job file, or the folder of a run or a checkpoint
    pub(crate) job: PathBuf,
    /// Override a key of the job (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The training graph, with the loss and the gradients
    #[arg(long)]
    pub(crate) train: bool,
}
