//! The inputs of one run: a batch, the rows of its keys, and the indices that map values to rows.

mod copies;

use std::ops::Range;

use zillion_feature::{Batch, LookupPlan, RowBuffer, SharedColumns};

use crate::error::{Error, Result};
use crate::graph::GraphInputs;
use crate::graph::shape::Dim;

pub use copies::ColumnCopies;

/// The inputs of one run. They have the same tables and columns as the graph's [`GraphInputs`], at
/// the same indices.
#[derive(Clone, Debug, Default)]
pub struct Inputs<'a> {
    /// The number of rows of the batch.
    pub rows: usize,
    /// The unique rows of each table.
    pub tables: Vec<TableView<'a>>,
    /// The sparse columns, in schema order.
    pub columns: Vec<ColumnView<'a>>,
    /// The occurrences of the rows of each table. The list is empty for inference.
    pub occurrences: Vec<OccurrenceView<'a>>,
    /// The values of the numeric columns.
    pub numeric: Vec<&'a [f32]>,
    /// The labels. The list may be empty for inference.
    pub labels: Vec<LabelView<'a>>,
    /// The sample weights, if the batch has any.
    pub weight: Option<&'a [f32]>,
}

/// The unique rows of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    /// The rows, `unique × stride` floats. Empty if the rows are on a device.
    pub values: &'a [f32],
    /// The number of floats from one row to the next, which may be more than the graph reads.
    pub stride: usize,
    /// The number of unique rows.
    pub unique: usize,
}

/// One sparse column as indices of unique rows.
#[derive(Clone, Copy, Debug)]
pub struct ColumnView<'a> {
    /// The index of the column's table.
    pub table: usize,
    /// The index of the unique row of each value.
    pub inverse: &'a [u32],
    /// The `rows + 1` offsets into the values; `None` if each row has one value.
    pub offsets: Option<&'a [i32]>,
    /// The weight of each value, if the column has weights.
    pub weights: Option<&'a [f32]>,
    /// The position of the column's first value among all values of its table.
    pub base: u32,
}

/// The occurrences of each unique row of a table.
#[derive(Clone, Copy, Debug)]
pub struct OccurrenceView<'a> {
    /// The `unique + 1` offsets into `positions`.
    pub offsets: &'a [u32],
    /// The positions of the occurrences among all values of the table, ascending for each row.
    pub positions: &'a [u32],
}

/// A label of the batch.
#[derive(Clone, Copy, Debug)]
pub struct LabelView<'a> {
    /// The value of each row.
    pub values: &'a [f32],
    /// Whether each row has the label; `None` if all rows have it.
    pub mask: Option<&'a [bool]>,
}

impl<'a> ColumnView<'a> {
    /// Returns the number of rows of the column.
    pub(crate) fn rows(&self) -> usize {
        self.offsets.map_or(self.inverse.len(), |offsets| offsets.len().saturating_sub(1))
    }

    /// Returns the number of values in all rows before this row.
    #[inline(always)]
    pub(crate) fn values_before(&self, row: usize) -> usize {
        self.offsets.map_or(row, |offsets| offsets[row] as usize)
    }

    /// Returns the range of the values of a row.
    #[inline(always)]
    pub(crate) fn values_of(&self, row: usize) -> Range<usize> {
        match self.offsets {
            None => row..row + 1,
            Some(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
        }
    }
}

/// Returns the views of tables whose rows are on a device.
fn tables_on_device<'a>(plan: &LookupPlan, strides: &[usize]) -> Vec<TableView<'a>> {
    let views = plan.tables.iter().zip(strides);
    views
        .map(|(table, &stride)| TableView { values: &[], stride, unique: table.keys.len() })
        .collect()
}

impl<'a> Inputs<'a> {
    /// Returns the part of a dimension that belongs to the rows `batch`. For the dimension of the
    /// batch, these are the rows themselves. For the dimension of a column, these are the values of
    /// the rows.
    #[inline]
    pub(crate) fn span(&self, dim: Dim, batch: &Range<usize>) -> Range<usize> {
        match dim {
            Dim::Values(column) => {
                let column = &self.columns[column];
                column.values_before(batch.start)..column.values_before(batch.end)
            }
            _ => batch.clone(),
        }
    }

    /// Creates the inputs of a batch whose rows have been pulled. If `train` is `false`, the inputs
    /// have no occurrences and no labels.
    pub fn new(batch: &'a Batch, plan: &'a LookupPlan, rows: &'a RowBuffer, train: bool) -> Self {
        let tables = rows.tables.iter().map(|t| TableView {
            values: &t.values,
            stride: t.stride,
            unique: t.rows(),
        });
        Self::with_tables(tables.collect(), batch, plan, train)
    }

    /// Creates the inputs of a training step whose rows are on a device. `strides` has the number
    /// of floats from one row of each table to the next.
    pub fn with_device_rows(batch: &'a Batch, plan: &'a LookupPlan, strides: &[usize]) -> Self {
        Self::with_tables(tables_on_device(plan, strides), batch, plan, true)
    }

    /// Creates the inputs of scoring whose rows are on a device, without occurrences and labels.
    pub fn for_device_scoring(batch: &'a Batch, plan: &'a LookupPlan, strides: &[usize]) -> Self {
        Self::with_tables(tables_on_device(plan, strides), batch, plan, false)
    }

    fn with_tables(
        tables: Vec<TableView<'a>>,
        batch: &'a Batch,
        plan: &'a LookupPlan,
        train: bool,
    ) -> Self {
        let columns = plan.columns.iter().zip(&batch.sparse).map(|(planned, keys)| ColumnView {
            table: planned.table,
            inverse: &planned.inverse,
            offsets: keys.offsets.as_deref(),
            weights: keys.weights.as_deref(),
            base: planned.base,
        });
        let occurrences = plan.tables.iter().filter(|_| train).map(|t| OccurrenceView {
            offsets: &t.occurrences.offsets,
            positions: &t.occurrences.positions,
        });
        let labels = batch
            .labels
            .iter()
            .filter(|_| train)
            .map(|l| LabelView { values: &l.values, mask: l.mask.as_deref() });
        Self {
            rows: batch.rows,
            tables,
            columns: columns.collect(),
            occurrences: occurrences.collect(),
            numeric: batch.numeric.iter().map(Vec::as_slice).collect(),
            labels: labels.collect(),
            weight: batch.weight.as_deref(),
        }
    }

    /// Checks all values that kernels use as an index, so that a batch that does not fit the graph
    /// cannot make a kernel panic. `labels` tells whether labels are read, and `train` tells
    /// whether a backward pass runs. The floats of rows that are on a device are not here, so
    /// `rows_are_here` tells whether their number is checked. The columns `one_row` must have one
    /// row, and the others a row for each row of the batch.
    pub(crate) fn check(
        &self,
        graph: &GraphInputs,
        (labels, train): (bool, bool),
        rows_are_here: bool,
        one_row: &SharedColumns,
    ) -> Result<()> {
        if self.rows == 0 || self.rows > MAX_ROWS {
            return Err(wrong(
                "the batch",
                format!("found {} rows; give 1 to {MAX_ROWS} rows", self.rows),
            ));
        }
        self.check_tables(graph, rows_are_here)?;
        count("sparse columns", self.columns.len(), graph.columns.len())?;
        for (at, (column, known)) in self.columns.iter().zip(&graph.columns).enumerate() {
            let rows = if one_row.has_sparse(at) { 1 } else { self.rows };
            let checked = self.check_column(column, known.table, rows);
            checked.map_err(|reason| wrong(&known.name, reason))?;
        }
        count("numeric columns", self.numeric.len(), graph.numeric.len())?;
        for (at, (values, name)) in self.numeric.iter().zip(&graph.numeric).enumerate() {
            let rows = if one_row.has_numeric(at) { 1 } else { self.rows };
            one_a_row(name, values.len(), rows)?;
        }
        if labels {
            count("labels", self.labels.len(), graph.labels.len())?;
            for (label, name) in self.labels.iter().zip(&graph.labels) {
                one_a_row(name, label.values.len(), self.rows)?;
                one_a_row(name, label.mask.map_or(self.rows, <[bool]>::len), self.rows)?;
            }
        }
        let weights = self.weight.map_or(self.rows, <[f32]>::len);
        one_a_row("the sample weight", weights, self.rows)?;
        if train { self.check_occurrences(graph) } else { Ok(()) }
    }

    /// Checks that the number of values of each of these columns fits in 24 bits. In these columns,
    /// each value has its own row in the computation.
    pub(crate) fn check_values(&self, graph: &GraphInputs, columns: &[usize]) -> Result<()> {
        for &column in columns {
            let values = self.columns[column].inverse.len();
            if values > MAX_ROWS {
                let reason = format!(
                    "found {values} values in a batch, but at most {MAX_ROWS} are allowed; \
                     shorten the lists or the batch"
                );
                return Err(wrong(&graph.columns[column].name, reason));
            }
        }
        Ok(())
    }

    /// Checks that each of these columns has one value for each row, as some node requires.
    pub(crate) fn check_single(&self, graph: &GraphInputs, columns: &[usize]) -> Result<()> {
        match columns.iter().find(|&&column| self.columns[column].offsets.is_some()) {
            Some(&column) => Err(wrong(
                &graph.columns[column].name,
                "found lists, but the model needs one value for each row; give a column without \
                 lists"
                    .into(),
            )),
            None => Ok(()),
        }
    }

    fn check_tables(&self, graph: &GraphInputs, rows_are_here: bool) -> Result<()> {
        count("tables", self.tables.len(), graph.tables.len())?;
        for (table, known) in self.tables.iter().zip(&graph.tables) {
            if table.stride < known.stride {
                let reason = format!(
                    "the rows have {} floats instead of {}; use the tables of the model",
                    table.stride, known.stride
                );
                return Err(wrong(&known.name, reason));
            }
            let floats = table.unique.checked_mul(table.stride);
            if rows_are_here && floats != Some(table.values.len()) {
                let (len, unique, stride) = (table.values.len(), table.unique, table.stride);
                return Err(wrong(
                    &known.name,
                    format!(
                        "found {len} floats for {unique} rows of {stride} floats; make the lookup \
                         plan again"
                    ),
                ));
            }
        }
        Ok(())
    }

    fn check_column(
        &self,
        column: &ColumnView<'_>,
        table: usize,
        rows: usize,
    ) -> std::result::Result<(), String> {
        if column.table != table {
            return Err(format!(
                "the column reads table {} instead of table {table}; use the tables of the model",
                column.table
            ));
        }
        let unique = self.tables[table].unique;
        // The loop computes a maximum, because such a loop is vectorised. A loop that stops at the
        // first wrong index would not be.
        let largest = column.inverse.iter().fold(0, |a, &b| a.max(b));
        if !column.inverse.is_empty() && largest as usize >= unique {
            return Err(format!(
                "found index {largest}, but there are {unique} unique rows; make the lookup plan \
                 again"
            ));
        }
        let values = column.inverse.len();
        match column.offsets {
            None if values != rows => {
                return Err(format!("found {values} values for {rows} rows"));
            }
            None => {}
            Some(offsets) => {
                let end = offsets.last().and_then(|&end| usize::try_from(end).ok());
                if offsets.len() != rows + 1 || end != Some(values) || !ascend_from_0(offsets) {
                    return Err(
                        "the offsets do not ascend from 0 to the number of values; correct them"
                            .into(),
                    );
                }
            }
        }
        match column.weights {
            Some(weights) if weights.len() != values => Err(format!(
                "found {} weights for {values} values; give one weight for each value",
                weights.len()
            )),
            _ => Ok(()),
        }
    }

    fn check_occurrences(&self, graph: &GraphInputs) -> Result<()> {
        count("tables with occurrences", self.occurrences.len(), graph.tables.len())?;
        for (t, (occurrences, known)) in self.occurrences.iter().zip(&graph.tables).enumerate() {
            let OccurrenceView { offsets, positions } = *occurrences;
            let columns = || self.columns.iter().filter(|c| c.table == t);
            let values: usize = columns().map(|c| c.inverse.len()).sum();
            let mut base = 0;
            for column in columns() {
                if column.base as usize != base {
                    return Err(wrong(
                        &known.name,
                        "the positions of its columns do not follow one another; make the lookup \
                         plan again"
                            .into(),
                    ));
                }
                base += column.inverse.len();
            }
            let end = offsets.last().map(|&end| end as usize);
            let largest = positions.iter().fold(0, |a, &b| a.max(b));
            if offsets.len() != self.tables[t].unique + 1
                || end != Some(positions.len())
                || !ascend_from_0(offsets)
                || positions.len() != values
                || (values > 0 && largest as usize >= values)
            {
                return Err(wrong(
                    &known.name,
                    "the occurrences do not fit the columns; make the lookup plan again".into(),
                ));
            }
        }
        Ok(())
    }
}

/// The maximum number of rows in a batch. It is also the maximum number of values of a list column
/// whose values have their own rows. The executor stores the index of a row in 24 bits.
const MAX_ROWS: usize = 1 << 24;

/// Returns whether the first offset is 0 and no offset is below the one before it. The loop does
/// not stop early, so that it is vectorised.
fn ascend_from_0<T: Copy + PartialOrd + From<u8>>(offsets: &[T]) -> bool {
    let descends = offsets.windows(2).fold(false, |bad, w| bad | (w[0] > w[1]));
    offsets.first().is_some_and(|&first| first == T::from(0)) && !descends
}

fn one_a_row(name: &str, len: usize, rows: usize) -> Result<()> {
    if len == rows {
        return Ok(());
    }
    Err(wrong(name, format!("found {len} values for {rows} rows; give one value for each row")))
}

fn count(what: &str, have: usize, want: usize) -> Result<()> {
    if have == want {
        Ok(())
    } else {
        Err(wrong(
            "the batch",
            format!("found {have} {what} instead of {want}; give the inputs of the model"),
        ))
    }
}

fn wrong(input: &str, reason: String) -> Error {
    Error::Input { input: input.to_owned(), reason }
}
