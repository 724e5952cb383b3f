//! The buffers that transfer rows between tables and the model.

/// The rows of one step, with one block for each table. The rows follow the order of the unique
/// keys in the plan. A pull takes ownership of a buffer, fills it and returns it.
#[derive(Clone, Debug, Default)]
pub struct RowBuffer {
    /// The rows for each table of the plan.
    pub tables: Vec<TableRows>,
}

/// The rows of one table. `values` holds `unique × stride` floats, row after row, where `unique` is
/// the number of unique keys.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// The number of floats between the starts of two neighbouring rows.
    pub stride: usize,
    /// The floats of the rows.
    pub values: Vec<f32>,
    /// The number of pushes that each row has received, if the caller asked for these counts.
    pub counts: Option<Vec<u32>>,
    /// The use of each row in the batch. It is set for a push of gradients if the table keeps
    /// statistics of use. A pull does not change it.
    pub uses: Option<Vec<Use>>,
}

/// The number of occurrences of a row's key in one batch, and the sum of the labels at these
/// occurrences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// The number of occurrences of the key.
    pub shows: f32,
    /// The sum of the first label over all occurrences of the key.
    pub clicks: f32,
}

impl TableRows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Returns row `i`, counted from 0, as a slice of `stride` floats.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.stride..(i + 1) * self.stride]
    }

    /// Sets the number of rows and the stride. Afterwards, the values of the floats are
    /// unspecified.
    pub fn reshape(&mut self, rows: usize, stride: usize) {
        self.stride = stride;
        self.values.resize(rows * stride, 0.0);
    }
}

impl RowBuffer {
    /// Sets the number of rows and the stride of each table. Afterwards, the values of the floats
    /// are unspecified.
    pub fn reshape(&mut self, shapes: impl ExactSizeIterator<Item = (usize, usize)>) {
        self.tables.resize_with(shapes.len(), TableRows::default);
        for (table, (rows, stride)) in self.tables.iter_mut().zip(shapes) {
            table.reshape(rows, stride);
        }
    }
}
