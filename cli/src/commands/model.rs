//! `zillion model`: lists, compares, promotes, quarantines, checks, exports and removes versions.

mod describe;
mod diff;
mod export;
mod gc;
mod graph;
mod list;
mod log;
mod pin;
mod pointer;
mod quarantine;
mod rewind;
mod show;
mod verify;

use anyhow::Result;

use crate::args::ModelCommand;

pub(crate) fn run(command: &ModelCommand) -> Result<()> {
    match command {
        ModelCommand::List(args) => list::run(args),
        ModelCommand::Show(args) => show::run(args),
        ModelCommand::Diff(args) => diff::run(args),
        ModelCommand::Promote(args) => pointer::promote(args),
        ModelCommand::Rollback(args) => pointer::roll_back(args),
        ModelCommand::Quarantine(args) => quarantine::run(args),
        ModelCommand::Rewind(args) => rewind::run(args),
        ModelCommand::Log(args) => log::run(args),
        ModelCommand::Verify(args) => verify::run(args),
        ModelCommand::Gc(args) => gc::run(args),
        ModelCommand::Pin(args) => pin::run(args),
        ModelCommand::Export(args) => export::run(args),
        ModelCommand::Graph(args) => graph::run(args),
    }
}
