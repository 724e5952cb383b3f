//! The arguments of `zillion completions` and `zillion man`.

use std::path::PathBuf;

use clap_complete::Shell;

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
