//! The statistics of numeric columns, which are computed in a first pass over the training data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The statistics of features by their names. A checkpoint stores them unchanged, so that
/// evaluation and serving transform values exactly as in training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Statistics {
    /// The statistics of each numeric or bucketized feature whose transform needs them.
    pub columns: BTreeMap<String, ColumnStatistics>,
}

/// The statistics of one column. Missing values are not counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnStatistics {
    /// The number of values.
    pub count: u64,
    /// The mean of the values.
    pub mean: f64,
    /// The population standard deviation of the values.
    pub std: f64,
    /// The smallest value of the column.
    pub min: f64,
    /// The largest value of the column.
    pub max: f64,
    /// The boundaries between the quantile buckets, ascending, or `None` if the feature has no
    /// quantile buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f32>>,
}
