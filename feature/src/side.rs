//! The side tables: attributes of users or items in files of their own, joined to rows by key.
//!
//! A row of the data names a key; the row of the side table with this key holds the values. The
//! join is two gathers: from keys to rows of the side table (while decoding), and from rows to
//! values (when a batch is assembled). A key that the side table does not have is read as the row
//! *behind* the last one, which holds the missing value of each feature. Therefore the loops need
//! no branch, and missing rows can be counted by one number.
//!
//! Training and serving both use this module; the files are read by the `reader` crate.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::batch::{Batch, KeyColumn};
use crate::error::SchemaError;
use crate::key::{FeatureKey, MixedHasher};
use crate::schema::{FeatureKind, FeatureSpec, Schema};
use crate::statistics::Statistics;
use crate::transform::{Bucketizer, NumericMap};

/// The keys of a side table and their rows.
#[derive(Clone, Debug, Default)]
pub struct SideIndex {
    rows: HashMap<FeatureKey, u32, MixedHasher>,
}

impl SideIndex {
    /// Adds the key of the next row.
    ///
    /// # Errors
    /// Returns the number of the earlier row if a row with the same key was added before.
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

    /// Returns the number of rows, which is also the row that stands for an unknown key.
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

    /// Returns the row of a key.
    #[inline]
    pub fn row(&self, key: FeatureKey) -> Option<u32> {
        self.rows.get(&key).copied()
    }
}

/// A side table: its keys, and the columns that features read.
#[derive(Clone, Debug, Default)]
pub struct SideTable {
    /// The keys of the side table's rows.
    pub index: Arc<SideIndex>,
    /// The features that read the side table, by their positions in the schema, and their values.
    pub columns: Vec<(usize, SideColumn)>,
}

impl SideTable {
    /// Returns the values of the feature at this position of the schema.
    pub fn column(&self, feature: usize) -> Option<&SideColumn> {
        self.columns.iter().find(|(of, _)| *of == feature).map(|(_, column)| column)
    }
}

/// The values of one feature in the file of the side table, one for each row.
#[derive(Clone, Debug, PartialEq)]
pub enum SideColumn {
    /// The keys of an id feature.
    Keys(Vec<FeatureKey>),
    /// The keys of a feature of ids or a sequence, with offsets.
    Lists(KeyColumn),
    /// The numbers of a numeric or bucketized feature, NaN where there is none.
    Numbers(Vec<f64>),
}

/// The transformed values of one feature: one for each row of the side table, and one more for an
/// unknown key.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// The position of the column among the sparse or the numeric columns of a batch.
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
    /// Transforms a column of a side table for a feature, which is given by its position in the
    /// schema.
    ///
    /// A numeric feature without `missing` has no value for a missing row: its last entry is NaN,
    /// and the caller that joins must refuse such a row ([`FeatureSpec::needs_value`]).
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
            // The file of a version may come from another schema.
            _ => return Err(SchemaError::SideColumn { feature: spec.name.clone() }),
        };
        Ok(Self { at: schema.column_positions()[feature], values })
    }

    /// Fills the feature's column of `batch`: row i of the batch receives the value of row
    /// `rows[i]` of the side table.
    ///
    /// # Panics
    /// Panics if a row is beyond the side table's length (the length itself stands for a missing
    /// row), or if the lists of a batch have 2³¹ values or more.
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

    /// Returns the first row of the side table whose number does not fit an `f32` after the
    /// transform.
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

/// Returns the lists, shortened to the feature's limit, and one empty list behind them.
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
