//! The rows that are evaluated, in memory, and the exchange of their values.

use zillion_feature::{Batch, Crosses, KeyColumn, LabelColumn};

use super::inputs::Input;
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;

/// The first rows of a data set, in the batches in which they were read.
pub(super) struct HeldRows {
    batches: Vec<Batch>,
    /// The batch of each row, and the place of the row in it.
    places: Vec<(u32, u32)>,
    /// The number of the first row of each batch.
    starts: Vec<usize>,
    has_more: bool,
}

impl HeldRows {
    /// Reads up to `most` rows.
    ///
    /// # Errors
    /// Returns an error if the data cannot be read or has no row.
    pub(super) fn read(mut pipeline: Pipeline, most: usize) -> Result<Self> {
        let most = most.min(u32::MAX as usize);
        let (mut batches, mut starts, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut has_more = false;
        while let Some(planned) = pipeline.next()? {
            let left = most - places.len();
            if left == 0 {
                has_more = true;
                break;
            }
            let mut batch = planned.batch;
            if batch.rows > left {
                has_more = true;
                truncate(&mut batch, left);
            }
            let number = batches.len() as u32;
            starts.push(places.len());
            places.extend((0..batch.rows as u32).map(|row| (number, row)));
            batches.push(batch);
            if has_more {
                break;
            }
        }
        if places.is_empty() {
            return Err(Error::Unsupported(
                "the data to evaluate has no row; name files with rows".to_owned(),
            ));
        }
        Ok(Self { batches, places, starts, has_more })
    }

    pub(super) fn batches(&self) -> &[Batch] {
        &self.batches
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of rows, which [`HeldRows::read`] bounds.
    pub(super) fn count_u32(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns a batch in which each row has the values of an input from the row that `order`
    /// names. Crosses follow their members, but a permuted cross moves alone.
    ///
    /// # Errors
    /// Returns an error if a column of the batch gets 2³¹ values or more.
    pub(super) fn permute(
        &self,
        at: usize,
        input: &Input,
        order: &[u32],
        crosses: &Crosses,
    ) -> Result<Batch> {
        let mut batch = self.batches[at].clone();
        let order = &order[self.starts[at]..self.starts[at] + batch.rows];
        let places = || order.iter().map(|&row| self.places[row as usize]);
        for &column in &input.sparse {
            batch.sparse[column] = self.gather_keys(column, places())?;
        }
        for &column in &input.numeric {
            let value =
                |(of, row): (u32, u32)| self.batches[of as usize].numeric[column][row as usize];
            batch.numeric[column] = places().map(value).collect();
        }
        if !input.is_cross {
            crosses.fill(&mut batch);
        }
        Ok(batch)
    }

    fn gather_keys(
        &self,
        column: usize,
        places: impl Iterator<Item = (u32, u32)>,
    ) -> Result<KeyColumn> {
        let columns = || self.batches.iter().map(|batch| &batch.sparse[column]);
        let has_lists = columns().any(|keys| keys.offsets.is_some());
        let has_weights = columns().any(|keys| keys.weights.is_some());
        let mut gathered = KeyColumn {
            offsets: has_lists.then(|| vec![0]),
            keys: Vec::new(),
            weights: has_weights.then(Vec::new),
        };
        for (batch, row) in places {
            let from = &self.batches[batch as usize].sparse[column];
            let keys = from.row(row as usize);
            gathered.keys.extend_from_slice(keys);
            if let Some(weights) = &mut gathered.weights {
                let range = range_of(from, row as usize);
                match &from.weights {
                    Some(of) => weights.extend_from_slice(&of[range]),
                    None => weights.resize(weights.len() + keys.len(), 1.0),
                }
            }
            if let Some(offsets) = &mut gathered.offsets {
                let end = i32::try_from(gathered.keys.len()).map_err(|_| {
                    Error::Unsupported(
                        "a batch of permuted lists has 2^31 values or more; evaluate fewer rows"
                            .to_owned(),
                    )
                })?;
                offsets.push(end);
            }
        }
        Ok(gathered)
    }
}

fn range_of(column: &KeyColumn, row: usize) -> std::ops::Range<usize> {
    match &column.offsets {
        Some(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
        None => row..row + 1,
    }
}

/// Removes all rows of a batch behind the first `rows`.
fn truncate(batch: &mut Batch, rows: usize) {
    for column in &mut batch.sparse {
        let values = match &mut column.offsets {
            Some(offsets) => {
                offsets.truncate(rows + 1);
                offsets.last().map_or(0, |&end| end as usize)
            }
            None => rows,
        };
        column.keys.truncate(values);
        column.weights.iter_mut().for_each(|weights| weights.truncate(values));
    }
    batch.numeric.iter_mut().for_each(|column| column.truncate(rows));
    for LabelColumn { values, mask } in &mut batch.labels {
        values.truncate(rows);
        mask.iter_mut().for_each(|mask| mask.truncate(rows));
    }
    batch.weight.iter_mut().for_each(|column| column.truncate(rows));
    batch.group.iter_mut().for_each(|column| column.truncate(rows));
    batch.event_time.iter_mut().for_each(|column| column.truncate(rows));
    batch.rows = rows;
}

#[cfg(test)]
mod tests {
    use zillion_feature::FeatureKey;

    use super::*;

    fn held(batches: Vec<Batch>) -> HeldRows {
        let (mut starts, mut places) = (Vec::new(), Vec::new());
        for (number, batch) in batches.iter().enumerate() {
            starts.push(places.len());
            places.extend((0..batch.rows as u32).map(|row| (number as u32, row)));
        }
        HeldRows { batches, places, starts, has_more: false }
    }

    fn batch(first: u64, lists: &[&[u64]]) -> Batch {
        let rows = lists.len();
        let keys: Vec<FeatureKey> =
            lists.iter().flat_map(|list| list.iter().map(|&key| FeatureKey(key))).collect();
        let mut offsets = vec![0];
        lists.iter().for_each(|list| offsets.push(offsets[offsets.len() - 1] + list.len() as i32));
        let weights = keys.iter().map(|key| key.0 as f32).collect();
        let list = KeyColumn { offsets: Some(offsets), keys, weights: Some(weights) };
        let ids = (first..first + rows as u64).map(FeatureKey).collect();
        Batch {
            rows,
            sparse: vec![list, KeyColumn::single(ids)],
            numeric: vec![(0..rows).map(|row| first as f32 + row as f32).collect()],
            labels: vec![LabelColumn { values: vec![1.0; rows], mask: Some(vec![true; rows]) }],
            group: Some(vec![7; rows]),
            ..Batch::default()
        }
    }

    #[test]
    fn lists_move_whole_and_between_batches() {
        let rows = held(vec![batch(0, &[&[1, 2], &[], &[3]]), batch(3, &[&[4, 5, 6], &[7]])]);
        let input =
            Input { name: "x".to_owned(), is_cross: false, sparse: vec![0, 1], numeric: vec![0] };
        let order = [4, 3, 1, 0, 2];
        let crosses = Crosses::default();
        let first = rows.permute(0, &input, &order, &crosses).expect("it is small");
        let second = rows.permute(1, &input, &order, &crosses).expect("it is small");
        let lists = |batch: &Batch| -> Vec<Vec<u64>> {
            let row = |row| batch.sparse[0].row(row).iter().map(|key| key.0).collect();
            (0..batch.rows).map(row).collect()
        };
        assert_eq!(lists(&first), [vec![7], vec![4, 5, 6], vec![]]);
        assert_eq!(lists(&second), [vec![1, 2], vec![3]]);
        assert_eq!(first.sparse[0].weights, Some(vec![7.0, 4.0, 5.0, 6.0]));
        assert_eq!(first.sparse[1].keys, [4, 3, 1].map(FeatureKey));
        assert_eq!((first.numeric[0].as_slice(), first.rows), (&[4.0, 3.0, 1.0][..], 3));
        // The columns of other inputs stay.
        let other =
            Input { name: "y".to_owned(), is_cross: false, sparse: vec![1], numeric: vec![] };
        let moved = rows.permute(0, &other, &order, &crosses).expect("it is small");
        assert_eq!(
            (&moved.sparse[0], &moved.numeric),
            (&rows.batches[0].sparse[0], &rows.batches[0].numeric)
        );
    }

    #[test]
    fn a_truncated_batch_has_its_first_rows() {
        let mut rows = batch(0, &[&[1, 2], &[], &[3]]);
        truncate(&mut rows, 2);
        assert_eq!(rows.sparse[0].offsets.as_deref(), Some(&[0, 2, 2][..]));
        assert_eq!(rows.sparse[0].keys, [1, 2].map(FeatureKey));
        assert_eq!((rows.rows, rows.sparse[1].keys.len(), rows.numeric[0].len()), (2, 2, 2));
        assert_eq!(
            (rows.labels[0].values.len(), rows.group.map(|group| group.len())),
            (2, Some(2))
        );
    }
}
