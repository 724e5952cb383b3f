//! The one inference path: graph + rows + batch → scores.
//!
//! Validation, evaluation and prediction go through [`Scorer`]; gates, parity and serving will. It
//! takes any [`RowSource`](zillion_embedding::RowSource), so that live tables, a checkpoint and, later,
//! a published version are scored by the same code. Versions, pointers and their store will live in
//! this crate too; they are not here yet.

mod error;
mod scorer;

pub use error::{Error, Result};
pub use scorer::{Scorer, Scores};
