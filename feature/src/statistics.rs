//! Statistics of numeric columns, learned in a first pass over the training data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Statistics by feature name. Frozen in the checkpoint, so that evaluation and serving transform a
/// value exactly as training did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Statistics {
    /// One entry a numeric or bucketized feature that needs one.
    pub columns: BTreeMap<String, ColumnStatistics>,
}

/// One column's statistics over its present values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnStatistics {
    /// Number of present values.
    pub count: u64,
    /// The mean of the present values.
    pub mean: f64,
    /// The population standard deviation.
    pub std: f64,
    /// The smallest of the present values.
    pub min: f64,
    /// The largest of the present values.
    pub max: f64,
    /// Upper bounds of the buckets, ascending, where the feature asked for quantile buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f32>>,
}
