//! The arguments of `zillion doctor`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Folder whose disk is measured: where checkpoints, versions or caches will lie; absent: this
    /// one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// MiB that are written and read to measure the disk
    #[arg(long, default_value = "256", value_name = "MIB")]
    pub(crate) disk_mib: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
