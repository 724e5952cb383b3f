//! `zillion data counters`: adds recent counts and rates of ids.

use anyhow::Result;
use serde_json::json;
use zillion_console::exit::Stop;
use zillion_console::print_json;
use zillion_datatools::{CounterSpec, add_counters};

use super::row_files::{Rewriting, files_json, print_files};
use crate::args::CountersArgs;
use crate::text::grouped;

pub(super) fn run(args: &CountersArgs) -> Result<()> {
    let spec = CounterSpec {
        by: args.by.clone(),
        time: args.time.clone(),
        time_unit: args.time_unit.map(|unit| unit.unit()),
        date_order: args.date_order.map(|kind| kind.order()),
        positive: args.positive.clone().with_date_order(args.date_order.map(|kind| kind.order())),
        windows: args.windows.clone(),
        lag: args.lag,
        smoothing: args.smoothing,
        max_memory: args.max_memory.0,
        sort: args.sort,
    };
    spec.check().map_err(|error| Stop::Usage(error.to_string()))?;
    let place = Rewriting::open(&args.files)?;
    let done = place.run("counting", |rows, workers, files, seen| {
        add_counters(&spec, rows, workers, files, seen)
    })?;
    if args.files.json {
        return print_json(&json!({
            "files": files_json(&done.files),
            "columns": done.columns,
            "rows_without_time": done.without_time,
            "rows_without_label": done.without_label,
            "ids": done.ids,
        }));
    }
    print_files(&done.files);
    eprintln!("new columns: {}", done.columns.join(", "));
    if done.without_time > 0 {
        eprintln!(
            "{} rows have no time: their counters are missing, and no row counts them",
            grouped(done.without_time)
        );
    }
    if done.without_label > 0 {
        eprintln!("{} rows have no label, and no row counts them", grouped(done.without_label));
    }
    Ok(())
}
