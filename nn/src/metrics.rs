//! The metrics of a model: exact AUC, grouped AUC, area under precision and recall, log loss,
//! calibration, the errors of predicted numbers, and the figures of labels of classes.
//!
//! Published results are compared to the fourth decimal. So ranks are exact, and sums are computed
//! in f64 in the order of rows. No metric uses bins or samples. The same rows give the same bits
//! for any number of threads. Every function refuses a score that is NaN and a label that is
//! neither 0 nor 1 (or not finite, if it is a number), and its error names the row. If a metric
//! cannot be computed, for example the AUC of rows with equal labels, it is `None`.
//!
//! Sample weights are optional everywhere: a row of weight 2 counts as two rows, and a row of
//! weight 0 does not count.

mod auc;
mod calibration;
mod classes;
mod evaluation;
mod gauc;
mod input;
mod logloss;
mod numbers;
mod pr_auc;
mod ranking;

pub use auc::auc;
pub use calibration::{CalibrationBucket, calibration_table};
pub use classes::{ClassEvaluation, ClassFigures, ClassReport};
pub use evaluation::{Evaluation, Report, Scores};
pub use gauc::{Gauc, gauc};
pub use numbers::{NumberEvaluation, NumberReport};
pub use pr_auc::pr_auc;
pub use ranking::{Cutoffs, Ranking, RankingFigure};

#[cfg(test)]
mod tests;
