//! Versions of models on an object store, and the one inference path.
//!
//! Validation, evaluation and prediction go through [`Scorer`]; gates, parity and serving too. It takes any
//! [`RowSource`](zillion_embedding::RowSource), so that live tables, a checkpoint and a published version
//! are scored by the same code. [`Registry`] keeps versions: published whole or not at all, named by
//! numbers, chained by hashes, pointed to by names that operators move.
//!
//! It is *not* a trainer and not a server: it knows neither jobs nor HTTP.

mod cache;
mod cache_place;
mod collect;
mod error;
mod model;
mod numbered;
mod parity;
mod pointer;
mod publish;
mod scorer;
mod servable;
mod side_file;
mod stack;
mod store;
mod verify;
mod version;

pub use cache::{Cache, CacheCounts, CacheSize};
pub use cache_place::default_cache;
pub use collect::{Collected, Lease, Retention};
pub use error::{Error, Result};
pub use model::{CANARY, Model, Registry, STABLE};
pub use parity::{ParityColumn, ParityRows, ParityValue};
pub use pointer::{MoveKind, PointerMove};
pub use publish::Draft;
pub use scorer::{Scorer, Scores};
pub use servable::{RowScores, Servable};
pub use side_file::{read_side, write_side};
pub use store::{
    Environment, LAST_WORDS, Listed, Listing, Operation, Outcome, STORE_SETTINGS, Store,
    StoreStats, StoreStop, StoreSums,
};
pub use verify::Verified;
pub use version::{Link, Origin, ScoreSettings, VersionFile, VersionId, VersionManifest};
