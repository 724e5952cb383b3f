//! The arguments of the commands `board` and `compare`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct BoardArgs {
    /// Folders of runs to compare, one or more
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Path of the page to write
    #[arg(long, value_name = "FILE", default_value = "board.html")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Folders of runs to compare, two or more
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
