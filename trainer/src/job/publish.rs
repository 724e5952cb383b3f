//! The `[publish]` section: the versions that are published while a model trains. Like `[run]`, the
//! section does not change what training computes, so a checkpoint does not store it.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_nn::DenseType;
use zillion_nn::zoo::ModelSpec;
use zillion_registry::{Retention, RoundedDense, STABLE, Validity};
use zillion_rows::{RowType, TableSpec};

use super::Job;
use crate::error::Result;

/// The settings of the versions that a run publishes: their registry, interval and contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishConfig {
    /// The registry: a folder, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`.
    pub registry: String,
    /// The name of the model in the registry; absent: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The number of steps between two versions; absent: one version at the end of each epoch that
    /// is the best epoch so far. With this setting, a version is also published at the end of every
    /// epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<NonZeroUsize>,
    /// The pointer that is moved to each version; empty: none.
    #[serde(default = "default_promote")]
    pub promote: String,
    /// Whether the first version of a run over streams may replace the version of another run at
    /// the pointer.
    #[serde(default)]
    pub take_over: bool,
    /// The number of parity rows in a version. A server must reproduce their scores before it
    /// serves the version.
    #[serde(default = "default_parity_rows")]
    pub parity_rows: NonZeroUsize,
    /// The largest number of deltas on a base before a new base is published. A server that starts
    /// reads all of them.
    #[serde(default = "default_max_deltas")]
    pub max_deltas: u64,
    /// The number of versions of which one has new dense parameters. The others have the dense
    /// parameters of their parent.
    #[serde(default = "default_dense_every")]
    pub dense_every: NonZeroUsize,
    /// The number type of the weights in the rows of versions. Training does not change.
    #[serde(default)]
    pub rows: RowType,
    /// The largest number of hot keys that a version lists for each table, so that servers read
    /// their rows before they are ready; 0: versions list none.
    #[serde(default)]
    pub hot_keys: u32,
    /// The number type in which servers compute the dense layers of versions, unless a server
    /// chooses one itself. Training does not change.
    #[serde(default)]
    pub dense: DenseType,
    /// The number of newest versions that the publisher keeps while it removes older ones; absent:
    /// it removes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_versions: Option<NonZeroUsize>,
    /// The age in seconds below which the publisher removes no version, no file and no move.
    #[serde(default = "default_keep_seconds")]
    pub keep_seconds: u64,
    /// The file of the private key that signs versions and moves of the pointer; absent: they are
    /// not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign: Option<PathBuf>,
    /// The time for which a signed move of the pointer is valid, as in `30d`; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for: Option<Validity>,
    /// The catalogue of the items that servers retrieve; for `two_tower`. Absent: versions cannot
    /// retrieve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsConfig>,
}

/// The `[publish.items]` section: the catalogue of the items that servers retrieve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemsConfig {
    /// The file with one row for each item, relative to the root folder of the data. It has the
    /// columns of the item's tower. It is read again for each version.
    pub path: String,
    /// The column of the file with the ids of the items; absent: the column of the item's feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl PublishConfig {
    /// Returns the section with the default of every setting except the registry.
    pub fn new(registry: &str) -> Self {
        Self {
            registry: registry.to_owned(),
            model: None,
            every: None,
            promote: default_promote(),
            take_over: false,
            parity_rows: default_parity_rows(),
            max_deltas: default_max_deltas(),
            dense_every: default_dense_every(),
            rows: RowType::default(),
            hot_keys: 0,
            dense: DenseType::default(),
            keep_versions: None,
            keep_seconds: default_keep_seconds(),
            sign: None,
            valid_for: None,
            items: None,
        }
    }

    /// Sets the number type of the published rows, and the number of the listed hot keys, in the
    /// specs of the tables.
    ///
    /// # Errors
    /// Returns an error if the rows of a table cannot have the type, or if the number is too large.
    pub(crate) fn set_rows(&self, tables: &mut [TableSpec]) -> Result<()> {
        for table in tables {
            table.published = self.rows;
            table.hot_keys = self.hot_keys;
            table.validate()?;
        }
        Ok(())
    }

    /// Returns the number type of dense layers as a version has it.
    pub(crate) fn rounded_dense(&self) -> Option<RoundedDense> {
        match self.dense {
            DenseType::F32 => None,
            DenseType::Bf16 => Some(RoundedDense::Bf16),
            DenseType::Int8 => Some(RoundedDense::Int8),
        }
    }

    /// Returns the rules by which the publisher removes old versions, if it removes any.
    pub(crate) fn retention(&self) -> Option<Retention> {
        let keep_for = Duration::from_secs(self.keep_seconds);
        let keep = self.keep_versions?.get();
        Some(Retention { keep, keep_for, grace: keep_for, history: true })
    }

    /// Returns the pointer that is moved to each version, if there is one.
    pub fn pointer(&self) -> Option<&str> {
        Some(self.promote.as_str()).filter(|pointer| !pointer.is_empty())
    }
}

impl Job {
    /// Checks the settings of `[publish]` that depend on other settings.
    pub(super) fn check_publish(&self) -> Result<()> {
        let has_items = self.publish.as_ref().is_some_and(|publish| publish.items.is_some());
        if has_items && !matches!(self.model, ModelSpec::TwoTower(_)) {
            let message = format!(
                "needs a two_tower to retrieve items, but the model is {}; remove it, or change \
                 the model",
                self.model.kind()
            );
            return Err(ConfigError::at("publish.items", message).into());
        }
        Ok(())
    }
}

fn default_promote() -> String {
    STABLE.to_owned()
}

fn default_parity_rows() -> NonZeroUsize {
    NonZeroUsize::new(64).expect("a literal above zero")
}

fn default_dense_every() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn default_keep_seconds() -> u64 {
    3600
}

fn default_max_deltas() -> u64 {
    512
}
