//! `zillion completions` and `zillion man`: print completions and manual pages. Both are generated
//! from the definition of the arguments.

use std::io::Write;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, ManArgs};

pub(crate) fn print_completions(args: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "zillion", &mut text);
    std::io::stdout().write_all(&text).context("cannot write the completions")
}

pub(crate) fn print_pages(args: &ManArgs) -> Result<()> {
    let command = Args::command();
    match &args.out {
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command).render(&mut text)?;
            std::io::stdout().write_all(&text).context("cannot write the page")
        }
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command, folder))
                .with_context(|| format!("cannot write the pages: {}", folder.display()))?;
            eprintln!("pages are in {}", folder.display());
            Ok(())
        }
    }
}
