//! `zillion ps`: servers of the parameter service.

mod serve;
mod status;

use anyhow::Result;

use crate::args::ParameterService;

pub(crate) fn run(command: &ParameterService) -> Result<()> {
    match command {
        ParameterService::Serve(args) => serve::run(args),
        ParameterService::Status(args) => status::run(args),
    }
}
