//! Batches: sets of rows in the form of columns.

mod joined;
mod shared;

use crate::key::FeatureKey;
use crate::schema::Schema;

pub use shared::SharedColumns;

/// A set of rows in the form of columns. The reader makes batches, and all other parts consume
/// them.
///
/// `sparse[i]` belongs to the i-th sparse feature of the schema, counting only the features that
/// index a table. `numeric[j]` belongs to the j-th numeric feature, and `labels[k]` to the k-th
/// label. All follow the order of the schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The number of rows, which is equal in all columns except the shared ones.
    pub rows: usize,
    /// The columns that have one row, which stands for all rows of the batch. There are none in
    /// training.
    pub shared: SharedColumns,
    /// The keys of each sparse feature. A row may have any number of keys.
    pub sparse: Vec<KeyColumn>,
    /// The transformed values of each numeric feature.
    pub numeric: Vec<Vec<f32>>,
    /// The labels of each task. Their vectors are empty if the source has no labels, as in
    /// prediction.
    pub labels: Vec<LabelColumn>,
    /// The sample weights, one for each row, or `None` if the schema has no weights.
    pub weight: Option<Vec<f32>>,
    /// The group ids (of users or requests) for grouped metrics, one for each row.
    pub group: Option<Vec<u64>>,
    /// The event times, one for each row, in the unit of the source column. If the schema has an
    /// `event_time_unit`, the times have this unit.
    pub event_time: Option<Vec<i64>>,
    /// The number of rows whose key is missing in a side table, for each side table of the schema.
    pub side_missing: Vec<u64>,
}

/// The keys of one sparse feature, with the layout of an Arrow list column: `i32` offsets into a
/// flat vector of `u64` keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyColumn {
    /// The `rows + 1` offsets, or `None` if each row has exactly one key.
    pub offsets: Option<Vec<i32>>,
    /// The keys of all rows, concatenated.
    pub keys: Vec<FeatureKey>,
    /// The weights of the keys, or `None` if the source has no weights.
    pub weights: Option<Vec<f32>>,
}

/// The labels of one task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelColumn {
    /// The values, one for each row.
    pub values: Vec<f32>,
    /// The mask of the labels: `false` for each row without a label for this task. `None` if all
    /// rows have a label.
    pub mask: Option<Vec<bool>>,
}

impl Batch {
    /// Returns a batch without rows that has the columns of `schema`.
    pub fn empty(schema: &Schema) -> Self {
        Self {
            rows: 0,
            shared: SharedColumns::default(),
            sparse: schema.sparse().map(|_| KeyColumn::default()).collect(),
            numeric: vec![Vec::new(); schema.numeric_width()],
            labels: schema.labels.iter().map(|_| LabelColumn::default()).collect(),
            weight: schema.weight.as_ref().map(|_| Vec::new()),
            group: schema.group.as_ref().map(|_| Vec::new()),
            event_time: schema.event_time.as_ref().map(|_| Vec::new()),
            side_missing: vec![0; schema.sides.len()],
        }
    }
}

impl KeyColumn {
    /// Returns a column with one key in each row.
    pub fn single(keys: Vec<FeatureKey>) -> Self {
        Self { offsets: None, keys, weights: None }
    }

    /// Returns a column with any number of keys in each row. `offsets` has one entry more than the
    /// number of rows.
    pub fn ragged(offsets: Vec<i32>, keys: Vec<FeatureKey>) -> Self {
        Self { offsets: Some(offsets), keys, weights: None }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        match &self.offsets {
            Some(offsets) => offsets.len().saturating_sub(1),
            None => self.keys.len(),
        }
    }

    /// Returns the keys of one row.
    pub fn row(&self, row: usize) -> &[FeatureKey] {
        match &self.offsets {
            Some(offsets) => &self.keys[offsets[row] as usize..offsets[row + 1] as usize],
            None => &self.keys[row..=row],
        }
    }

    /// Shortens each list with more than `max_len` keys to its last `max_len` keys.
    pub fn keep_last(&mut self, max_len: usize) {
        let Some(offsets) = &mut self.offsets else { return };
        if offsets.windows(2).all(|ends| (ends[1] - ends[0]) as usize <= max_len) {
            return;
        }
        let mut kept = 0;
        let mut start = 0;
        for end in offsets.iter_mut().skip(1) {
            let from = start.max((*end as usize).saturating_sub(max_len));
            start = *end as usize;
            self.keys.copy_within(from..start, kept);
            if let Some(weights) = &mut self.weights {
                weights.copy_within(from..start, kept);
            }
            kept += start - from;
            *end = kept as i32;
        }
        self.keys.truncate(kept);
        if let Some(weights) = &mut self.weights {
            weights.truncate(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_shortened_list_is_its_end(
            lists in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..9), 0..20),
            max_len in 1usize..7,
        ) {
            let mut offsets = vec![0];
            let mut keys = Vec::new();
            for list in &lists {
                keys.extend(list.iter().map(|&key| FeatureKey(key)));
                offsets.push(keys.len() as i32);
            }
            let mut column = KeyColumn::ragged(offsets, keys);
            column.weights = Some(column.keys.iter().map(|key| key.0 as f32).collect());
            column.keep_last(max_len);
            prop_assert_eq!(column.rows(), lists.len());
            for (row, list) in lists.iter().enumerate() {
                let end: Vec<FeatureKey> =
                    list[list.len().saturating_sub(max_len)..].iter().map(|&k| FeatureKey(k)).collect();
                prop_assert_eq!(column.row(row), &end[..]);
            }
            let weights: Vec<f32> = column.keys.iter().map(|key| key.0 as f32).collect();
            prop_assert_eq!(column.weights, Some(weights));
        }
    }
}
