//! The shared columns of a batch: columns with one row that stands for all rows.
//!
//! A request for one user and many candidates gives the user's inputs once. Their columns stay one
//! row in the batch, so that their ids are hashed and looked up once, and so that the model can
//! compute once what depends only on them.

use crate::batch::{Batch, KeyColumn};

/// The set of the columns of a batch that have one row, which stands for all rows of the batch. A
/// batch of training has no such columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SharedColumns {
    /// The positions of the shared sparse columns, ascending.
    sparse: Vec<usize>,
    /// The positions of the shared numeric columns, ascending.
    numeric: Vec<usize>,
}

impl SharedColumns {
    /// Creates a set from the positions of its sparse and of its numeric columns, in any order.
    pub fn new(
        sparse: impl IntoIterator<Item = usize>,
        numeric: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut shared = Self::default();
        sparse.into_iter().for_each(|column| shared.add_sparse(column));
        numeric.into_iter().for_each(|column| shared.add_numeric(column));
        shared
    }

    /// Returns whether no column is shared.
    pub fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.numeric.is_empty()
    }

    /// Adds the sparse column at this position.
    pub fn add_sparse(&mut self, column: usize) {
        add(&mut self.sparse, column);
    }

    /// Adds the numeric column at this position.
    pub fn add_numeric(&mut self, column: usize) {
        add(&mut self.numeric, column);
    }

    /// Removes the sparse column at this position, if the set has it.
    pub fn remove_sparse(&mut self, column: usize) {
        self.sparse.retain(|&other| other != column);
    }

    /// Returns whether the sparse column at this position is shared.
    pub fn has_sparse(&self, column: usize) -> bool {
        self.sparse.binary_search(&column).is_ok()
    }

    /// Returns whether the numeric column at this position is shared.
    pub fn has_numeric(&self, column: usize) -> bool {
        self.numeric.binary_search(&column).is_ok()
    }

    /// Returns the positions of the shared sparse columns, ascending.
    pub fn sparse(&self) -> &[usize] {
        &self.sparse
    }

    /// Returns the positions of the shared numeric columns, ascending.
    pub fn numeric(&self) -> &[usize] {
        &self.numeric
    }
}

fn add(columns: &mut Vec<usize>, column: usize) {
    if let Err(at) = columns.binary_search(&column) {
        columns.insert(at, column);
    }
}

impl Batch {
    /// Returns the batch with every shared column copied to all rows, for code that needs a row of
    /// every column for each row of the batch.
    ///
    /// # Panics
    /// Panics if a copied column has 2³¹ values or more. A batch of the
    /// [`Encoder`](crate::Encoder) never has.
    pub fn expand(mut self) -> Self {
        let shared = std::mem::take(&mut self.shared);
        for &column in shared.sparse() {
            self.sparse[column] = self.sparse[column].repeat(self.rows);
        }
        for &column in shared.numeric() {
            self.numeric[column] = self.numeric[column].repeat(self.rows);
        }
        self
    }
}

impl KeyColumn {
    /// Returns a column with `rows` copies of the single row of this column.
    fn repeat(&self, rows: usize) -> Self {
        let values = self.keys.len();
        let end = |row: usize| {
            i32::try_from(row * values).expect("a batch holds fewer than 2^31 values a column")
        };
        Self {
            offsets: self.offsets.as_ref().map(|_| (0..=rows).map(end).collect()),
            keys: self.keys.repeat(rows),
            weights: self.weights.as_ref().map(|weights| weights.repeat(rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::FeatureKey;

    #[test]
    fn expanded_columns_have_a_copy_in_each_row() {
        let keys = [1, 2].map(FeatureKey).to_vec();
        let list = KeyColumn {
            offsets: Some(vec![0, 2]),
            keys: keys.clone(),
            weights: Some(vec![0.5, 2.0]),
        };
        let single = KeyColumn::single(vec![FeatureKey(9)]);
        let own = KeyColumn::single((0..3).map(FeatureKey).collect());
        let batch = Batch {
            rows: 3,
            shared: SharedColumns::new([2, 0, 2], [1]),
            sparse: vec![list, own.clone(), single],
            numeric: vec![vec![1.0, 2.0, 3.0], vec![7.0]],
            ..Batch::default()
        };
        assert_eq!((batch.shared.sparse(), batch.shared.numeric()), (&[0, 2][..], &[1][..]));
        let all = batch.expand();
        assert!(all.shared.is_empty());
        assert_eq!(all.sparse[0].offsets.as_deref(), Some(&[0, 2, 4, 6][..]));
        assert_eq!(all.sparse[0].keys, keys.repeat(3));
        assert_eq!(all.sparse[0].weights.as_deref(), Some(&[0.5, 2.0, 0.5, 2.0, 0.5, 2.0][..]));
        assert_eq!(all.sparse[1], own);
        assert_eq!(all.sparse[2].keys, [FeatureKey(9); 3]);
        assert_eq!(all.numeric, [vec![1.0, 2.0, 3.0], vec![7.0; 3]]);
    }
}
