//! Sparse embedding tables: rows by key, that learn.
//!
//! What it is: the index, the memory, the initial rows, the row optimizers, the checkpoint parts, and the
//! trait [`RowSource`] that scores get their rows from. What it is *not*: it knows no network (`ps/` puts
//! a contract around it) and no dense model (`nn/` sees slices).
//!
//! ```
//! use std::num::NonZeroUsize;
//! use zillion_device::Workers;
//! use zillion_embedding::conformance::plan_of;
//! use zillion_embedding::*;
//! use zillion_feature::{FeatureKey, RowBuffer, Step};
//!
//! let vector = SegmentSpec {
//!     name: "vector".into(),
//!     dim: 8,
//!     initializer: InitializerSpec::Normal { mean: 0.0, std: 0.01 },
//!     optimizer: OptimizerSpec::Sgd { lr: 0.1 },
//!     l2: 0.0,
//!     l2_scope: None,
//!     clip: None,
//!     bounds: None,
//! };
//! let users = TableSpec {
//!     name: "users".into(),
//!     segments: vec![vector],
//!     dense: false,
//!     max_rows: None,
//!     unknown: Unknown::Seeded,
//!     admission: Admission::All,
//!     eviction: Eviction::Never,
//!     dtype: Dtype::F32,
//!     pinned: Vec::new(),
//!     statistics: None,
//!     grow: None,
//!     max_bytes: None,
//!     seed: 1,
//! };
//! let workers = Workers::new(NonZeroUsize::MIN)?;
//! let mut tables = TableSet::new(vec![users], DEFAULT_SHARDS)?;
//!
//! let plan = plan_of(&[vec![FeatureKey::from_i64(7), FeatureKey::from_i64(9)]]);
//! let mut rows = RowBuffer::default();
//! tables.pull(&workers, &plan, false, &mut rows)?; // both unknown: their initial rows
//!
//! rows.tables[0].values.fill(1.0); // as if these were gradients
//! let update = Update { step: Step(1), rates: Rates::default(), scale: 1.0 };
//! let counted = tables.push(&workers, &plan, &rows, update)?;
//! assert_eq!(counted.created, 2);
//! # Ok::<(), Error>(())
//! ```

mod ahead;
mod arrow_file;
mod candidates;
pub mod capacity;
mod dtype;
mod error;
mod filter;
mod forecast;
mod gate;
mod index;
mod initializer;
pub mod layer;
mod life;
mod limits;
mod narrow;
mod optimizer;
mod part;
mod part_source;
mod set;
mod shape;
mod shard;
mod source;
mod spec;
mod spill;
mod statistics;
mod table;
#[cfg(test)]
mod testing;
mod view;

pub use dtype::Dtype;
pub use error::{Error, Result};
pub use forecast::{SpillForecast, rows_within_shared_limit};
#[doc(hidden)]
pub use index::IndexAlone;
pub use initializer::InitializerSpec;
pub use life::{Admission, ByteSize, Eviction, Growth, PinnedId, UseStatistics};
pub use optimizer::{Bounds, ClipSpec, OptimizerSpec, Rates};
pub use part::{ChangedParts, ListedParts, MAX_PART_ROWS, PartInfo, PartsBelow, TableParts};
pub use part_source::PartSource;
pub use set::{
    Adopted, DEFAULT_SHARDS, LAST_STEP, LiveRows, SnapshotMark, TableSet, Update,
    check_shared_limit,
};
pub use source::{LookupReport, RowSource, conformance};
pub use spec::{
    DEFAULT_DENSE_ROWS, Scope, SegmentLayout, SegmentSpec, TableLayout, TableSpec, Unknown,
};
pub use spill::{SpillHome, SpillStatistics};
pub use statistics::{Counters, TableStatistics};
pub use view::{
    AdmissionForecast, Bin, EvictionForecast, Histogram, Keep, KeyReport, Measure, Norms, Order,
    Outlook, Range, RowReport, RowView, SegmentReport, Shrink, SlotBalance, TableSize, TableSurvey,
    TableView, Waiting,
};
