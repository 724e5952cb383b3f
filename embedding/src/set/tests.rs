//! Tables as a whole: against a model, and against themselves with other shards and threads.

mod capacity;
mod chains;
mod changes;
mod dtypes;
mod growth;
mod guards;
mod invariance;
mod learning;
mod life;
mod model;
mod refusals;
mod snapshots;
mod spill;

pub(crate) use invariance::{contents, defaults};
