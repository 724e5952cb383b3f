//! `zillion data explode`: changes lists to rows.

use anyhow::Result;
use serde_json::json;
use zillion_console::print_json;
use zillion_datatools::{ExplodeSpec, explode};

use super::row_files::{Rewriting, files_json, print_files};
use crate::args::ExplodeArgs;
use crate::text::grouped;

pub(super) fn run(args: &ExplodeArgs) -> Result<()> {
    let place = Rewriting::open(&args.files)?;
    let spec = ExplodeSpec {
        columns: args.columns.clone(),
        position: args.position.clone(),
        keep_empty: args.keep_empty,
    };
    let done = place.run("exploding", |rows, workers, files, seen| {
        explode(&spec, rows, workers, files, seen)
    })?;
    if args.files.json {
        let files = files_json(&done.files);
        return print_json(&json!({ "files": files, "rows_without_elements": done.empty }));
    }
    print_files(&done.files);
    if done.empty > 0 {
        let outcome = match args.keep_empty {
            true => "became one row each with missing values",
            false => "were left out; --keep-empty keeps them",
        };
        eprintln!("{} rows without elements {outcome}", grouped(done.empty));
    }
    Ok(())
}
