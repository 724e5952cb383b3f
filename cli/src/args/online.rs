//! The arguments of the command `online`.

use std::path::PathBuf;

use super::JobArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct OnlineArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Begin with the rows and parameters of this checkpoint or run, if the run has no checkpoint
    /// of its own
    #[arg(long, value_name = "FOLDER")]
    pub(crate) from: Option<PathBuf>,
    /// Device that computes the training graph: auto, cpu, or a GPU such as cuda:0; overrides
    /// run.device
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Print the job with every default and override, without following its streams
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Address at which /metrics is served for Prometheus; port 0 takes a free port, which is
    /// printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// File for the audit log of what the job publishes; one process at a time writes to it
    #[arg(long, env = "ZILLION_AUDIT_LOG", value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
