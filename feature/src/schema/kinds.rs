//! The kinds of features, and the allowed values of their settings.

use serde::{Deserialize, Serialize};

use super::Classes;
use crate::key::TableId;
use crate::label_value::LabelValues;
use crate::moment::TimeRule;
use crate::schema::raw_type::RawType;

/// One feature of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// The name of the feature in the job.
    pub name: String,
    /// The name of the column in the data, or in the side table if [`FeatureSpec::side`] is set. A
    /// cross reads no column, so this is the name of the cross itself.
    pub column: String,
    /// The kind of the feature, with its settings.
    pub kind: FeatureKind,
    /// The reference to the side table that contains the column, or `None` if the data contains it.
    pub side: Option<SideRef>,
    /// The rule by which the feature derives a number from a column of times, or `None` if the
    /// feature reads the values of the column as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeRule>,
}

/// The reference of a feature to a side table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRef {
    /// The position of the side table in [`Schema::sides`](crate::Schema::sides).
    pub side: usize,
    /// The column of the data that contains the key of the side table.
    pub by: String,
}

/// The kind of a feature, with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// One id in each row.
    Id {
        /// The declared type of the raw value.
        raw: RawType,
        /// The table in which the key is looked up.
        table: TableId,
    },
    /// Any number of ids in each row. Their table rows are pooled.
    Ids {
        /// The declared type of the raw values.
        raw: RawType,
        /// The table in which the keys are looked up.
        table: TableId,
        /// The pooling of the table rows to one vector.
        pooling: Pooling,
    },
    /// A history: ordered ids in each row, with the most recent id last.
    Sequence {
        /// The declared type of the raw values.
        raw: RawType,
        /// The table in which the keys are looked up.
        table: TableId,
        /// The maximum number of ids. A longer list keeps only its last ids.
        max_len: u32,
        /// The pooling of the table rows in a model that does not use their order.
        pooling: Pooling,
    },
    /// A number that the model receives as a number.
    Numeric {
        /// The transform that is applied to the number.
        transform: NumericTransform,
        /// The number that replaces a missing value, before the transform. If it is `None`, a
        /// missing value is an error.
        missing: Option<f64>,
    },
    /// The same number of floats in each row, such as an embedding that another model has made. The
    /// model receives each of them as a number.
    Vector {
        /// The number of floats in each row.
        size: u32,
        /// The number that stands for each float of a missing vector. If it is `None`, a missing
        /// vector is an error.
        missing: Option<f64>,
    },
    /// A number that the model receives as the id of its bucket.
    Bucketized {
        /// The boundaries of the buckets.
        buckets: Buckets,
        /// The table in which the keys of the buckets are looked up.
        table: TableId,
    },
    /// One id for each combination of the ids of other features; see [`Crosses`](crate::Crosses).
    Cross {
        /// The positions of the members in [`Schema::features`](crate::Schema::features), in the
        /// order that the job gives. A member is an earlier feature with one id in each row.
        of: Vec<usize>,
        /// The table in which the key is looked up.
        table: TableId,
    },
}

/// The method that combines several table rows into one vector. For an empty list, the result is a
/// vector of zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The sum of the rows.
    #[default]
    Sum,
    /// The sum of the rows, divided by the number of rows.
    Mean,
    /// The sum of the rows, divided by the square root of the number of rows.
    Sqrtn,
    /// The largest value of each element over all rows.
    Max,
}

/// The transform of a number before it is given to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericTransform {
    /// The identity: the number is not changed.
    #[default]
    Raw,
    /// The transform `sign(x) · ln(1 + |x|)`.
    Log1p,
    /// The transform `(x − mean) / std`, with the statistics of the training data.
    Standardise,
}

/// The boundaries of the buckets of a bucketized feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buckets {
    /// The boundaries that the job lists, ascending. `n` boundaries make `n + 1` buckets.
    Boundaries(Vec<f32>),
    /// The number of buckets of equal count. Their boundaries are computed from the training data.
    Quantiles(u32),
}

/// One label of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// The name of the task.
    pub name: String,
    /// The column of the data that holds the label.
    pub column: String,
    /// The threshold. The label is 1 if the number in the column is equal to or greater than the
    /// threshold, and otherwise 0. If it is `None`, the column contains only 0 and 1.
    pub at_least: Option<f64>,
    /// The values of the column that make the label 1, with those that make it 0. `None` if the
    /// column holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<LabelValues>,
    /// The values that the label may have.
    #[serde(default)]
    pub kind: LabelKind,
    /// The names of the classes; `None` unless the kind is [`LabelKind::Class`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
    /// The mean of the label in the training data, or `None` if the job does not give it.
    #[serde(default)]
    pub mean: Option<f64>,
    /// The factor of the task's loss. If it is 0, the task is evaluated but not trained.
    pub weight: f32,
}

/// The values that a label may have. They decide which losses can learn it, and what a score means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// The numbers 0 and 1. A score is the log odds of 1.
    #[default]
    Binary,
    /// Any finite number. A score is the predicted number.
    Number,
    /// A finite number from 0 on, such as a count. A score is the logarithm of the predicted mean.
    Count,
    /// One of several named classes. The value in a batch is the index of the class. Each class has
    /// a score, which is the logarithm of its predicted probability.
    Class,
}

impl LabelKind {
    /// Returns the prediction for a score: the logistic function, the score itself, or its
    /// exponential, which is a probability for the score of a class. The result is rounded once.
    #[must_use]
    pub fn predict(self, score: f32) -> f32 {
        self.predict_exactly(score) as f32
    }

    /// Returns the prediction for a score, in double precision.
    #[must_use]
    pub fn predict_exactly(self, score: f32) -> f64 {
        let score = f64::from(score);
        match self {
            Self::Binary => 1.0 / (1.0 + (-score).exp()),
            Self::Number => score,
            Self::Count | Self::Class => score.exp(),
        }
    }

    /// Returns whether the label is a number, so that predictions have errors and no AUC.
    #[must_use]
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Count)
    }

    /// Returns whether the label is 0 or 1, and its prediction a probability.
    #[must_use]
    pub fn is_binary(self) -> bool {
        self == Self::Binary
    }
}

/// A side table: a separate file with attributes of users or items. It has one row for each key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideSpec {
    /// The name of the side table in the job.
    pub name: String,
    /// The path of the file, a folder or a glob, relative to the root folder of the data.
    pub path: String,
    /// The column of the side table that contains the keys.
    pub key: String,
    /// The declared type of the keys, in the side table and in the data.
    pub raw: RawType,
}

impl FeatureSpec {
    /// Returns the table of the feature, or `None` for a numeric feature.
    pub fn table(&self) -> Option<TableId> {
        match self.kind {
            FeatureKind::Id { table, .. }
            | FeatureKind::Ids { table, .. }
            | FeatureKind::Sequence { table, .. }
            | FeatureKind::Bucketized { table, .. }
            | FeatureKind::Cross { table, .. } => Some(table),
            FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } => None,
        }
    }

    /// Returns the number of numeric columns that the feature has in a batch: 0 for ids.
    pub fn numeric_width(&self) -> usize {
        match self.kind {
            FeatureKind::Numeric { .. } => 1,
            FeatureKind::Vector { size, .. } => size as usize,
            _ => 0,
        }
    }

    /// Returns the pooling of the table rows, or `None` for a feature with one value in each row.
    pub fn pooling(&self) -> Option<Pooling> {
        match self.kind {
            FeatureKind::Ids { pooling, .. } | FeatureKind::Sequence { pooling, .. } => {
                Some(pooling)
            }
            _ => None,
        }
    }

    /// Returns the maximum number of ids in a sequence, or `None` for other kinds of features.
    pub fn max_len(&self) -> Option<usize> {
        match self.kind {
            FeatureKind::Sequence { max_len, .. } => usize::try_from(max_len).ok(),
            _ => None,
        }
    }

    /// Returns whether the feature is a cross, which is computed from other features and reads no
    /// column.
    pub fn is_cross(&self) -> bool {
        matches!(self.kind, FeatureKind::Cross { .. })
    }

    /// Returns whether the transform of the feature needs statistics of the training data.
    pub fn needs_statistics(&self) -> bool {
        matches!(
            self.kind,
            FeatureKind::Numeric { transform: NumericTransform::Standardise, .. }
                | FeatureKind::Bucketized { buckets: Buckets::Quantiles(_), .. }
        )
    }

    /// Returns whether the feature needs a value in every row, because the job sets no value for
    /// missing ones.
    pub fn needs_value(&self) -> bool {
        matches!(
            self.kind,
            FeatureKind::Numeric { missing: None, .. } | FeatureKind::Vector { missing: None, .. }
        )
    }
}
