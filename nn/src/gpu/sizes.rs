//! The sizes and the form of a batch, for which a list of launches is made.

use crate::inputs::Inputs;

/// The sizes of a batch. As a capacity, these are the largest sizes for which there is memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The number of rows of the batch.
    pub(crate) rows: usize,
    /// The number of values of each sparse column.
    pub(crate) values: Vec<usize>,
    /// The number of unique rows of each table.
    pub(crate) unique: Vec<usize>,
    /// The number of entries of the list of occurrences of each table.
    pub(crate) occurrences: Vec<usize>,
    /// The number of tiles of all lanes.
    pub(crate) tiles: usize,
    /// The largest number of blocks of a dimension (see [`Cut`](super::cut::Cut)).
    pub(crate) blocks: usize,
}

impl Sizes {
    /// Returns whether a batch of these sizes fits into a capacity.
    pub(crate) fn fits(&self, capacity: &Self) -> bool {
        let within = |own: &[usize], most: &[usize]| {
            own.len() == most.len() && own.iter().zip(most).all(|(own, most)| own <= most)
        };
        self.rows <= capacity.rows
            && self.tiles <= capacity.tiles
            && self.blocks <= capacity.blocks
            && within(&self.values, &capacity.values)
            && within(&self.unique, &capacity.unique)
            && within(&self.occurrences, &capacity.occurrences)
    }

    /// Returns a capacity for batches of these sizes and of an earlier capacity. Numbers that
    /// differ from batch to batch are rounded up, so that the capacity rarely grows.
    pub(crate) fn grow(&self, earlier: &Self) -> Self {
        let most = |own: &[usize], earlier: &[usize]| {
            let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
            own.iter().zip(earlier).map(|(&own, earlier)| round_up(own).max(earlier)).collect()
        };
        Self {
            rows: self.rows.max(earlier.rows),
            values: most(&self.values, &earlier.values),
            unique: most(&self.unique, &earlier.unique),
            occurrences: most(&self.occurrences, &earlier.occurrences),
            tiles: round_up(self.tiles).max(earlier.tiles),
            blocks: round_up(self.blocks).max(earlier.blocks),
        }
    }
}

impl Sizes {
    /// Rounds the capacity up to whole blocks of rows, of which products of the library have all.
    pub(crate) fn in_blocks(mut self, rows: usize) -> Self {
        self.rows = self.rows.next_multiple_of(rows);
        self.values.iter_mut().for_each(|values| *values = values.next_multiple_of(rows));
        self
    }
}

/// Rounds a number up by at most a quarter, or to a multiple of 16.
fn round_up(n: usize) -> usize {
    n.next_multiple_of((n.next_power_of_two() / 8).max(16))
}

/// The optional parts that a batch has. Batches of another form run other launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    /// Whether each sparse column has lists.
    pub(crate) lists: Vec<bool>,
    /// Whether each sparse column has a weight for each value.
    pub(crate) weighted: Vec<bool>,
    /// Whether each label is missing in some rows.
    pub(crate) masked: Vec<bool>,
    /// Whether the batch has sample weights.
    pub(crate) sample_weights: bool,
    /// The number of floats from one row of each table to the next.
    pub(crate) strides: Vec<usize>,
    /// The number of rows, if the launches are for just this number of rows, and otherwise 0.
    pub(crate) exact_rows: usize,
}

impl Form {
    /// Stores the form of a batch. With `exact`, the number of rows is a part of the form.
    pub(crate) fn set(&mut self, inputs: &Inputs<'_>, exact: bool) {
        self.exact_rows = if exact { inputs.rows } else { 0 };
        self.lists.clear();
        self.lists.extend(inputs.columns.iter().map(|column| column.offsets.is_some()));
        self.weighted.clear();
        self.weighted.extend(inputs.columns.iter().map(|column| column.weights.is_some()));
        self.masked.clear();
        self.masked.extend(inputs.labels.iter().map(|label| label.mask.is_some()));
        self.sample_weights = inputs.weight.is_some();
        self.strides.clear();
        self.strides.extend(inputs.tables.iter().map(|table| table.stride));
    }
}
