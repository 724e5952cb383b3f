//! Side tables: separate files with attributes of users or items, which are joined to the rows of
//! the data by key.
//!
//! Each row of the data contains a key. The row of the side table with this key contains the
//! values. A join has two steps. When the data is decoded, each key is replaced by the index of its
//! row in the side table. When a batch is assembled, each index is replaced by the values of the
//! row. The index of a key that is not in the side table is the number of rows of the side table.
//! The entry at this index holds the missing value of each feature, so the loops need no branch,
//! and missing rows can be counted by comparing one number.
//!
//! Training and serving both use this module. The `reader` crate reads the files.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::batch::{Batch, KeyColumn};
use crate::error::SchemaError;
use crate::key::FeatureKey;
use crate::schema::{FeatureKind, FeatureSpec, Schema};
use crate::seeded::SeededHash;
use crate::statistics::Statistics;
use crate::transform::{Bucketizer, NumericMap};

/// An index from the keys of a side table to its rows.
#[derive(Clone, Debug, Default)]
pub struct SideIndex {
    rows: HashMap<FeatureKey, u32, SeededHash>,
}

impl SideIndex {
    /// Adds the key of the next row.
    ///
    /// # Errors
    /// Returns the index of the earlier row if an earlier row has the same key.
    pub fn push(&mut self, key: FeatureKey) -> Result<(), u32> {
        let next = self.rows.len() as u32;
        match self.rows.entry(key) {
            Entry::Occupied(entry) => Err(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(next);
                Ok(())
            }
        }
    }

    /// Returns the number of rows. This number is also used as the row index for unknown keys.
    pub fn len(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Returns whether the side table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the keys in the order of their rows.
    pub fn keys(&self) -> Vec<FeatureKey> {
        let mut keys = vec![FeatureKey::default(); self.rows.len()];
        self.rows.iter().for_each(|(&key, &row)| keys[row as usize] = key);
        keys
    }

    /// Returns the index of the row with a key, or `None` if the side table does not have the key.
    #[inline]
    pub fn row(&self, key: FeatureKey) -> Option<u32> {
        self.rows.get(&key).copied()
    }
}

/// A side table: its keys, and the columns that the features read.
#[derive(Clone, Debug, Default)]
pub struct SideTable {
    /// The index from the keys of the side table to its rows.
    pub index: Arc<SideIndex>,
    /// The column of each feature that reads the side table, with the position of the feature in
    /// the schema.
    pub columns: Vec<(usize, SideColumn)>,
}

impl SideTable {
    /// Returns the column of the feature at this position in the schema, or `None` if the feature
    /// does not read the side table.
    pub fn column(&self, feature: usize) -> Option<&SideColumn> {
        self.columns.iter().find(|(of, _)| *of == feature).map(|(_, column)| column)
    }
}

/// The values of one feature in a side table, one for each row.
#[derive(Clone, Debug, PartialEq)]
pub enum SideColumn {
    /// The keys of an id feature.
    Keys(Vec<FeatureKey>),
    /// The keys of a feature with several ids in each row.
    Lists(KeyColumn),
    /// The numbers of a numeric or bucketized feature. A missing number is NaN.
    Numbers(Vec<f64>),
}

/// The transformed values of one feature: one value for each row of the side table, and an
/// additional value for unknown keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// The position of the feature's column among the sparse or numeric columns of a batch.
    at: usize,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    Keys(Vec<FeatureKey>),
    Lists { offsets: Vec<i32>, keys: Vec<FeatureKey>, weights: Option<Vec<f32>> },
    Numbers(Vec<f32>),
}

impl Attribute {
    /// Transforms the column of a side table for the feature at position `feature` of the schema.
    ///
    /// A numeric feature without `missing` has no value for an unknown key, so the value for
    /// unknown keys is NaN. For such a feature ([`FeatureSpec::needs_value`]), the caller of the
    /// join must refuse rows with unknown keys.
    ///
    /// # Errors
    /// Returns an error if statistics that the transform needs are absent, or if the type of the
    /// column does not fit the kind of the feature.
    pub fn new(
        schema: &Schema,
        feature: usize,
        column: &SideColumn,
        statistics: &Statistics,
    ) -> Result<Self, SchemaError> {
        let spec = &schema.features[feature];
        let absent = FeatureKey::missing(&spec.name);
        let values = match (&spec.kind, column) {
            (FeatureKind::Id { .. }, SideColumn::Keys(keys)) => {
                Values::Keys(keys.iter().copied().chain([absent]).collect())
            }
            (FeatureKind::Ids { .. } | FeatureKind::Sequence { .. }, SideColumn::Lists(lists)) => {
                last_values(spec, lists)
            }
            (FeatureKind::Numeric { transform, missing }, SideColumn::Numbers(numbers)) => {
                let map = NumericMap::resolve(&spec.name, *transform, statistics)?;
                let absent = missing.map_or(f32::NAN, |x| map.apply(x));
                let value = |&x: &f64| if x.is_nan() { absent } else { map.apply(x) };
                Values::Numbers(numbers.iter().map(value).chain([absent]).collect())
            }
            (FeatureKind::Bucketized { .. }, SideColumn::Numbers(numbers)) => {
                let buckets = Bucketizer::resolve(spec, statistics)?;
                let key = |&x: &f64| if x.is_nan() { absent } else { buckets.key(x) };
                Values::Keys(numbers.iter().map(key).chain([absent]).collect())
            }
            // A file of a published version may belong to another schema.
            _ => return Err(SchemaError::SideColumn { feature: spec.name.clone() }),
        };
        Ok(Self { at: schema.column_positions()[feature], values })
    }

    /// Fills the column of the feature in `batch`. Row i of the batch receives the value in row
    /// `rows[i]` of the side table.
    ///
    /// # Panics
    /// Panics if an entry of `rows` is above the number of rows of the side table (an equal entry
    /// means an unknown key), or if the lists of a batch have 2³¹ values or more.
    pub fn fill(&self, rows: &[u32], batch: &mut Batch) {
        match &self.values {
            Values::Keys(keys) => {
                let keys = rows.iter().map(|&row| keys[row as usize]).collect();
                batch.sparse[self.at] = KeyColumn::single(keys);
            }
            Values::Lists { offsets, keys, weights } => {
                let mut ends = Vec::with_capacity(rows.len() + 1);
                let mut joined = Vec::with_capacity(rows.len());
                let mut joined_weights = weights.as_ref().map(|_| Vec::new());
                ends.push(0);
                for &row in rows {
                    let list = &offsets[row as usize..row as usize + 2];
                    let list = list[0] as usize..list[1] as usize;
                    joined.extend_from_slice(&keys[list.clone()]);
                    if let (Some(joined), Some(weights)) = (&mut joined_weights, weights) {
                        joined.extend_from_slice(&weights[list]);
                    }
                    let end = i32::try_from(joined.len());
                    ends.push(end.expect("a batch holds fewer than 2^31 values a column"));
                }
                batch.sparse[self.at] =
                    KeyColumn { offsets: Some(ends), keys: joined, weights: joined_weights };
            }
            Values::Numbers(numbers) => {
                batch.numeric[self.at] = rows.iter().map(|&row| numbers[row as usize]).collect();
            }
        }
    }

    /// Marks the column of the feature as one whose single row stands for all rows of the batch.
    pub(crate) fn mark_shared(&self, batch: &mut Batch) {
        match &self.values {
            Values::Keys(_) | Values::Lists { .. } => batch.shared.add_sparse(self.at),
            Values::Numbers(_) => batch.shared.add_numeric(self.at),
        }
    }

    /// Returns the first row of the side table whose transformed number is too large for an `f32`,
    /// or `None` if there is no such row.
    pub fn first_infinite(&self) -> Option<usize> {
        match &self.values {
            Values::Numbers(numbers) => {
                let rows = &numbers[..numbers.len() - 1];
                rows.iter().position(|x| x.is_infinite())
            }
            _ => None,
        }
    }
}

/// Returns the lists, cut to the maximum length of the feature, and an additional empty list for
/// unknown keys.
fn last_values(spec: &FeatureSpec, lists: &KeyColumn) -> Values {
    let mut kept = lists.clone();
    if let Some(max_len) = spec.max_len() {
        kept.keep_last(max_len);
    }
    let mut offsets = kept.offsets.unwrap_or_else(|| (0..=kept.keys.len() as i32).collect());
    offsets.push(offsets.last().copied().unwrap_or_default());
    Values::Lists { offsets, keys: kept.keys, weights: kept.weights }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ColumnStatistics;

    #[test]
    fn rows_are_found_by_key_and_a_second_one_is_refused() {
        let mut index = SideIndex::default();
        assert!(index.is_empty());
        for id in [7, 3, 9] {
            index.push(FeatureKey::from_i64(id)).unwrap();
        }
        assert_eq!(index.push(FeatureKey::from_i64(3)), Err(1));
        assert_eq!(index.len(), 3);
        assert_eq!(index.row(FeatureKey::from_i64(9)), Some(2));
        assert_eq!(index.row(FeatureKey::from_i64(8)), None);
    }

    #[test]
    fn attributes_are_transformed_once_and_a_missing_row_reads_as_missing() {
        let job = "
            [features.price]
            kind = 'numeric'
            transform = 'standardise'
            missing = 1
            side = 's'
            [features.age]
            kind = 'bucketized'
            boundaries = [10]
            side = 's'
            [features.tags]
            kind = 'sequence'
            max_len = 1
            side = 's'
            [features.zip]
            kind = 'id'
            side = 's'
            [labels.y]
            [side.s]
            path = 's.csv'
            key = 'k'
        ";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let mut statistics = Statistics::default();
        statistics
            .columns
            .insert("price".into(), ColumnStatistics { mean: 2.0, std: 0.5, ..Default::default() });
        let id = FeatureKey::from_u64;
        let columns = [
            SideColumn::Numbers(vec![3.0, f64::NAN]),
            SideColumn::Numbers(vec![f64::NAN, 10.0]),
            SideColumn::Lists(KeyColumn::ragged(vec![0, 2, 2], vec![id(5), id(6)])),
            SideColumn::Keys(vec![id(8), id(9)]),
        ];
        let mut batch = Batch { rows: 4, ..Batch::empty(&schema) };
        for (feature, column) in columns.iter().enumerate() {
            let attribute = Attribute::new(&schema, feature, column, &statistics).unwrap();
            assert_eq!(attribute.first_infinite(), None);
            attribute.fill(&[1, 0, 2, 0], &mut batch);
        }
        assert_eq!(batch.numeric, [[-2.0, 2.0, -2.0, 2.0]]);
        let absent = FeatureKey::missing;
        let age = vec![id(1), absent("age"), absent("age"), absent("age")];
        assert_eq!(batch.sparse[0], KeyColumn::single(age));
        assert_eq!(batch.sparse[1], KeyColumn::ragged(vec![0, 0, 1, 1, 2], vec![id(6), id(6)]));
        let zip = vec![id(9), id(8), absent("zip"), id(8)];
        assert_eq!(batch.sparse[2], KeyColumn::single(zip));
        let other = Attribute::new(&schema, 0, &columns[3], &statistics).unwrap_err().to_string();
        assert!(other.starts_with("feature `price` has no values of its kind"), "{other}");
        let unknown = Attribute::new(&schema, 0, &columns[0], &Statistics::default());
        assert!(unknown.unwrap_err().to_string().starts_with("feature `price` has no statistics"));
    }
}
