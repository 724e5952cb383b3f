//! The arguments of `zillion explain`.

use std::path::PathBuf;

use clap::ValueEnum;
use zillion_registry::VersionId;

use super::ModelRef;

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// The version; absent: where the pointer `stable` stands
    #[arg(long)]
    pub(crate) version: Option<VersionId>,
    /// Name of the table
    #[arg(long)]
    pub(crate) table: String,
    /// The id as the data has it
    #[arg(long)]
    pub(crate) key: String,
    /// Take the id as text, as a number, or as the key itself (0x...); absent: as the table's
    /// features do
    #[arg(long, value_enum)]
    pub(crate) key_type: Option<KeyType>,
    /// Folder that files are fetched to
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
