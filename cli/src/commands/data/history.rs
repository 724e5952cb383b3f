//! `zillion data history`: adds a list column with the earlier items of each row's user.

use anyhow::Result;
use serde::Serialize;
use zillion_console::{durable_files, print_json_if};
use zillion_datatools::{HistorySpec, add_histories};

use super::row_files::name_overwrite;
use crate::args::HistoryArgs;
use crate::text::grouped;

#[derive(Serialize)]
struct Written {
    path: String,
    rows: u64,
    /// The number of rows whose history is empty.
    empty: u64,
    /// The average number of items in the history of a row.
    mean_items: f64,
}

pub(crate) fn run(args: &HistoryArgs) -> Result<()> {
    let spec = HistorySpec {
        by: args.by.clone(),
        of: args.of.clone(),
        time: args.time.clone(),
        when: args.when.clone(),
        last: args.last.get(),
        lag: args.lag,
        name: args.name.clone(),
        date_order: args.date_order.map(|kind| kind.order()),
        overwrite: args.overwrite,
    };
    let written =
        add_histories(&spec, &args.input, &args.out, &durable_files()?).map_err(name_overwrite)?;
    let report = written.iter().map(|file| Written {
        path: file.path.display().to_string(),
        rows: file.rows,
        empty: file.empty,
        mean_items: file.items as f64 / file.rows.max(1) as f64,
    });
    let report: Vec<Written> = report.collect();
    for file in &report {
        let share = 100.0 * file.empty as f64 / file.rows.max(1) as f64;
        eprintln!(
            "{}: {} rows, {:.1} items in `{}` on average, {share:.1} % of the rows have none",
            file.path,
            grouped(file.rows),
            file.mean_items,
            args.name
        );
    }
    print_json_if(args.json, &report)
}
