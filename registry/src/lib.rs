//! Versions of models on an object store.
//!
//! A [`Registry`] keeps versions of models. A version is published completely or not at all, has a
//! number, and is linked to its parent by a hash. A pointer is a name for a version that operators
//! can move. A [`Cache`] holds the files of versions on the machine that reads them.
//!
//! The crate does not train, does not compute scores, and does not depend on HTTP.

mod cache;
mod cache_place;
mod chain;
mod collect;
mod error;
mod manifest_scan;
mod model;
mod numbered;
mod pointer;
mod pointer_check;
mod promote;
mod proof;
mod publish;
mod quarantine;
mod remembered;
mod rollback;
mod side_file;
mod stack;
mod trust;
mod verify;
mod version;

pub use cache::{Attempt, Cache, CacheCounts, CacheSize, Crashes, LayerMerge};
pub use cache_place::default_cache;
pub use chain::Chain;
pub use collect::{Collected, Lease, Retention};
pub use error::{Error, Result};
pub use model::{CANARY, Model, Registry, STABLE};
pub use pointer::{MoveKind, PointerMove};
pub use publish::Draft;
pub use quarantine::Quarantine;
pub use remembered::Remembered;
pub use side_file::{read_side, write_side};
pub use trust::{Signer, Validity};
pub use verify::Verified;
pub use version::{Link, Origin, ScoreSettings, VersionFile, VersionId, VersionManifest};
