//! The place of a version in the training that made it.

use serde::{Deserialize, Serialize};
use zillion_feature::Cursor;

use crate::reference::VersionId;

/// The run and the step of the training from which a version was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The id of the training run. A delta must come from the same run as its parent.
    pub run: String,
    /// The number of steps that training had done.
    pub step: u64,
    /// The position of training in the order of the rows.
    pub cursor: Cursor,
    /// The dirty epoch that ended with this version. The next delta has the rows that changed after
    /// this epoch.
    pub dirty_epoch: u32,
    /// The time of the newest event in the training data, in milliseconds since 1970. It is `None`
    /// if the job does not give the unit of event times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The number of pushes that the run has lost with servers of its tables. A push of one trainer
    /// to two servers counts twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_pushes: u64,
    /// The BLAKE3 hash of the dense parameters that training had, in hexadecimal, if the version
    /// has those of its parent instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later_dense: Option<String>,
    /// The version with the same state, if this base was made by merging the layers of that version
    /// (see [`Model::publish_compaction`](crate::Model::publish_compaction)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacts: Option<VersionId>,
    /// The metrics that training measured. The key is the name of the metric.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
