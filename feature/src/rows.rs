//! The buffers that carry rows between tables and the model.

/// The rows of one step, one block for each table, in the order of the plan's unique keys. A pull
/// takes ownership of a buffer, fills it and returns it.
#[derive(Clone, Debug, Default)]
pub struct RowBuffer {
    /// The rows of each table of the plan.
    pub tables: Vec<TableRows>,
}

/// The rows of one table: `values` holds `unique × stride` floats, row after row.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// The number of floats from one row to the next.
    pub stride: usize,
    /// The floats of the rows.
    pub values: Vec<f32>,
    /// The number of pushes that each row has had so far, if the caller asked for counts.
    pub counts: Option<Vec<u32>>,
    /// The use of each row in the batch, if gradients are pushed and the table keeps statistics of
    /// use. A pull does not change it.
    pub uses: Option<Vec<Use>>,
}

/// The use of a row in one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// The number of occurrences of the row's key.
    pub shows: f32,
    /// The sum of the first label over these occurrences.
    pub clicks: f32,
}

impl TableRows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Returns row `i` as a slice of `stride` floats.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.stride..(i + 1) * self.stride]
    }

    /// Sets the shape to `rows × stride`; the values of the floats are unspecified afterwards.
    pub fn reshape(&mut self, rows: usize, stride: usize) {
        self.stride = stride;
        self.values.resize(rows * stride, 0.0);
    }
}

impl RowBuffer {
    /// Sets the shape of every table; the values of the floats are unspecified afterwards.
    pub fn reshape(&mut self, shapes: impl ExactSizeIterator<Item = (usize, usize)>) {
        self.tables.resize_with(shapes.len(), TableRows::default);
        for (table, (rows, stride)) in self.tables.iter_mut().zip(shapes) {
            table.reshape(rows, stride);
        }
    }
}
