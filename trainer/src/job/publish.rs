//! The `[publish]` section: versions of the model, while it trains. Like `[run]` it changes nothing in what
//! training computes, so that no checkpoint remembers it.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use zillion_registry::STABLE;

/// Where and when a run publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishConfig {
    /// The registry: a folder, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`.
    pub registry: String,
    /// The model's name there; absent: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Steps between two versions; absent: one at the end of each epoch that is the best so far. With it,
    /// every epoch ends with a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<NonZeroUsize>,
    /// The pointer that is moved to each version; empty: none.
    #[serde(default = "default_promote")]
    pub promote: String,
    /// Rows that a version carries with their scores, which a server must reproduce before it serves it.
    #[serde(default = "default_parity_rows")]
    pub parity_rows: NonZeroUsize,
    /// Deltas on top of each other before a new base is published: servers that start read them all.
    #[serde(default = "default_max_deltas")]
    pub max_deltas: u64,
}

impl PublishConfig {
    /// What the section is where only the registry is named.
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

    /// The pointer that is moved, if one is.
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
