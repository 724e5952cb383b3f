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
mod collect_memory;
mod compaction;
mod error;
mod frame;
mod frames;
mod incremental;
mod manifest_scan;
mod model;
mod model_files;
mod new_frame;
mod numbered;
mod origin;
mod pointer;
mod pointer_check;
mod promote;
mod proof;
mod publish;
mod quarantine;
mod reference;
mod remembered;
mod rollback;
mod side_file;
mod stack;
mod stored;
mod trust;
mod verify;
mod version;

pub use cache::{Attempt, Cache, CacheCounts, CacheSize, Crashes, LayerMerge};
pub use cache_place::default_cache;
pub use chain::Chain;
pub use collect::{Collected, Lease, Retention};
pub use collect_memory::CollectMemory;
pub use error::{Error, Result};
pub use frame::{Frame, RoundedDense, ScoreSettings};
pub use model::{CANARY, Model, Registry, STABLE};
pub use new_frame::{FrameDraft, NewFrame};
pub use origin::Origin;
pub use pointer::{MoveKind, PointerMove};
pub use publish::{Draft, DraftItems};
pub use quarantine::Quarantine;
pub use reference::{ITEM_DELTA, ITEMS, Link, MAX_ONNX_BYTES, ONNX, VersionFile, VersionId};
pub use remembered::Remembered;
pub use side_file::{read_side, write_side};
pub use stored::reseal_manifest;
pub use trust::{Signer, Validity};
pub use verify::Verified;
pub use version::{VersionLayer, VersionManifest};
