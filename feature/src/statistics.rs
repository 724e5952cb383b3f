//! Statistics of numeric columns, learned in a first pass over the training data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The statistics by feature name. A checkpoint holds them unchanged, so that evaluation and
/// serving transform a value exactly as training did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Statistics {
    /// The statistics of each numeric or bucketized feature that needs them.
    pub columns: BTreeMap<String, ColumnStatistics>,
}

/// The statistics of the present values of one column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnStatistics {
    /// The number of present values.
    pub count: u64,
    /// The mean of the present values.
    pub mean: f64,
    /// The population standard deviation.
    pub std: f64,
    /// The smallest of the present values.
    pub min: f64,
    /// The largest of the present values.
    pub max: f64,
    /// The upper bounds of the buckets, ascending, if the feature asks for quantile buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f32>>,
}
