//! The arguments of `zillion ps`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Subcommand;
use zillion_ps::EtcdOptions;

use super::KeyType;

#[derive(Debug, Subcommand)]
pub(crate) enum ParameterService {
    /// Hold a part of the tables of a training run in this process
    #[command(after_help = SERVE)]
    Serve(PsServeArgs),
    /// Show the run, the slots, the trainers and the tables of servers
    #[command(after_help = "\
Example: zillion ps status 127.0.0.1:7100 127.0.0.1:7101 127.0.0.1:7102
         zillion ps status --etcd http://127.0.0.1:2379 --json")]
    Status(PsStatusArgs),
    /// Show all data of a live table about one key: its row, its counts and its optimizer state
    #[command(after_help = "\
Example: zillion ps explain user 42 --ps 127.0.0.1:7100,127.0.0.1:7101
         zillion ps explain genres drama --key-type string --ps 127.0.0.1:7100 --json")]
    Explain(PsExplainArgs),
    /// Ask the run to write a checkpoint after its present step, and wait for it
    #[command(after_help = "\
Example: zillion ps checkpoint 127.0.0.1:7100")]
    Checkpoint(PsCheckpointArgs),
    /// Set the run back to a checkpoint, and repeat the steps since then
    #[command(after_help = "\
Example: zillion ps restore 127.0.0.1:7100
         zillion ps restore 127.0.0.1:7100 --step 4000 --yes
Without --yes, the command only prints what it would do.")]
    Restore(PsRestoreArgs),
}

const SERVE: &str = "\
Example: zillion ps serve --store /srv/zillion --id 0 --listen 127.0.0.1:7100
         zillion train job.toml --ps 127.0.0.1:7100 --ps-store /srv/zillion
A server has no data until a trainer begins a run. After a restart, the trainers continue from their newest
checkpoint. Without --tls-cert, frames are not encrypted: keep servers and trainers on a private network.
With --etcd, trainers find the server by its number: zillion train job.toml --ps-etcd http://HOST:2379 --ps-count 1";

/// The members of etcd in which servers register, and the proof of identity that they ask for.
#[derive(Debug, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Members of etcd in which the servers register, as in http://HOST:2379,http://HOST:2379;
    /// absent: addresses of servers are listed
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Prefix of the keys of the cluster in etcd
    #[arg(long, requires = "etcd", value_name = "PREFIX", default_value = EtcdOptions::PREFIX)]
    pub(crate) etcd_prefix: String,
    /// File with the user and the password of etcd, as in user:password
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_user_file: Option<PathBuf>,
    /// Certificate of the authority of etcd in PEM; needed for https
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate in PEM that this process shows to etcd
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Private key of this certificate in PEM
    #[arg(long, requires = "etcd", value_name = "FILE")]
    pub(crate) etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// Returns the settings of etcd, or `None` if no member of etcd is named.
    pub(crate) fn options(&self) -> Option<EtcdOptions> {
        (!self.etcd.is_empty()).then(|| EtcdOptions {
            prefix: self.etcd_prefix.clone(),
            user_file: self.etcd_user_file.clone(),
            ca_file: self.etcd_ca.clone(),
            cert_file: self.etcd_cert.clone(),
            key_file: self.etcd_key.clone(),
            ..EtcdOptions::new(self.etcd.clone())
        })
    }
}

/// The settings of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct PsServeArgs {
    /// Folder that servers and trainers share, or URL of a bucket; checkpoints are written below it
    #[arg(long)]
    pub(crate) store: PathBuf,
    /// Folder for files on their way to a bucket or to the publisher; absent: that of the system
    #[arg(long)]
    pub(crate) scratch: Option<PathBuf>,
    /// Number of this server, counted from 0
    #[arg(long, default_value_t = 0)]
    pub(crate) id: u32,
    /// Address to listen on (port 0: any free port)
    #[arg(long, default_value = "127.0.0.1:7100")]
    pub(crate) listen: String,
    /// File with the secret that trainers must show; this or --tls-client-ca is needed for an
    /// address that other hosts can reach
    #[arg(long)]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificate of the server, in PEM; absent: connections are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File with the authorities that sign the certificates of clients, in PEM; a client without
    /// such a certificate is then refused
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
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
    /// Largest size in MiB of the frames of all connections that wait for the tables
    #[arg(long, default_value_t = 1024)]
    pub(crate) total_in_flight_mib: u64,
    /// Largest number of open connections
    #[arg(long, default_value_t = 16_384)]
    pub(crate) max_connections: usize,
    /// Seconds after which a silent trainer is lost
    #[arg(long, default_value_t = 10.0)]
    pub(crate) lease_seconds: f64,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Address by which trainers reach the server; absent: the address that it listens on
    #[arg(long, requires = "etcd", value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Seconds after which etcd removes a server without signs of life
    #[arg(long, requires = "etcd", default_value_t = EtcdOptions::LEASE_SECONDS)]
    pub(crate) etcd_lease_seconds: u64,
    /// Seconds for which a server that is told to end waits for a last checkpoint; 0: it ends at
    /// once
    #[arg(long, default_value_t = 30.0)]
    pub(crate) drain_seconds: f64,
    /// Give a frame that arrives twice its effect twice (only for the test of this rule)
    #[arg(long, hide = true)]
    pub(crate) without_deduplication: bool,
}

/// The servers to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct PsStatusArgs {
    /// Addresses of the servers; absent: --etcd finds them
    #[arg(required_unless_present = "etcd", conflicts_with = "etcd")]
    pub(crate) servers: Vec<String>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) access: PsAccessArgs,
    /// Print the states as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// The proof of identity that a command shows to servers, and its patience.
#[derive(Debug, clap::Args)]
pub(crate) struct PsAccessArgs {
    /// File with the token of the servers
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the authorities that sign the certificates of the servers, in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// File with the certificate that the command shows, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the private key of this certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Seconds to wait for an answer of each server
    #[arg(long, default_value_t = 5.0)]
    pub(crate) deadline_seconds: f64,
}

/// The key to explain.
#[derive(Debug, clap::Args)]
pub(crate) struct PsExplainArgs {
    /// Name of the table
    pub(crate) table: String,
    /// Id in the data, or a key in hexadecimal (0x...)
    pub(crate) key: String,
    /// Type of the id; absent: a whole number, or a key if it begins with 0x
    #[arg(long, value_enum)]
    pub(crate) key_type: Option<KeyType>,
    /// Servers of the run, as in HOST:PORT,HOST:PORT; absent: --etcd finds them
    #[arg(
        long = "ps",
        value_name = "SERVERS",
        value_delimiter = ',',
        required_unless_present = "etcd",
        conflicts_with = "etcd"
    )]
    pub(crate) servers: Vec<String>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) access: PsAccessArgs,
    /// Print the data as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// The request for a checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct PsCheckpointArgs {
    /// Addresses of servers of the run; the first one that can be reached is asked; absent: --etcd
    /// finds them
    #[arg(required_unless_present = "etcd", conflicts_with = "etcd")]
    pub(crate) servers: Vec<String>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Seconds to wait for the checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub(crate) wait: f64,
    #[command(flatten)]
    pub(crate) access: PsAccessArgs,
    /// Print the outcome as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// The request to set a run back.
#[derive(Debug, clap::Args)]
pub(crate) struct PsRestoreArgs {
    /// Addresses of servers of the run; the first one that can be reached is asked; absent: --etcd
    /// finds them
    #[arg(required_unless_present = "etcd", conflicts_with = "etcd")]
    pub(crate) servers: Vec<String>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Step of the checkpoint; absent: the newest one. Checkpoints of later steps are removed
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Set the run back, instead of printing what would be done
    #[arg(long)]
    pub(crate) yes: bool,
    /// Seconds to wait until the run goes on
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub(crate) wait: f64,
    #[command(flatten)]
    pub(crate) access: PsAccessArgs,
    /// Print the outcome as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}
