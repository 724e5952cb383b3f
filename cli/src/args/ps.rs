//! The arguments of `zillion ps`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Subcommand;
use zillion_ps::EtcdOptions;

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one value in a process")]
pub(crate) enum ParameterService {
    /// Hold a part of the tables of a training run in this process
    #[command(after_help = SERVE)]
    Serve(PsServeArgs),
    /// Show the run, the slots, the trainers and the tables of servers
    #[command(after_help = "\
Example: zillion ps status 127.0.0.1:7100 127.0.0.1:7101 127.0.0.1:7102")]
    Status(PsStatusArgs),
}

const SERVE: &str = "\
Example: zillion ps serve --store /srv/zillion --id 0 --listen 127.0.0.1:7100
         zillion train job.toml --ps 127.0.0.1:7100 --ps-store /srv/zillion
A server has no data until a trainer begins a run. After a restart, the trainers continue from their newest
checkpoint. Frames are not encrypted: keep servers and trainers on a private network.
With --etcd, trainers find the server by its number: zillion train job.toml --ps-etcd http://HOST:2379 --ps-count 1";

/// The registration of a server in etcd.
#[derive(Debug, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Members of etcd in which the server registers, as in http://HOST:2379,http://HOST:2379;
    /// absent: trainers list the addresses of servers
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Prefix of the keys of the cluster in etcd
    #[arg(long, requires = "etcd", default_value = EtcdOptions::PREFIX)]
    pub(crate) etcd_prefix: String,
    /// Address by which trainers reach the server; absent: the address that it listens on
    #[arg(long, requires = "etcd", value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Seconds after which etcd removes a server without signs of life
    #[arg(long, requires = "etcd", default_value_t = EtcdOptions::LEASE_SECONDS)]
    pub(crate) etcd_lease_seconds: u64,
    /// File with the user and the password of etcd, as in user:password
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_user_file: Option<PathBuf>,
    /// Certificate of the authority of etcd in PEM; needed for https
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate in PEM that the server shows to etcd
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Private key of this certificate in PEM
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_key: Option<PathBuf>,
}

/// The settings of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct PsServeArgs {
    /// Folder that servers and trainers share; checkpoints are written below it
    #[arg(long)]
    pub(crate) store: PathBuf,
    /// Number of this server, counted from 0
    #[arg(long, default_value_t = 0)]
    pub(crate) id: u32,
    /// Address to listen on (port 0: any free port)
    #[arg(long, default_value = "127.0.0.1:7100")]
    pub(crate) listen: String,
    /// File with the secret that trainers must show; needed for an address that other hosts can
    /// reach
    #[arg(long)]
    pub(crate) token_file: Option<PathBuf>,
    /// Number of threads that work on the tables
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Number of shards of each table; it changes no result
    #[arg(long, default_value = "8")]
    pub(crate) shards: NonZeroUsize,
    /// Address of the HTTP server for metrics; absent: none
    #[arg(long)]
    pub(crate) metrics: Option<String>,
    /// Largest size of a frame in MiB
    #[arg(long, default_value_t = 256)]
    pub(crate) max_frame_mib: u64,
    /// Largest size in MiB of the frames of one connection that wait for the tables
    #[arg(long, default_value_t = 64)]
    pub(crate) in_flight_mib: u64,
    /// Largest number of open connections
    #[arg(long, default_value_t = 16_384)]
    pub(crate) max_connections: usize,
    /// Seconds after which a silent trainer is lost
    #[arg(long, default_value_t = 10.0)]
    pub(crate) lease_seconds: f64,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Give a frame that arrives twice its effect twice (only for the test of this rule)
    #[arg(long, hide = true)]
    pub(crate) without_deduplication: bool,
}

/// The servers to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct PsStatusArgs {
    /// Addresses of the servers
    #[arg(required = true)]
    pub(crate) servers: Vec<String>,
    /// File with the token of the servers
    #[arg(long)]
    pub(crate) token_file: Option<PathBuf>,
    /// Print the states as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds to wait for each server
    #[arg(long, default_value_t = 5.0)]
    pub(crate) deadline_seconds: f64,
}
