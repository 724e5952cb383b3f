//! The metrics of a model: exact AUC, grouped AUC, log loss and calibration.
//!
//! Published results are compared to the fourth decimal, so nothing here is binned, sampled or
//! summed in f32: ranks are exact, sums are f64 in row order, and the same rows give the same bits
//! for any number of threads. Every function refuses a score that is NaN and a label that is
//! neither 0 nor 1, and names the row. A metric that cannot be computed, for example the AUC of
//! rows of one class, is `None`.
//!
//! Sample weights are optional everywhere: a row of weight 2 counts as two rows, and a row of
//! weight 0 does not count.

mod auc;
mod calibration;
mod evaluation;
mod gauc;
mod input;
mod logloss;
mod ranking;

pub use auc::auc;
pub use calibration::{CalibrationBucket, calibration_table};
pub use evaluation::{Evaluation, Report, Scores};
pub use gauc::{Gauc, gauc};
pub use ranking::{Cutoffs, Ranking, RankingFigure};

#[cfg(test)]
mod tests;
