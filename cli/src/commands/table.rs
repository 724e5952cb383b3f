//! `zillion table`.

use anyhow::Result;
use zillion_console::exit::Stop;
use zillion_rows::TableSpec;
use zillion_trainer::Job;

use super::{table_explain, table_histogram, table_plan, table_shrink, table_stats, table_top};
use crate::args::{Table, TableArgs};

pub(crate) fn run(args: &TableArgs) -> Result<()> {
    match &args.what {
        Table::Stats(args) => table_stats::run(args),
        Table::Top(args) => table_top::run(args),
        Table::Histogram(args) => table_histogram::run(args),
        Table::Explain(args) => table_explain::run(args),
        Table::Shrink(args) => table_shrink::run(args),
        Table::Plan(args) => table_plan::run(args),
    }
}

/// The table of that name in a job.
pub(super) fn named<'a>(job: &'a Job, name: &str) -> Result<&'a TableSpec> {
    job.tables.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let names: Vec<&str> = job.tables.iter().map(|spec| spec.name.as_str()).collect();
        let names = names.join(", ");
        Stop::Usage(format!(
            "the checkpoint has the tables {names}, and not this one: --table {name}"
        ))
        .into()
    })
}
