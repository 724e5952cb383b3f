//! The kinds of features, and the vocabularies of their settings.

use serde::{Deserialize, Serialize};

use crate::key::TableId;

/// One feature of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Name in the job.
    pub name: String,
    /// Column of the data, or of the side table where [`FeatureSpec::side`] names one. A cross
    /// reads none; there this is its name.
    pub column: String,
    /// The kind of the feature, with its settings.
    pub kind: FeatureKind,
    /// The side table that holds the value; `None`: the data itself does.
    pub side: Option<SideRef>,
}

/// The row of a side table that a feature's value is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRef {
    /// The position in [`Schema::sides`](crate::Schema::sides).
    pub side: usize,
    /// Column of the data that holds the side table's key.
    pub by: String,
}

/// The kind of a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// One id a row.
    Id {
        /// Declared type of the raw value.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
    },
    /// Any number of ids a row, pooled.
    Ids {
        /// Declared type of the raw values.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
        /// The way in which the rows of the ids become one vector.
        pooling: Pooling,
    },
    /// Ids in order, the most recent last: a history.
    Sequence {
        /// Declared type of the raw values.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
        /// Ids that are kept of a longer list: the last ones.
        max_len: u32,
        /// The way in which a model that does not look at the order pools the rows.
        pooling: Pooling,
    },
    /// A number that the model sees as a number.
    Numeric {
        /// The transform that is applied first.
        transform: NumericTransform,
        /// The number that stands for a missing value, before the transform; `None`: a missing
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
        /// Positions of the members in [`Schema::features`](crate::Schema::features), in the job's
        /// order: earlier features with one id a row.
        of: Vec<usize>,
        /// The table that its keys index.
        table: TableId,
    },
}

/// Declared type of an id, so that 42 in a CSV, in Parquet and in JSON agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawType {
    /// Signed integers of 64 bits.
    #[default]
    I64,
    /// Unsigned 64-bit integers; a negative value is an error.
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
    /// The sum over n.
    Mean,
    /// The sum over √n.
    Sqrtn,
    /// The largest, element by element.
    Max,
}

/// The transform of a number before the model sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericTransform {
    /// The number is left as it is.
    #[default]
    Raw,
    /// `sign(x) · ln(1 + |x|)`.
    Log1p,
    /// Minus the mean, over the standard deviation of the training data.
    Standardise,
}

/// The boundaries of the buckets of a bucketized feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buckets {
    /// Given, ascending; n boundaries make n + 1 buckets.
    Boundaries(Vec<f32>),
    /// This many buckets of equal count, from the training data.
    Quantiles(u32),
}

/// One label of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// Name of the task.
    pub name: String,
    /// Column of the data.
    pub column: String,
    /// The label is 1 where the column's number is at least this, else 0; `None`: the column is 0
    /// or 1.
    pub at_least: Option<f64>,
    /// Factor of the task's loss; 0: it is judged and not learned.
    pub weight: f32,
}

/// A side table: attributes of users, items and the like in a file of their own, one row a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideSpec {
    /// Name in the job.
    pub name: String,
    /// Its file (or folder, or glob), relative to the data's root.
    pub path: String,
    /// The column of its keys.
    pub key: String,
    /// Declared type of the keys, here and in the data.
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

    /// Returns the number of ids of a list that are kept, counted from its end.
    pub fn max_len(&self) -> Option<usize> {
        match self.kind {
            FeatureKind::Sequence { max_len, .. } => usize::try_from(max_len).ok(),
            _ => None,
        }
    }

    /// Returns whether it is a cross: computed from other features instead of read from a column.
    pub fn is_cross(&self) -> bool {
        matches!(self.kind, FeatureKind::Cross { .. })
    }

    /// Returns whether its transform needs a first pass over the training data.
    pub fn needs_statistics(&self) -> bool {
        matches!(
            self.kind,
            FeatureKind::Numeric { transform: NumericTransform::Standardise, .. }
                | FeatureKind::Bucketized { buckets: Buckets::Quantiles(_), .. }
        )
    }

    /// Returns whether a row without a value for it cannot be used.
    pub fn needs_value(&self) -> bool {
        matches!(self.kind, FeatureKind::Numeric { missing: None, .. })
    }
}
