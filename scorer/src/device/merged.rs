//! Requests as inputs of a device, and several requests as one batch.
//!
//! The rows of a request come one behind the other in the batch, and each request has a range of
//! the keys of each table. So the result of a row does not depend on the requests beside it.

use std::ops::Range;

use zillion_feature::{Batch, FeatureKey, LookupPlan, SharedColumns};
use zillion_nn::{ColumnCopies, ColumnView, Inputs, TableView};

use crate::error::Result;

/// A sparse column of a request.
#[derive(Clone, Debug, PartialEq)]
struct Column {
    table: usize,
    inverse: Vec<u32>,
    offsets: Option<Vec<i32>>,
    weights: Option<Vec<f32>>,
}

/// The inputs of a request, or of several ones. Columns with one value for all rows have copies of
/// it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prepared {
    pub(crate) rows: usize,
    /// The keys of each table.
    pub(crate) keys: Vec<Vec<FeatureKey>>,
    /// The number of floats from one row of each table to the next.
    strides: Vec<usize>,
    columns: Vec<Column>,
    numeric: Vec<Vec<f32>>,
    weight: Option<Vec<f32>>,
}

impl Prepared {
    /// Copies the inputs of a batch.
    ///
    /// # Errors
    /// Returns an error if the copies of a shared column have too many values.
    pub(crate) fn new(batch: &Batch, plan: &LookupPlan, strides: &[usize]) -> Result<Self> {
        let mut inputs = Inputs::for_device_scoring(batch, plan, strides);
        let copies = ColumnCopies::new(&inputs, &batch.shared, &SharedColumns::default())?;
        copies.apply(&mut inputs);
        let columns = inputs.columns.iter().map(|column| Column {
            table: column.table,
            inverse: column.inverse.to_vec(),
            offsets: column.offsets.map(<[i32]>::to_vec),
            weights: column.weights.map(<[f32]>::to_vec),
        });
        Ok(Self {
            rows: batch.rows,
            keys: plan.tables.iter().map(|table| table.keys.clone()).collect(),
            strides: inputs.tables.iter().map(|table| table.stride).collect(),
            columns: columns.collect(),
            numeric: inputs.numeric.iter().map(|values| values.to_vec()).collect(),
            weight: inputs.weight.map(<[f32]>::to_vec),
        })
    }

    /// Returns whether two requests can be in one batch: the same columns have lists and weights. A
    /// column that one of them has without lists may be computed by another operation.
    pub(crate) fn has_form_of(&self, other: &Self) -> bool {
        let form = |column: &Column| (column.offsets.is_some(), column.weights.is_some());
        self.keys.len() == other.keys.len()
            && self.numeric.len() == other.numeric.len()
            && self.weight.is_some() == other.weight.is_some()
            && self.columns.iter().map(form).eq(other.columns.iter().map(form))
    }

    /// Puts another request behind this one. Both have one form.
    pub(crate) fn append(&mut self, other: &Self) {
        for (column, more) in self.columns.iter_mut().zip(&other.columns) {
            let base = self.keys[column.table].len() as u32;
            let values = column.inverse.len() as i32;
            column.inverse.extend(more.inverse.iter().map(|at| at + base));
            if let (Some(offsets), Some(more)) = (&mut column.offsets, &more.offsets) {
                offsets.extend(more.iter().skip(1).map(|end| end + values));
            }
            if let (Some(weights), Some(more)) = (&mut column.weights, &more.weights) {
                weights.extend_from_slice(more);
            }
        }
        for (keys, more) in self.keys.iter_mut().zip(&other.keys) {
            keys.extend_from_slice(more);
        }
        for (values, more) in self.numeric.iter_mut().zip(&other.numeric) {
            values.extend_from_slice(more);
        }
        if let (Some(weight), Some(more)) = (&mut self.weight, &other.weight) {
            weight.extend_from_slice(more);
        }
        self.rows += other.rows;
    }

    /// Returns the number of values of all columns.
    pub(crate) fn values(&self) -> usize {
        self.columns.iter().map(|column| column.inverse.len()).sum()
    }

    /// Returns the inputs of an executor. The rows of tables are on the device.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let tables = self.keys.iter().zip(&self.strides);
        let columns = self.columns.iter().map(|column| ColumnView {
            table: column.table,
            inverse: &column.inverse,
            offsets: column.offsets.as_deref(),
            weights: column.weights.as_deref(),
            base: 0,
        });
        Inputs {
            rows: self.rows,
            tables: tables
                .map(|(keys, &stride)| TableView { values: &[], stride, unique: keys.len() })
                .collect(),
            columns: columns.collect(),
            numeric: self.numeric.iter().map(Vec::as_slice).collect(),
            weight: self.weight.as_deref(),
            ..Inputs::default()
        }
    }
}

/// The requests of a batch as one.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) all: Prepared,
    /// The rows of each request.
    pub(crate) rows: Vec<Range<usize>>,
    /// The keys of each request in each table.
    pub(crate) keys: Vec<Vec<Range<usize>>>,
}

impl Merged {
    /// Puts requests of one form together. There must be at least one.
    pub(crate) fn new<'a>(mut requests: impl Iterator<Item = &'a Prepared>) -> Option<Self> {
        let mut all = requests.next()?.clone();
        let mut rows = Vec::new();
        rows.push(0..all.rows);
        let mut keys = vec![all.keys.iter().map(|keys| 0..keys.len()).collect::<Vec<_>>()];
        for request in requests {
            let before: Vec<usize> = all.keys.iter().map(Vec::len).collect();
            rows.push(all.rows..all.rows + request.rows);
            all.append(request);
            let ranges = before.iter().zip(&all.keys).map(|(&begin, keys)| begin..keys.len());
            keys.push(ranges.collect());
        }
        Some(Self { all, rows, keys })
    }
}
