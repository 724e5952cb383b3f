//! `zillion cluster`: servers and trainers on one machine.

mod member;
mod up;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Cluster;

pub(crate) fn run(command: &Cluster) -> Result<ExitCode> {
    match command {
        Cluster::Up(args) => up::run(args),
    }
}
