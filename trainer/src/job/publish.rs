//! The `[publish]` section: versions of the model, while it trains. Like `[run]` it does not change
//! what training computes, so that no checkpoint remembers it.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use zillion_registry::STABLE;

/// The place and time of the versions that a run publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishConfig {
    /// The registry: a folder, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`.
    pub registry: String,
    /// The name of the model in the registry; absent: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The steps between two versions; absent: one version at the end of each epoch that is the
    /// best so far. With this setting every epoch also ends with a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<NonZeroUsize>,
    /// The pointer that is moved to each version; empty: none.
    #[serde(default = "default_promote")]
    pub promote: String,
    /// The number of rows that a version carries with their scores, which a server must reproduce
    /// before it serves the version.
    #[serde(default = "default_parity_rows")]
    pub parity_rows: NonZeroUsize,
    /// The number of deltas on top of each other before a new base is published. A server that
    /// starts reads them all.
    #[serde(default = "default_max_deltas")]
    pub max_deltas: u64,
}

impl PublishConfig {
    /// Returns the section with defaults for all but the registry.
    pub fn new(registry: &str) -> Self {
        Self {
            registry: registry.to_owned(),
            model: None,
            every: None,
            promote: default_promote(),
            parity_rows: default_parity_rows(),
            max_deltas: default_max_deltas(),
        }
    }

    /// Returns the pointer that is moved, if there is one.
    pub fn pointer(&self) -> Option<&str> {
        Some(self.promote.as_str()).filter(|pointer| !pointer.is_empty())
    }
}

fn default_promote() -> String {
    STABLE.to_owned()
}

fn default_parity_rows() -> NonZeroUsize {
    NonZeroUsize::new(64).expect("a literal above zero")
}

fn default_max_deltas() -> u64 {
    512
}
