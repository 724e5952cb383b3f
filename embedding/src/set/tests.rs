//! Tables as a whole: against a model, and against themselves with other shards and threads.

mod changes;
mod invariance;
mod learning;
mod life;
mod model;
mod refusals;
mod spill;

pub(crate) use invariance::{contents, defaults};
