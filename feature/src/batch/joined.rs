//! Batches of several requests that become one batch, so that the model is run once for all rows.

use crate::batch::{Batch, KeyColumn, SharedColumns};

impl Batch {
    /// Replaces the rows of this batch by the rows of `parts`, in their order. The columns keep
    /// their memory. Labels, weights, groups and event times are not taken over, because the
    /// batches of requests have none.
    ///
    /// # Panics
    /// Panics if a part has a shared column, if the parts have different columns, or if a column
    /// gets 2³¹ values or more.
    pub fn join<'a>(&mut self, parts: impl IntoIterator<Item = &'a Self>) {
        let mut parts = parts.into_iter().peekable();
        self.rows = 0;
        self.shared = SharedColumns::default();
        let first = parts.peek().copied();
        self.sparse.resize_with(first.map_or(0, |first| first.sparse.len()), KeyColumn::default);
        self.numeric.resize_with(first.map_or(0, |first| first.numeric.len()), Vec::new);
        self.side_missing.clear();
        self.side_missing.resize(first.map_or(0, |first| first.side_missing.len()), 0);
        if let Some(first) = first {
            let columns = self.sparse.iter_mut().zip(&first.sparse);
            columns.for_each(|(column, first)| column.clear_as(first));
        }
        self.numeric.iter_mut().for_each(Vec::clear);
        for part in parts {
            self.append(part);
        }
    }

    fn append(&mut self, part: &Self) {
        assert!(part.shared.is_empty(), "a batch with a shared column has fewer values than rows");
        let (sparse, numeric) = (self.sparse.len(), self.numeric.len());
        let is_same = (part.sparse.len(), part.numeric.len()) == (sparse, numeric);
        assert!(is_same, "joined batches have the same columns");
        self.rows += part.rows;
        for (column, part) in self.sparse.iter_mut().zip(&part.sparse) {
            column.append(part);
        }
        for (column, part) in self.numeric.iter_mut().zip(&part.numeric) {
            column.extend_from_slice(part);
        }
        for (missing, part) in self.side_missing.iter_mut().zip(&part.side_missing) {
            *missing += part;
        }
    }
}

impl KeyColumn {
    /// Removes all rows, and prepares the column for rows of the same kind as those of `like`.
    fn clear_as(&mut self, like: &Self) {
        self.keys.clear();
        self.offsets = like.offsets.as_ref().map(|_| {
            let mut offsets = self.offsets.take().unwrap_or_default();
            offsets.clear();
            offsets.push(0);
            offsets
        });
        self.weights = like.weights.as_ref().map(|_| {
            let mut weights = self.weights.take().unwrap_or_default();
            weights.clear();
            weights
        });
    }

    fn append(&mut self, part: &Self) {
        let base = self.keys.len();
        let few = "a batch holds fewer than 2^31 values a column";
        let end = i32::try_from(base + part.keys.len()).expect(few);
        match (&mut self.offsets, &part.offsets) {
            (None, None) => {}
            (Some(own), Some(offsets)) => {
                let base = end - part.keys.len() as i32;
                own.extend(offsets.iter().skip(1).map(|&offset| base + offset));
            }
            _ => panic!("joined columns have lists in all parts or in none"),
        }
        match (&mut self.weights, &part.weights) {
            (None, None) => {}
            (Some(own), Some(weights)) => own.extend_from_slice(weights),
            _ => panic!("joined columns have weights in all parts or in none"),
        }
        self.keys.extend_from_slice(&part.keys);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::FeatureKey;

    /// A batch with a column of single keys, a column of weighted lists, and a numeric column.
    fn batch(rows: &[(u64, Vec<u64>, f32)]) -> Batch {
        let lists = rows.iter().flat_map(|(_, list, _)| list);
        let keys: Vec<FeatureKey> = lists.map(|&key| FeatureKey(key)).collect();
        let ends = rows.iter().scan(0, |end, (_, list, _)| {
            *end += list.len() as i32;
            Some(*end)
        });
        let weights = keys.iter().map(|key| key.0 as f32).collect();
        let offsets = std::iter::once(0).chain(ends).collect();
        let lists = KeyColumn { weights: Some(weights), ..KeyColumn::ragged(offsets, keys) };
        let single = rows.iter().map(|(key, ..)| FeatureKey(*key)).collect();
        Batch {
            rows: rows.len(),
            sparse: vec![KeyColumn::single(single), lists],
            numeric: vec![rows.iter().map(|(.., x)| *x).collect()],
            side_missing: vec![rows.len() as u64],
            ..Batch::default()
        }
    }

    fn rows() -> impl Strategy<Value = Vec<(u64, Vec<u64>, f32)>> {
        let row = (any::<u64>(), prop::collection::vec(any::<u64>(), 0..5), -1e9f32..1e9);
        prop::collection::vec(row, 0..6)
    }

    proptest! {
        #[test]
        fn joined_batches_have_all_rows(
            first in prop::collection::vec(rows(), 1..5),
            second in prop::collection::vec(rows(), 1..5),
        ) {
            // The second join uses the memory of the first one.
            let mut joined = Batch::default();
            for parts in [first, second] {
                let batches: Vec<Batch> = parts.iter().map(|rows| batch(rows)).collect();
                joined.join(&batches);
                prop_assert_eq!(&joined, &batch(&parts.concat()));
            }
            joined.join([]);
            prop_assert_eq!(&joined, &Batch::default());
        }
    }

    #[test]
    #[should_panic(expected = "shared column")]
    fn shared_columns_are_refused() {
        let mut shared = batch(&[(1, vec![2], 3.0)]);
        shared.shared.add_sparse(0);
        Batch::default().join([&shared]);
    }
}
