//! Versions of models on an object store.
//!
//! A [`Registry`] contains the versions of models. A version is published completely or not at all.
//! It has a number, and a hash links it to its parent. A pointer is a name for a version, and
//! operators can move it to another version. A [`Cache`] contains the files of versions on the
//! machine that reads them.
//!
//! The crate does not train, does not compute scores, and does not depend on HTTP.

mod cache;
mod cache_place;
mod collect;
mod error;
mod model;
mod numbered;
mod pointer;
mod publish;
mod side_file;
mod stack;
mod verify;
mod version;

pub use cache::{Cache, CacheCounts, CacheSize};
pub use cache_place::default_cache;
pub use collect::{Collected, Lease, Retention};
pub use error::{Error, Result};
pub use model::{CANARY, Model, Registry, STABLE};
pub use pointer::{MoveKind, PointerMove};
pub use publish::Draft;
pub use side_file::{read_side, write_side};
pub use verify::Verified;
pub use version::{Link, Origin, ScoreSettings, VersionFile, VersionId, VersionManifest};
