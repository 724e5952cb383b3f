//! Versions of models on an object store.
//!
//! A [`Registry`] keeps versions: published whole or not at all, named by numbers, chained by
//! hashes, pointed to by names that operators move. A [`Cache`] holds the files of versions on the
//! machine that reads them.
//!
//! It is *not* a trainer, it does not compute scores, and it does not know HTTP.

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
