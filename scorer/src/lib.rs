//! The one inference path: from raw values, or from a batch, to scores.
//!
//! Validation, evaluation and prediction score batches by [`Scorer`], and so do parity rows and the
//! server. A scorer takes any [`RowSource`](zillion_rows::RowSource), so that live tables, a
//! checkpoint and a published version are scored by the same code. A [`Servable`] is a published
//! version, loaded: it encodes raw values, looks their rows up and scores them, and it is only
//! handed out after it has reproduced the trainer's scores of its [`ParityRows`].
//!
//! It is *not* a trainer and not a server: it knows neither jobs nor HTTP.

mod error;
mod parity;
mod scorer;
mod servable;

pub use error::{Error, Result};
pub use parity::{ParityColumn, ParityRows, ParityValue};
pub use scorer::{Scorer, Scores};
pub use servable::{RowScores, Servable};
