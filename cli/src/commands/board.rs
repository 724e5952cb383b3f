//! `zillion board`: writes one static page about runs. The page needs no server, no network and no
//! script: its plots are SVG, and its colours follow the style of the browser.

mod page;
mod plots;

use anyhow::{Context, Result};

use crate::args::BoardArgs;
use crate::runs;

pub(crate) fn run(args: &BoardArgs) -> Result<()> {
    let runs = runs::load_runs(&args.runs)?;
    let page = page::write_page(&runs);
    zillion_console::durable_files()?
        .write_bytes(&args.out, page.as_bytes())
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    eprintln!("wrote {}; open it in a browser", args.out.display());
    Ok(())
}
