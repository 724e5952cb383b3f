//! The arguments of `zillion explain`.

use std::path::PathBuf;

use clap::ValueEnum;
use zillion_registry::VersionId;

use super::ModelRef;

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Number of the version; absent: the one that the pointer `stable` names
    #[arg(value_name = "VERSION", conflicts_with = "version")]
    pub(crate) number: Option<VersionId>,
    /// Number of the version, as a named option
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<VersionId>,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// Id as in the data; with --key-type hash, the key as 0x and 16 digits
    #[arg(long)]
    pub(crate) key: String,
    /// Type of the id: a number, a text, or the key itself (hash); absent: the type that the
    /// features of the table have
    #[arg(long, value_enum)]
    pub(crate) key_type: Option<KeyType>,
    /// Folder for the files that are fetched; absent: .cache below a local registry, zillion/HASH
    /// in the user's cache folder for a remote one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Print one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KeyType {
    I64,
    U64,
    String,
    Hash,
}
