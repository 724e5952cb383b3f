//! The arguments of `zillion cluster`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Subcommand;
use zillion_ps::EtcdOptions;

use super::JobArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Train a job with several servers and trainers on this machine, each in a process of its own
    #[command(after_help = UP)]
    Up(ClusterUpArgs),
}

const UP: &str = "\
Example: zillion cluster up --servers 3 --trainers 2 job.toml
A process that is killed is started again, and the run continues from its newest checkpoint. Ctrl-C and SIGTERM end
the run after a checkpoint, and a second one ends it at once. The exit code is that of trainer 0.";

/// The settings of a cluster on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterUpArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Number of servers that hold the tables
    #[arg(long, default_value = "2")]
    pub(crate) servers: NonZeroUsize,
    /// Number of trainers that make each step together
    #[arg(long, default_value = "2")]
    pub(crate) trainers: NonZeroUsize,
    /// Folder that servers and trainers share, or URL of a bucket; absent: the folder that holds
    /// the folder of the run. A run whose folder is elsewhere is written to STORE/NAME
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<PathBuf>,
    /// Members of etcd in which the servers register and by which the trainers find them, as in
    /// http://HOST:2379,http://HOST:2379; absent: trainers get the addresses of the servers
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Prefix of the keys of the cluster in etcd; another cluster needs another prefix
    #[arg(long, value_name = "PREFIX", requires = "etcd", default_value = EtcdOptions::PREFIX)]
    pub(crate) etcd_prefix: String,
    /// Resume from the newest checkpoint of the run
    #[arg(long)]
    pub(crate) resume: bool,
}
