//! `zillion table`: inspects the tables of a checkpoint, shrinks them, and plans their settings.

mod explain;
mod histogram;
mod key_names;
mod plan;
mod shrink;
mod source;
mod stats;
mod top;

use anyhow::Result;

use crate::args::Table;

pub(crate) fn run(command: &Table) -> Result<()> {
    match command {
        Table::Stats(args) => stats::run(args),
        Table::Top(args) => top::run(args),
        Table::Histogram(args) => histogram::run(args),
        Table::Explain(args) => explain::run(args),
        Table::Shrink(args) => shrink::run(args),
        Table::Plan(args) => plan::run(args),
    }
}
