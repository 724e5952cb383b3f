//! Inference: the computation of scores from raw values or from batches.
//!
//! Validation, evaluation, prediction, parity rows and the server all use [`Scorer`] to score
//! batches. A scorer takes any [`RowSource`](zillion_rows::RowSource), so the same code scores with
//! the tables of a training run, with a checkpoint and with a published version. A [`Servable`] is
//! a loaded version: it encodes raw values, looks up their rows and scores them. Loading fails
//! unless the machine reproduces the trainer's scores of the version's [`ParityRows`].
//!
//! The crate has no training loop and no server, and does not depend on jobs or HTTP.

mod damage;
mod device;
mod error;
mod items;
mod late;
mod nearest;
mod onnx;
mod parity;
mod programs;
mod retrieval;
mod rounded_items;
mod scorer;
mod scratch;
mod servable;
#[cfg(test)]
mod testing;
mod warm;

pub use device::{DeviceStatistics, ScoringDevice};
pub use error::{Error, Result};
pub use items::{ItemDelta, ItemIds, ItemVectors, LoadedItems, Texts, load_items};
pub use late::LateCheck;
pub use nearest::{Choice, Found, find_near, find_nearest};
pub use onnx::{COMPUTED_WITH, OnnxInterface, OnnxModel, onnx_tasks};
pub use parity::{ParityColumn, ParityRows, ParityValue};
pub use retrieval::{EXACT_BELOW, Retrievable, Retrieved};
pub use rounded_items::RoundedItems;
pub use scorer::{Scorer, Scores};
pub use servable::{RowScores, Servable, published_dense, task_names};
pub use zillion_nn::DenseType;
