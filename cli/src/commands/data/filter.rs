//! `zillion data filter`: selects rows.

use anyhow::Result;
use serde_json::json;
use zillion_console::exit::usage_error;
use zillion_console::print_json;
use zillion_datatools::{FilterSpec, filter};

use super::row_files::{Rewriting, files_json, print_files};
use crate::args::FilterArgs;
use crate::text::grouped;

pub(super) fn run(args: &FilterArgs) -> Result<()> {
    if args.condition.is_none() && args.min_count.is_empty() {
        return usage_error("no rule selects rows; give --where or --min-count".to_owned());
    }
    let place = Rewriting::open(&args.files)?;
    let spec = FilterSpec {
        condition: args
            .condition
            .clone()
            .map(|condition| condition.with_date_order(args.date_order.map(|kind| kind.order()))),
        min_counts: args.min_count.clone(),
        max_memory: args.max_memory.0,
    };
    let done = place
        .run("filtering", |rows, workers, files, seen| filter(&spec, rows, workers, files, seen))?;
    let ids = args.min_count.iter().zip(&done.ids);
    if args.files.json {
        let ids = ids.map(|((column, least), (ids, enough))| {
            json!({ "column": column, "min_count": least, "ids": ids, "ids_kept": enough })
        });
        let ids: Vec<_> = ids.collect();
        return print_json(&json!({ "files": files_json(&done.files), "min_counts": ids }));
    }
    print_files(&done.files);
    for ((column, least), (ids, enough)) in ids {
        eprintln!(
            "{} of {} ids in `{column}` have {} rows or more",
            grouped(*enough),
            grouped(*ids),
            grouped(u64::from(*least))
        );
    }
    if done.files.iter().all(|file| file.rows == 0) {
        eprintln!("note: no row was selected; the new files have columns and no rows");
    }
    Ok(())
}
