//! `zillion ps`: servers of the parameter service.

mod access;
mod checkpoint;
mod explain;
mod restore;
mod serve;
mod status;

use anyhow::Result;

use crate::args::ParameterService;

pub(crate) fn run(command: &ParameterService) -> Result<()> {
    match command {
        ParameterService::Serve(args) => serve::run(args),
        ParameterService::Status(args) => status::run(args),
        ParameterService::Explain(args) => explain::run(args),
        ParameterService::Checkpoint(args) => checkpoint::run(args),
        ParameterService::Restore(args) => restore::run(args),
    }
}
