//! The arguments of `zillion completions` and `zillion man`.

use std::path::PathBuf;

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that will read the completions
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder for one page for each command; absent: print the main page on stdout
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
