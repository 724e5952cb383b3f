//! The lookup of the table that an argument names.

use anyhow::Result;
use zillion_console::exit::Stop;
use zillion_rows::TableSpec;
use zillion_trainer::Job;

/// Returns the table of that name in a job.
pub(super) fn find_table<'a>(job: &'a Job, name: &str) -> Result<&'a TableSpec> {
    job.tables.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let names: Vec<&str> = job.tables.iter().map(|spec| spec.name.as_str()).collect();
        let names = names.join(", ");
        Stop::Usage(format!("unknown table `{name}` (the checkpoint has: {names})")).into()
    })
}
