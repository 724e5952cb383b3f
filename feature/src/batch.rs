//! A batch of rows in columns.

use crate::key::FeatureKey;
use crate::schema::Schema;

/// Rows in columns: what the reader makes and everything else consumes.
///
/// `sparse[i]` belongs to the i-th sparse feature of the schema (id, ids and bucketized features, in
/// schema order), `numeric[j]` to the j-th numeric one, `labels[k]` to the k-th label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Number of rows; every column has this many.
    pub rows: usize,
    /// Keys, ragged.
    pub sparse: Vec<KeyColumn>,
    /// Transformed numeric values.
    pub numeric: Vec<Vec<f32>>,
    /// Labels; empty vectors where the source has none (prediction).
    pub labels: Vec<LabelColumn>,
    /// Sample weights.
    pub weight: Option<Vec<f32>>,
    /// Group ids for grouped metrics (a user, a request).
    pub group: Option<Vec<u64>>,
    /// Event time in the unit of the source column.
    pub event_time: Option<Vec<i64>>,
}

/// One sparse feature's keys, laid out as an Arrow list column: `i32` offsets into flat `u64` keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyColumn {
    /// `rows + 1` offsets; `None` where each row has exactly one value.
    pub offsets: Option<Vec<i32>>,
    /// The flat keys.
    pub keys: Vec<FeatureKey>,
    /// One weight a key, where the source gives them.
    pub weights: Option<Vec<f32>>,
}

/// One task's labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelColumn {
    /// One value a row.
    pub values: Vec<f32>,
    /// `false` where a row has no label for this task; `None` where every row has one.
    pub mask: Option<Vec<bool>>,
}

impl Batch {
    /// A batch of zero rows with the columns of `schema`.
    pub fn empty(schema: &Schema) -> Self {
        Self {
            rows: 0,
            sparse: schema.sparse().map(|_| KeyColumn::default()).collect(),
            numeric: schema.numeric().map(|_| Vec::new()).collect(),
            labels: schema.labels.iter().map(|_| LabelColumn::default()).collect(),
            weight: schema.weight.as_ref().map(|_| Vec::new()),
            group: schema.group.as_ref().map(|_| Vec::new()),
            event_time: schema.event_time.as_ref().map(|_| Vec::new()),
        }
    }
}

impl KeyColumn {
    /// A column with one value a row.
    pub fn single(keys: Vec<FeatureKey>) -> Self {
        Self { offsets: None, keys, weights: None }
    }

    /// A ragged column; `offsets` has one entry more than there are rows.
    pub fn ragged(offsets: Vec<i32>, keys: Vec<FeatureKey>) -> Self {
        Self { offsets: Some(offsets), keys, weights: None }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match &self.offsets {
            Some(offsets) => offsets.len().saturating_sub(1),
            None => self.keys.len(),
        }
    }

    /// The keys of one row.
    pub fn row(&self, row: usize) -> &[FeatureKey] {
        match &self.offsets {
            Some(offsets) => &self.keys[offsets[row] as usize..offsets[row + 1] as usize],
            None => &self.keys[row..=row],
        }
    }
}
