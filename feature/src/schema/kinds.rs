//! The kinds of features, and the vocabularies of their settings.

use serde::{Deserialize, Serialize};

use crate::key::TableId;

/// One feature of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// The name of the feature in the job.
    pub name: String,
    /// The column of the data, or of the side table if [`FeatureSpec::side`] names one. A cross
    /// reads no column and has its name here.
    pub column: String,
    /// The kind of the feature, with its settings.
    pub kind: FeatureKind,
    /// The side table that holds the value; with `None`, the data itself holds it.
    pub side: Option<SideRef>,
}

/// A reference to the row of a side table that holds a feature's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRef {
    /// The position in [`Schema::sides`](crate::Schema::sides).
    pub side: usize,
    /// The column of the data that holds the side table's key.
    pub by: String,
}

/// The kind of a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// One id for each row.
    Id {
        /// The declared type of the raw value.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
    },
    /// Any number of ids for each row, whose table rows are pooled.
    Ids {
        /// The declared type of the raw values.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
        /// The way in which the table rows of the ids become one vector.
        pooling: Pooling,
    },
    /// Ids in order, the most recent last: a history.
    Sequence {
        /// The declared type of the raw values.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
        /// The maximum number of ids; only the last ones of a longer list are kept.
        max_len: u32,
        /// The pooling of the rows in a model that ignores their order.
        pooling: Pooling,
    },
    /// A number that the model sees as a number.
    Numeric {
        /// The transform of the number before the model sees it.
        transform: NumericTransform,
        /// The number that stands for a missing value, before the transform; with `None`, a missing
        /// value is an error.
        missing: Option<f64>,
    },
    /// A number that the model sees as the id of its bucket.
    Bucketized {
        /// The boundaries of the buckets.
        buckets: Buckets,
        /// The table that its keys index.
        table: TableId,
    },
    /// One id for each combination of other features' ids; see [`Crosses`](crate::Crosses).
    Cross {
        /// The positions of the members in [`Schema::features`](crate::Schema::features), in the
        /// job's order; the members are earlier features with one id for each row.
        of: Vec<usize>,
        /// The table that its keys index.
        table: TableId,
    },
}

/// The declared type of an id, so that 42 in a CSV, in Parquet and in JSON agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawType {
    /// Signed integers of 64 bits.
    #[default]
    I64,
    /// Unsigned integers of 64 bits; a negative value is an error.
    U64,
    /// Texts, which are UTF-8.
    String,
}

/// The way in which several rows become one vector. An empty list pools to zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The sum of the rows.
    #[default]
    Sum,
    /// The sum of the rows, divided by their number n.
    Mean,
    /// The sum of the rows, divided by √n for n rows.
    Sqrtn,
    /// The maximum of the rows, element by element.
    Max,
}

/// The transform of a number before the model sees it.
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
    /// The boundaries that the job gives, ascending; n boundaries make n + 1 buckets.
    Boundaries(Vec<f32>),
    /// The boundaries of this many buckets of equal count, computed from the training data.
    Quantiles(u32),
}

/// One label of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// The name of the task.
    pub name: String,
    /// The column of the data that holds the label.
    pub column: String,
    /// The threshold: the label is 1 where the column's number is at least this, else 0. With
    /// `None`, the column itself is 0 or 1.
    pub at_least: Option<f64>,
    /// The factor of the task's loss; with 0 the task is evaluated and not trained.
    pub weight: f32,
}

/// A side table: attributes of users, items and the like in a file of their own, one row for each
/// key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideSpec {
    /// The name of the side table in the job.
    pub name: String,
    /// The file (or folder, or glob), relative to the data's root.
    pub path: String,
    /// The column that holds the keys.
    pub key: String,
    /// The declared type of the keys, in the side table and in the data.
    pub raw: RawType,
}

impl FeatureSpec {
    /// Returns the feature's table, if it has one.
    pub fn table(&self) -> Option<TableId> {
        match self.kind {
            FeatureKind::Id { table, .. }
            | FeatureKind::Ids { table, .. }
            | FeatureKind::Sequence { table, .. }
            | FeatureKind::Bucketized { table, .. }
            | FeatureKind::Cross { table, .. } => Some(table),
            FeatureKind::Numeric { .. } => None,
        }
    }

    /// Returns the pooling of the rows; `None` for a feature with one value a row.
    pub fn pooling(&self) -> Option<Pooling> {
        match self.kind {
            FeatureKind::Ids { pooling, .. } | FeatureKind::Sequence { pooling, .. } => {
                Some(pooling)
            }
            _ => None,
        }
    }

    /// Returns the maximum number of ids of a list, if the feature has one.
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

    /// Returns whether the feature's transform needs a first pass over the training data.
    pub fn needs_statistics(&self) -> bool {
        matches!(
            self.kind,
            FeatureKind::Numeric { transform: NumericTransform::Standardise, .. }
                | FeatureKind::Bucketized { buckets: Buckets::Quantiles(_), .. }
        )
    }

    /// Returns whether the feature needs a value in every row, because the job names none for a
    /// missing value.
    pub fn needs_value(&self) -> bool {
        matches!(self.kind, FeatureKind::Numeric { missing: None, .. })
    }
}
