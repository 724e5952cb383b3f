//! The figures of closed windows.

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::partition::EventTime;

/// The figures of one model over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The number of rows with a finite score.
    pub rows: u64,
    /// The sum of the weights of these rows.
    pub weight: f64,
    /// The sum of the weights of these rows that are positive.
    pub positives: f64,
    /// The weighted area under the ROC curve; `None` if a class has no weight.
    pub auc: Option<f64>,
    /// The standard error of the AUC; `None` for segments, and if there are too few rows.
    pub auc_error: Option<f64>,
    /// The weighted mean of the logistic loss, in nats; `None` without weight.
    pub logloss: Option<f64>,
    /// The sum of predictions divided by the sum of labels; `None` without positives.
    pub calibration: Option<f64>,
}

/// The difference of a figure of two models on the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The figure of the live model less that of the stable version.
    pub value: f64,
    /// The standard error of the difference. If all 20 groups have rows, the difference divided by
    /// its error follows a t distribution with 19 degrees of freedom about.
    pub error: f64,
}

/// The comparison of the live model with the stable version on the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// The figures of the live model on the rows that both models scored.
    pub live: Figures,
    /// The figures of the stable version on these rows.
    pub stable: Figures,
    /// The difference of AUCs; `None` if there are too few rows.
    pub auc: Option<Difference>,
    /// The difference of loglosses, which is negative if the live model is better; `None` if there
    /// are too few rows.
    pub logloss: Option<Difference>,
}

/// The figures of one segment in a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentFigures {
    /// The name of the column.
    pub column: String,
    /// The value of the column, or `None` for all values that have no figures of their own.
    pub value: Option<u64>,
    /// The figures of the live model.
    pub live: Figures,
    /// The figures of the stable version, if it scored rows of the segment.
    pub stable: Option<Figures>,
}

/// A window whose end the watermark has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedWindow {
    /// The event time at which the window begins: a multiple of its length.
    pub start: EventTime,
    /// The length in milliseconds.
    pub length: u64,
    /// The number of rows, with those whose scores are not finite.
    pub rows: u64,
    /// The sum of the weights of all rows.
    pub weight: f64,
    /// The sum of the weights of all rows that are positive.
    pub positives: f64,
    /// The number of rows to which the live model gave no finite score. They are in no figure.
    pub not_finite: u64,
    /// The number of rows to which the stable version gave no finite score.
    pub stable_not_finite: u64,
    /// The figures of the live model.
    pub live: Figures,
    /// The comparison with the stable version; `None` if it scored no rows.
    pub paired: Option<Paired>,
    /// The figures of segments, in the order of columns and values, the other values last.
    pub segments: Vec<SegmentFigures>,
    /// The scores of the live model.
    #[serde(skip)]
    pub scores: Histogram,
}

/// The counters of validation since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// The number of rows that are in windows.
    pub rows: u64,
    /// The number of rows that came after their shortest window was closed. They are in no window.
    pub late: u64,
    /// The number of rows to which the live model gave no finite score.
    pub not_finite: u64,
    /// The number of values of segments without figures of their own, summed over rows and columns.
    pub other_segments: u64,
    /// The number of windows of the shortest length that were closed before the watermark passed
    /// their end, because there were more than `max_open`.
    pub closed_early: u64,
}
