//! A batch that grows row by row.

use std::ops::Range;

use zillion_feature::{Batch, FeatureKind, KeyColumn, LabelColumn, Schema};

/// The columns of the rows of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowShape {
    /// Whether each sparse column has any number of keys in a row, instead of exactly one.
    pub(super) lists: Vec<bool>,
    /// The number of numeric columns.
    pub(super) numeric: usize,
    /// The number of labels.
    pub(super) labels: usize,
    /// Whether rows have a group.
    pub(super) group: bool,
}

impl RowShape {
    /// Returns the columns of a schema without side tables.
    pub(super) fn of(schema: &Schema) -> Self {
        let is_list = |kind: &FeatureKind| {
            matches!(kind, FeatureKind::Ids { .. } | FeatureKind::Sequence { .. })
        };
        Self {
            lists: schema.sparse().map(|feature| is_list(&feature.kind)).collect(),
            numeric: schema.numeric_width(),
            labels: schema.labels.len(),
            group: schema.group.is_some(),
        }
    }

    /// Returns a batch without rows that has these columns, weights and event times.
    pub(super) fn empty(&self) -> Batch {
        let column = |&is_list: &bool| match is_list {
            true => KeyColumn::ragged(vec![0], Vec::new()),
            false => KeyColumn::default(),
        };
        Batch {
            rows: 0,
            sparse: self.lists.iter().map(column).collect(),
            numeric: vec![Vec::new(); self.numeric],
            labels: vec![LabelColumn::default(); self.labels],
            weight: Some(Vec::new()),
            group: self.group.then(Vec::new),
            event_time: Some(Vec::new()),
            side_missing: Vec::new(),
            ..Batch::default()
        }
    }
}

/// Appends a range of rows of `from`, which has the labels of the schema, to `into`. `times` are
/// the event times of `from`.
pub(super) fn append_rows(into: &mut Batch, from: &Batch, rows: Range<usize>) {
    for (to, column) in into.sparse.iter_mut().zip(&from.sparse) {
        append_keys(to, column, rows.clone());
    }
    for (to, column) in into.numeric.iter_mut().zip(&from.numeric) {
        to.extend_from_slice(&column[rows.clone()]);
    }
    for (to, column) in into.labels.iter_mut().zip(&from.labels) {
        append_labels(to, column, rows.clone());
    }
    if let Some(to) = &mut into.weight {
        match &from.weight {
            Some(weights) => to.extend_from_slice(&weights[rows.clone()]),
            None => to.resize(to.len() + rows.len(), 1.0),
        }
    }
    if let (Some(to), Some(groups)) = (&mut into.group, &from.group) {
        to.extend_from_slice(&groups[rows.clone()]);
    }
    if let (Some(to), Some(times)) = (&mut into.event_time, &from.event_time) {
        to.extend_from_slice(&times[rows.clone()]);
    }
    into.rows += rows.len();
}

fn append_keys(to: &mut KeyColumn, column: &KeyColumn, rows: Range<usize>) {
    let keys = match &column.offsets {
        Some(offsets) => offsets[rows.start] as usize..offsets[rows.end] as usize,
        None => rows.clone(),
    };
    let before = to.keys.len();
    to.keys.extend_from_slice(&column.keys[keys.clone()]);
    if let Some(offsets) = &mut to.offsets {
        match &column.offsets {
            Some(from) => {
                let shift = before as i32 - from[rows.start];
                offsets.extend(from[rows.start + 1..=rows.end].iter().map(|end| end + shift));
            }
            None => offsets.extend((1..=rows.len()).map(|row| (before + row) as i32)),
        }
    }
    match (&mut to.weights, &column.weights) {
        (Some(to), Some(weights)) => to.extend_from_slice(&weights[keys]),
        (Some(to), None) => to.resize(to.len() + keys.len(), 1.0),
        (weights @ None, Some(from)) => {
            let mut all = vec![1.0; before];
            all.extend_from_slice(&from[keys]);
            *weights = Some(all);
        }
        (None, None) => {}
    }
}

fn append_labels(to: &mut LabelColumn, column: &LabelColumn, rows: Range<usize>) {
    let before = to.values.len();
    to.values.extend_from_slice(&column.values[rows.clone()]);
    match (&mut to.mask, &column.mask) {
        (Some(to), Some(mask)) => to.extend_from_slice(&mask[rows]),
        (Some(to), None) => to.resize(to.len() + rows.len(), true),
        (mask @ None, Some(from)) => {
            let mut all = vec![true; before];
            all.extend_from_slice(&from[rows]);
            *mask = Some(all);
        }
        (None, None) => {}
    }
}

/// Removes what is in no row: the weights, if all of them are 1. So rows without weights give the
/// bytes of a batch without weights.
pub(super) fn trim(batch: &mut Batch) {
    if batch.weight.as_ref().is_some_and(|weights| weights.iter().all(|&weight| weight == 1.0)) {
        batch.weight = None;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use zillion_feature::FeatureKey;

    use super::*;

    /// Returns a batch of three rows with a list, a mask, and all other kinds of columns.
    pub(in crate::online) fn sample() -> (RowShape, Batch) {
        let shape = RowShape { lists: vec![false, true], numeric: 1, labels: 2, group: true };
        let keys = |keys: &[u64]| keys.iter().map(|&key| FeatureKey(key)).collect::<Vec<_>>();
        let labels = |values: &[f32], mask| LabelColumn { values: values.to_vec(), mask };
        let batch = Batch {
            rows: 3,
            sparse: vec![
                KeyColumn::single(keys(&[1, 2, 3])),
                KeyColumn {
                    weights: Some(vec![0.5, 2.0, 1.0]),
                    ..KeyColumn::ragged(vec![0, 2, 2, 3], keys(&[7, 8, 9]))
                },
            ],
            numeric: vec![vec![0.5, -1.0, f32::MIN]],
            labels: vec![
                labels(&[1.0, 0.0, 1.0], None),
                labels(&[0.0, 0.0, 1.0], Some(vec![true, false, true])),
            ],
            weight: Some(vec![1.0, 0.25, 3.0]),
            group: Some(vec![5, 6, u64::MAX]),
            event_time: Some(vec![10, 11, 12]),
            side_missing: Vec::new(),
            ..Batch::default()
        };
        (shape, batch)
    }

    #[test]
    fn rows_that_are_appended_in_pieces_give_the_batch() {
        let (shape, batch) = sample();
        for cut in 0..=3 {
            let mut built = shape.empty();
            append_rows(&mut built, &batch, 0..cut);
            append_rows(&mut built, &batch, cut..3);
            assert_eq!(built, batch, "{cut}");
        }
    }

    #[test]
    fn weights_of_one_are_left_out() {
        let (shape, batch) = sample();
        let mut built = shape.empty();
        append_rows(&mut built, &Batch { weight: None, ..batch.clone() }, 0..3);
        assert_eq!(built.weight, Some(vec![1.0; 3]));
        trim(&mut built);
        assert_eq!(built.weight, None);
        let mut weighted = batch.clone();
        trim(&mut weighted);
        assert_eq!(weighted, batch);
    }
}
