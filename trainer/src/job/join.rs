//! The section `[join]`: how impressions and feedback become rows.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_feature::{FeatureKind, RawType, Schema};
use zillion_rows::ByteSize;
use zillion_stream::joiner::{Bounds, Emit, Late, Negatives, SamplingCorrection, Settings};
use zillion_stream::watermark::TimeRules;

use super::online::{OnlineConfig, milliseconds};
use crate::error::Result;

/// The `[join]` section: how impressions and feedback become rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinConfig {
    /// The columns that an impression and its feedback share.
    pub key: Vec<String>,
    /// The type of the values in columns of the key that no feature reads.
    #[serde(default = "text")]
    pub key_type: RawType,
    /// The time within which feedback counts, in seconds.
    pub wait_seconds: f64,
    /// The moment at which a row is learned from.
    #[serde(default)]
    pub emit: EmitConfig,
    /// The treatment of feedback after its row was learned from, if rows are emitted at once.
    #[serde(default)]
    pub late: LateConfig,
    /// The share of rows without feedback that is learned from.
    #[serde(default = "all")]
    pub keep_negatives: f64,
    /// The largest number of pending rows.
    #[serde(default = "default_rows")]
    pub max_rows: NonZeroU64,
    /// The largest size of the files of pending rows.
    #[serde(default = "default_disk")]
    pub max_disk_bytes: ByteSize,
    /// The largest memory of the joiner.
    #[serde(default = "default_memory")]
    pub max_memory_bytes: ByteSize,
}

/// The moments at which a row is learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmitConfig {
    /// After `wait_seconds` of event time, with the feedback that came.
    #[default]
    Window,
    /// When the impression arrives.
    Now,
}

/// The treatments of feedback after its row was learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LateConfig {
    /// The row is learned from again, with a weight that takes back its first label.
    #[default]
    Correct,
    /// The feedback is counted and dropped.
    Drop,
}

fn text() -> RawType {
    RawType::String
}

fn all() -> f64 {
    1.0
}

fn default_rows() -> NonZeroU64 {
    NonZeroU64::new(20_000_000).expect("a literal above zero")
}

fn default_disk() -> ByteSize {
    ByteSize(16 << 30)
}

fn default_memory() -> ByteSize {
    ByteSize(1 << 30)
}

impl JoinConfig {
    /// Returns the settings of the joiner.
    pub(crate) fn settings(&self, times: TimeRules) -> Settings {
        Settings {
            times,
            wait: milliseconds(self.wait_seconds),
            emit: match (self.emit, self.late) {
                (EmitConfig::Window, _) => Emit::Window,
                (EmitConfig::Now, LateConfig::Correct) => Emit::Now(Late::Correct),
                (EmitConfig::Now, LateConfig::Drop) => Emit::Now(Late::Drop),
            },
            negatives: Negatives {
                keep: self.keep_negatives,
                correction: SamplingCorrection::Weight,
            },
            bounds: Bounds {
                max_rows: self.max_rows.get(),
                max_disk_bytes: self.max_disk_bytes.0,
                max_memory_bytes: self.max_memory_bytes.0,
            },
        }
    }

    /// Returns the type of the values of a column of the key: the type of a feature that reads the
    /// column, or `key_type`.
    pub(crate) fn type_of(&self, column: &str, schema: &Schema) -> RawType {
        let reads = schema.features.iter().filter(|f| f.column == column && f.side.is_none());
        let types = reads.filter_map(|feature| match feature.kind {
            FeatureKind::Id { raw, .. } => Some(raw),
            _ => None,
        });
        types.into_iter().next().unwrap_or(self.key_type)
    }

    /// Returns the time by which rows come later than the watermark, in milliseconds.
    pub(crate) fn delay_ms(&self) -> u64 {
        match self.emit {
            EmitConfig::Window => milliseconds(self.wait_seconds),
            EmitConfig::Now => 0,
        }
    }

    pub(super) fn check(&self, online: &OnlineConfig) -> Result<()> {
        if self.key.is_empty() {
            let message = "must name at least one column that impressions and feedback share";
            return Err(ConfigError::at("join.key", message).into());
        }
        if !(0.0..=1e9).contains(&self.wait_seconds) {
            let message = "must be a number of seconds from 0 to 10^9";
            return Err(ConfigError::at("join.wait_seconds", message).into());
        }
        Ok(self.settings(online.time_rules()).validate()?)
    }
}
