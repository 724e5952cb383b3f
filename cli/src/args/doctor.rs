//! The arguments of `zillion doctor`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Folder whose disk is measured, such as the folder of checkpoints, versions or caches;
    /// absent: the current folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// Size in MiB of the file that is written and read to measure the disk
    #[arg(long, default_value = "256", value_name = "MIB")]
    pub(crate) disk_mib: usize,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
