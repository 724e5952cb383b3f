//! Progressive validation: the quality of a model on rows that it has not learned from yet.
//!
//! The caller scores each batch before the batch is learned from, with the live model and, if there
//! is one, with the stable version. [`Windows`] sums the scores up by the time of the events. A
//! window is closed when the watermark has passed its end. It then has an AUC, a logloss and a
//! calibration, for all rows and for each segment, and the difference of the two models on the same
//! rows with its standard error.
//!
//! The difference is the figure to judge by. The AUC of 6,000 rows has a standard error of about
//! 0.007, and most of this error is common to both models.
//!
//! # The AUC
//! The AUC is computed from a histogram of scores with 512 bins of 1/16 log-odds from -16 to 16.
//! Two rows in the same bin are a tie, which counts one half. So the AUC needs a bounded memory,
//! and a long window is the sum of its short ones. The exact AUC needs all rows: 6 million in ten
//! minutes at 10,000 rows a second. The difference between both is below a tenth of the standard
//! error of the AUC, for scores whose log-odds have a standard deviation of at least 1/2.
//!
//! # The standard error
//! The rows of a window are dealt into 20 groups, 16 consecutive rows at a time. The standard error
//! is that of the jackknife, which leaves out one group at a time (Efron and Stein, "The jackknife
//! estimate of variance", 1981). The method of DeLong needs all rows, or the joint histogram of
//! both models' scores, and takes rows as independent. Groups can be summed up, serve AUC and
//! logloss alike, and keep most rows of one request together.
//!
//! # Invariants
//! * No clock is read. The results are a function of the batches, the watermarks and the settings.
//! * All sums are integers. So they do not depend on the order of rows within a group, and a window
//!   that was restored from a checkpoint has the same figures, bit for bit.

mod error;
mod figures;
mod groups;
mod histogram;
mod segments;
mod settings;
mod sum;
mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod windows;

pub(crate) use groups::{check_batch, check_rows};
pub(crate) use histogram::Weight;
pub(crate) use tally::Tally;

pub use error::ValidationError;
pub use figures::{ClosedWindow, Counters, Difference, Figures, Paired, SegmentFigures};
pub use groups::compare;
pub use histogram::Histogram;
pub use settings::Settings;
pub use windows::{Batch, Begun, State, Windows};
