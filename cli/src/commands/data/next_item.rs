//! `zillion data next-item`: turns the sequence of each user into rows whose target is the next
//! item.

use anyhow::Result;
use serde::Serialize;
use zillion_console::{durable_files, print_json_if};
use zillion_datatools::{NextItemSpec, next_items};

use super::row_files::name_overwrite;
use crate::args::NextItemArgs;
use crate::text::grouped;

#[derive(Serialize)]
struct Written {
    sequences: u64,
    /// The number of sequences with fewer than three items. They give only training rows.
    short: u64,
    train: u64,
    valid: u64,
    test: u64,
}

pub(crate) fn run(args: &NextItemArgs) -> Result<()> {
    let spec = NextItemSpec {
        by: args.by.clone(),
        items: args.items.clone(),
        last: args.last.get(),
        overwrite: args.overwrite,
    };
    let report =
        next_items(&spec, &args.input, &args.out, &durable_files()?).map_err(name_overwrite)?;
    eprintln!("{} sequences", grouped(report.sequences));
    if report.short > 0 {
        eprintln!(
            "{} sequences have fewer than three items and give only training rows",
            grouped(report.short)
        );
    }
    for (path, rows) in &report.files {
        eprintln!("{}: {} rows", path.display(), grouped(*rows));
    }
    let [train, valid, test] = report.files.map(|(_, rows)| rows);
    let (sequences, short) = (report.sequences, report.short);
    print_json_if(args.json, &Written { sequences, short, train, valid, test })
}
