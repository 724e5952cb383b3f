//! The ids of scored rows that have no row in a table: cold start, counted for each feature.

use std::collections::HashSet;

use serde::Serialize;
use zillion_feature::{Batch, FeatureKey, KeyColumn, LookupPlan, MixedHasher, Schema};
use zillion_reader::Sketch;
use zillion_rows::RowSource;

/// The number of distinct ids of a feature that are counted exactly. More ids are estimated, so
/// that the memory does not grow with the data.
const EXACT_IDS: usize = 1 << 20;

/// The rows of a feature whose ids have no row in its table. Such ids read the values that the
/// table declares for unknown ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnseenIds {
    /// The name of the feature.
    pub feature: String,
    /// The number of scored rows with at least one such id.
    pub rows: u64,
    /// The number of all scored rows.
    pub of_rows: u64,
    /// The number of distinct ids without a row.
    pub ids: u64,
    /// Whether the number of ids is an estimate, because there are more than 2^20 of them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ids_are_estimated: bool,
}

/// A counter of the ids without a row.
pub(crate) struct UnseenCounter {
    rows: u64,
    features: Vec<Feature>,
    /// Whether the source of the rows tells which ids have a row.
    is_known: bool,
}

struct Feature {
    name: String,
    rows: u64,
    ids: HashSet<FeatureKey, MixedHasher>,
    /// The estimate of the number of ids, once there are too many to count exactly.
    sketch: Option<Sketch>,
}

impl UnseenCounter {
    pub(crate) fn new(schema: &Schema) -> Self {
        let feature = |name: &String| Feature {
            name: name.clone(),
            rows: 0,
            ids: HashSet::default(),
            sketch: None,
        };
        let features = schema.sparse().map(|spec| feature(&spec.name)).collect();
        Self { rows: 0, features, is_known: true }
    }

    /// Counts the ids of a batch. `missing` is the number of keys that its lookup did not find.
    pub(crate) fn add(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        missing: u64,
        source: &dyn RowSource,
    ) {
        self.rows += batch.rows as u64;
        if missing == 0 || !self.is_known {
            return;
        }
        let mut unseen: Vec<Vec<bool>> = Vec::with_capacity(plan.tables.len());
        for table in &plan.tables {
            let has_row = table.keys.iter().map(|&key| source.has_row(table.table, key));
            match has_row.collect::<Option<Vec<bool>>>() {
                Some(has_row) => unseen.push(has_row.into_iter().map(|has_row| !has_row).collect()),
                None => {
                    self.is_known = false;
                    return;
                }
            }
        }
        for ((feature, column), planned) in
            self.features.iter_mut().zip(&batch.sparse).zip(&plan.columns)
        {
            let Some(unseen) = unseen.get(planned.table) else { continue };
            let is_unseen =
                |value: usize| planned.inverse.get(value).is_some_and(|&key| unseen[key as usize]);
            feature.add(column, batch.rows, is_unseen);
        }
    }

    /// Returns the counts of the features with such ids. The list is empty if the source of the
    /// rows does not tell which ids have a row.
    pub(crate) fn finish(self) -> Vec<UnseenIds> {
        if !self.is_known {
            return Vec::new();
        }
        let features = self.features.into_iter().filter(|feature| feature.rows > 0);
        let report = |feature: Feature| UnseenIds {
            feature: feature.name,
            rows: feature.rows,
            of_rows: self.rows,
            ids: match &feature.sketch {
                Some(sketch) => sketch.count().round() as u64,
                None => feature.ids.len() as u64,
            },
            ids_are_estimated: feature.sketch.is_some(),
        };
        features.map(report).collect()
    }
}

impl Feature {
    fn add(&mut self, column: &KeyColumn, rows: usize, is_unseen: impl Fn(usize) -> bool) {
        for row in 0..rows {
            let values = match &column.offsets {
                Some(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
                None => row..row + 1,
            };
            let mut has_unseen = false;
            for value in values.filter(|&value| is_unseen(value)) {
                has_unseen = true;
                self.add_id(column.keys[value]);
            }
            self.rows += u64::from(has_unseen);
        }
    }

    fn add_id(&mut self, key: FeatureKey) {
        if let Some(sketch) = &mut self.sketch {
            sketch.add(key);
            return;
        }
        self.ids.insert(key);
        if self.ids.len() > EXACT_IDS {
            let mut sketch = Sketch::default();
            std::mem::take(&mut self.ids).into_iter().for_each(|key| sketch.add(key));
            self.sketch = Some(sketch);
        }
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::{PlanScratch, RowBuffer, TableId};
    use zillion_rows::{LookupReport, TableLayout};

    use super::*;

    /// A source that has rows for even ids, or does not tell which ids have a row.
    struct Even {
        tells: bool,
    }

    impl RowSource for Even {
        fn tables(&self) -> &[TableLayout] {
            &[]
        }

        fn lookup(
            &mut self,
            _plan: &LookupPlan,
            _rows: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            Ok(LookupReport::default())
        }

        fn has_row(&self, _table: TableId, key: FeatureKey) -> Option<bool> {
            self.tells.then(|| key.unmix().is_multiple_of(2))
        }
    }

    fn count(tells: bool) -> Vec<UnseenIds> {
        let job = r#"{"features": {"user": {"kind": "id", "table": "ids"},
            "items": {"kind": "ids", "table": "ids"}, "x": {"kind": "numeric"}},
            "labels": {"y": {}}}"#;
        let schema = Schema::from_job(&serde_json::from_str(job).unwrap()).unwrap();
        let keys = |ids: &[u64]| ids.iter().map(|&id| FeatureKey::from_u64(id)).collect();
        let mut counter = UnseenCounter::new(&schema);
        // The same ids without a row come in both batches, and are counted once.
        for users in [[1, 2, 1, 4], [3, 1, 6, 8]] {
            let mut batch = Batch::empty(&schema);
            batch.rows = 4;
            batch.sparse[0].keys = keys(&users);
            batch.sparse[1].keys = keys(&[5, 7, 2, 9]);
            batch.sparse[1].offsets = Some(vec![0, 2, 2, 3, 4]);
            let plan = LookupPlan::build(&batch, &schema, &mut PlanScratch::default());
            counter.add(&batch, &plan, 5, &Even { tells });
        }
        counter.finish()
    }

    #[test]
    fn rows_and_distinct_ids_are_counted_by_feature() {
        let unseen = |feature: &str, rows, ids| UnseenIds {
            feature: feature.to_owned(),
            rows,
            of_rows: 8,
            ids,
            ids_are_estimated: false,
        };
        assert_eq!(count(true), [unseen("user", 4, 2), unseen("items", 4, 3)]);
        assert_eq!(count(false), []);
    }

    #[test]
    fn many_ids_are_estimated() {
        let mut feature =
            Feature { name: "user".to_owned(), rows: 1, ids: HashSet::default(), sketch: None };
        let many = EXACT_IDS as u64 + 1000;
        (0..many).for_each(|id| feature.add_id(FeatureKey::from_u64(id)));
        let counter = UnseenCounter { rows: 1, features: vec![feature], is_known: true };
        let found = counter.finish().remove(0);
        assert!(found.ids_are_estimated);
        assert!(found.ids.abs_diff(many) < many / 25, "{}", found.ids);
    }
}
