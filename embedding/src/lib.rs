//! The engine of sparse embedding tables. A row is found by its key and trained by gradients.
//!
//! The crate has the parts of live tables: the index, the memory, the row optimizers, admission and
//! eviction, spilling to disk, and snapshots. File formats are in `rows/`, the service around the
//! tables is in `ps/`, and the dense model is in `nn/`.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use zillion_device::Workers;
//! use zillion_embedding::*;
//! use zillion_feature::{FeatureKey, RowBuffer, Step};
//! use zillion_rows::conformance::plan_of;
//! use zillion_rows::*;
//!
//! let initial = InitializerSpec::Normal { mean: 0.0, std: 0.01 };
//! let vector = SegmentSpec::new("vector", 8, initial, OptimizerSpec::Sgd { lr: 0.1 });
//! let users = TableSpec { seed: 1, ..TableSpec::new("users", vec![vector]) };
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
//! # Ok::<(), zillion_embedding::Error>(())
//! ```

mod admission;
mod adopt;
pub mod capacity;
mod changes;
mod error;
mod eviction;
mod forecast;
mod free_list;
mod groups;
mod index;
mod layers;
mod lending;
mod narrow;
mod optimizer;
mod prefetch;
mod pruning;
mod resident;
mod set;
mod shape;
mod shard;
mod snapshot;
mod spill;
mod statistics;
mod table;
#[doc(hidden)]
pub mod testing;
mod tombstones;
mod view;

pub use crate::adopt::Adopted;
pub use crate::error::{Error, Result};
pub use crate::eviction::clock::EventClock;
pub use crate::eviction::shared_limit::check_shared_limit;
pub use crate::forecast::{SpillForecast, forecast_spill, rows_within_shared_limit};
pub use crate::groups::{GROUPS, owned_slots, table_groups};
pub use crate::lending::{LentRows, lending_refusal, lent_words};
pub use crate::optimizer::Rates;
pub use crate::pruning::Pruned;
pub use crate::resident::{CacheFigures, ResidentOptions, ResidentReport, ResidentTables};
pub use crate::set::{LAST_STEP, LiveKey, LiveRow, Partials, TableSet, Update};
pub use crate::snapshot::marks::SnapshotMark;
pub use crate::spill::SpillHome;
pub use crate::statistics::SpillStatistics;
pub use crate::statistics::{Counters, TableStatistics};
pub use crate::view::{
    AdmissionForecast, Bin, EvictionForecast, Histogram, Keep, KeyReport, Measure, Norms, Order,
    Outlook, Range, RowReport, RowView, SegmentReport, Shrink, SlotBalance, TableSize, TableSurvey,
    TableView, Waiting,
};
