//! What a first pass over the training data learned about its numeric columns.

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
    /// Mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Upper bounds of the buckets, ascending, where the feature asked for quantile buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f32>>,
}
