//! The arguments of keys, tokens and audit logs: `zillion key`, `zillion access`, `zillion audit`,
//! and the options about signatures that several commands have.

use std::path::PathBuf;

use clap::Subcommand;
use toml::value::Datetime;
use zillion_access::Role;
use zillion_registry::Validity;

/// The keys that a reader trusts.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// Folder of trusted public keys; a version or a pointer move that none of them signed is
    /// refused
    #[arg(long, env = "ZILLION_TRUST", value_name = "FOLDER")]
    pub(crate) trust: Option<PathBuf>,
}

/// The key that signs, and the log of what an operator did.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct OperatorArgs {
    /// File of the private key that signs
    #[arg(long, env = "ZILLION_SIGN_KEY", hide_env_values = true, value_name = "KEY_FILE")]
    pub(crate) sign: Option<PathBuf>,
    /// Time for which the signed pointer move is valid, as in 30d, 12h or 90m; absent: for ever
    #[arg(long, value_name = "TIME", requires = "sign")]
    pub(crate) valid_for: Option<Validity>,
    /// File for the audit log of what this command does; one process at a time writes to it
    #[arg(long, env = "ZILLION_AUDIT_LOG", value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key: NAME.key signs and stays secret, NAME.pub verifies
    #[command(after_help = "\
Example: zillion key new --out release")]
    New(KeyNewArgs),
    /// Add a public key to a folder of trusted keys
    #[command(after_help = "\
Example: zillion key trust release.pub --keys /etc/zillion/trusted")]
    Trust(KeyTrustArgs),
    /// Show the id of a private or public key, or of the keys of a folder
    #[command(after_help = "\
Example: zillion key show release.pub
         zillion key show /etc/zillion/trusted")]
    Show(KeyShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyNewArgs {
    /// Names of the two files without their endings .key and .pub; neither may exist
    #[arg(long, value_name = "NAME")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyTrustArgs {
    /// File of the public key
    #[arg(value_name = "PUB")]
    pub(crate) key: PathBuf,
    /// Folder of trusted keys, which is created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keys: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyShowArgs {
    /// File of a key, or folder of trusted keys
    pub(crate) file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// Make a bearer token: the token on stderr, once, and its entry of the access file on stdout
    #[command(after_help = "\
Example: zillion access token --name ranker --roles score,read --models clicks >> access.toml")]
    Token(TokenArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// Name of the caller, which stands in the audit log
    #[arg(long)]
    pub(crate) name: String,
    /// Groups of calls that the caller may make: score, read, metrics, operate, publish
    #[arg(long, value_delimiter = ',', required = true, value_parser = parse_role)]
    pub(crate) roles: Vec<Role>,
    /// Models that the roles hold for; absent: all models
    #[arg(long, value_delimiter = ',')]
    pub(crate) models: Vec<String>,
    /// End of the token's validity, as in 2027-01-01T00:00:00Z; absent: valid until the entry is
    /// removed
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<Datetime>,
    /// Print the token and the entry as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Verify the chain of an audit log, and print its number of lines and its last hash
    #[command(after_help = "\
Example: zillion audit verify /var/log/zillion/audit.jsonl
         zillion audit verify audit.jsonl --last HASH
Exit codes: 0 the chain is whole (and has the hash), 1 a line was changed or removed.")]
    Verify(AuditVerifyArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditVerifyArgs {
    /// File of the audit log; its full files FILE.1, FILE.2, ... are verified too
    pub(crate) file: PathBuf,
    /// Last hash of an earlier verification; if lines at the end were removed, the log does not
    /// have it
    #[arg(long, value_name = "HASH")]
    pub(crate) last: Option<String>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses the name of a group of calls.
fn parse_role(text: &str) -> Result<Role, String> {
    match text {
        "score" => Ok(Role::Score),
        "read" => Ok(Role::Read),
        "metrics" => Ok(Role::Metrics),
        "operate" => Ok(Role::Operate),
        "publish" => Ok(Role::Publish),
        _ => Err("use score, read, metrics, operate or publish".to_owned()),
    }
}
