//! The outcome of a publication.

use std::fmt;
use std::sync::Arc;

use zillion_registry::{PointerMove, VersionManifest};
use zillion_store::StoreSums;

use super::compactor::CompactionCounts;

/// The outcome of a publication.
#[derive(Clone, Debug)]
pub struct Published {
    /// The version that was published.
    pub version: Arc<VersionManifest>,
    /// The move of the pointer, if it was moved.
    pub moved: Option<PointerMove>,
    /// Whether the version existed before this call. A step is published only once.
    pub was_there: bool,
    /// The counts of operations on the store since the publisher was opened.
    pub store: StoreSums,
    /// The number of deltas in the chain of the version. It is `None` if the publisher did not need
    /// to read the chain.
    pub deltas: Option<u64>,
    /// The counts of merges to new bases since the publisher was opened.
    pub compactions: CompactionCounts,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, moved, was_there, .. } = self;
        let layer = &version.layer;
        let gone = layer.tombstones();
        write!(f, "version {} of {}: ", version.version, version.model)?;
        match &version.parent {
            None => write!(f, "a base of {} rows", layer.rows())?,
            Some(parent) => {
                write!(f, "{} rows changed since version {}", layer.rows() - gone, parent.version)?;
                if gone > 0 {
                    write!(f, ", {gone} removed")?;
                }
            }
        }
        if *was_there {
            write!(f, ", published before")?;
        }
        if let Some(sparsity) = layer.sparsity() {
            write!(f, "; {sparsity}")?;
        }
        match moved {
            Some(_) => write!(f, "; the pointer stands on it"),
            None => Ok(()),
        }
    }
}
