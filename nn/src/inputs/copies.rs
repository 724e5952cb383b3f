//! Copies of shared columns in all rows, for a program that reads rows of these columns.

use zillion_feature::SharedColumns;

use super::{Inputs, wrong};
use crate::error::Result;

/// Copies of columns of one row in all rows of a batch. The inputs of a run borrow the copies.
#[derive(Debug, Default)]
pub struct ColumnCopies {
    columns: Vec<(usize, ColumnCopy)>,
    numeric: Vec<(usize, Vec<f32>)>,
}

#[derive(Debug)]
struct ColumnCopy {
    inverse: Vec<u32>,
    offsets: Option<Vec<i32>>,
    weights: Option<Vec<f32>>,
}

impl ColumnCopies {
    /// Copies the columns of `shared` that are not in `kept`.
    ///
    /// # Errors
    /// Returns an error if a copied column has 2³¹ values or more, or if a column does not exist or
    /// does not have one row.
    pub fn new(inputs: &Inputs<'_>, shared: &SharedColumns, kept: &SharedColumns) -> Result<Self> {
        let mut copies = Self::default();
        let rows = inputs.rows;
        let refuse = |column: usize| {
            let reason = "it does not have one row, or its copies have 2^31 values or more; give \
                          one row, or fewer rows in the batch";
            wrong(&format!("shared column {column}"), reason.into())
        };
        for &at in shared.sparse().iter().filter(|&&at| !kept.has_sparse(at)) {
            let column = inputs.columns.get(at).filter(|column| column.rows() == 1);
            let column = column.ok_or_else(|| refuse(at))?;
            let values = column.inverse.len();
            if values.checked_mul(rows).and_then(|end| i32::try_from(end).ok()).is_none() {
                return Err(refuse(at));
            }
            let ends = || (0..=rows).map(|row| (row * values) as i32).collect();
            let copy = ColumnCopy {
                inverse: column.inverse.repeat(rows),
                offsets: column.offsets.map(|_| ends()),
                weights: column.weights.map(|weights| weights.repeat(rows)),
            };
            copies.columns.push((at, copy));
        }
        for &at in shared.numeric().iter().filter(|&&at| !kept.has_numeric(at)) {
            match inputs.numeric.get(at) {
                Some(&&[value]) => copies.numeric.push((at, vec![value; rows])),
                _ => return Err(refuse(at)),
            }
        }
        Ok(copies)
    }

    /// Replaces the columns of the inputs by their copies.
    pub fn apply<'a>(&'a self, inputs: &mut Inputs<'a>) {
        for (at, copy) in &self.columns {
            if let Some(column) = inputs.columns.get_mut(*at) {
                column.inverse = &copy.inverse;
                column.offsets = copy.offsets.as_deref();
                column.weights = copy.weights.as_deref();
            }
        }
        for (at, values) in &self.numeric {
            if let Some(column) = inputs.numeric.get_mut(*at) {
                *column = values;
            }
        }
    }
}
