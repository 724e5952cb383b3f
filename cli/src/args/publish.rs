//! The arguments of `zillion publish`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use zillion_console::parse_dense_type;
use zillion_rows::RowType;
use zillion_scorer::DenseType;

use super::{ModelRef, OperatorArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// Folder of a checkpoint, or folder of a run (the best epoch is used)
    pub(crate) checkpoint: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelRef,
    /// Publish a base with all rows, even if a delta is possible
    #[arg(long)]
    pub(crate) base: bool,
    /// Name of the pointer that is moved to the new version
    #[arg(long, default_value = "stable", value_name = "POINTER")]
    pub(crate) promote: String,
    /// Publish without moving a pointer
    #[arg(long, conflicts_with = "promote")]
    pub(crate) no_promote: bool,
    /// File whose first rows become the parity rows (repeatable); absent: the job's validation,
    /// test or training files
    #[arg(long, value_name = "FILE")]
    pub(crate) parity: Vec<String>,
    /// Number of parity rows
    #[arg(long, default_value = "64")]
    pub(crate) parity_rows: NonZeroUsize,
    /// Number type of the weights in the version: f32, f16, bf16 or int8; smaller rows are rounded,
    /// and their AUC on the job's validation files is printed; absent: the type of the version that
    /// the pointer names, otherwise f32
    #[arg(long, value_name = "TYPE", value_parser = parse_row_type)]
    pub(crate) rows: Option<RowType>,
    /// Number type in which servers compute dense layers: f32, bf16 or int8; its AUC on the job's
    /// validation files is printed; absent: the type of the version that the pointer names,
    /// otherwise f32
    #[arg(long, value_name = "TYPE", value_parser = parse_dense_type)]
    pub(crate) dense: Option<DenseType>,
    /// File with one row for each item that servers shall retrieve; for two_tower
    #[arg(long, value_name = "FILE")]
    pub(crate) items: Option<String>,
    /// Publish without items, although the version that the pointer names has items
    #[arg(long, conflicts_with = "items")]
    pub(crate) without_items: bool,
    /// Column of that file with the ids of the items; absent: the column of the item's feature
    #[arg(long, value_name = "COLUMN", requires = "items")]
    pub(crate) items_id: Option<String>,
    /// Override a key of `[data]` of the checkpoint's job, as in --set data.root=... (repeatable);
    /// the other keys stay as the run has them
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the version as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_row_type(name: &str) -> Result<RowType, String> {
    RowType::from_name(name).ok_or_else(|| {
        let names = RowType::ALL.map(RowType::name).join(", ");
        format!("rows of versions cannot have this number type; choose one of {names}")
    })
}
