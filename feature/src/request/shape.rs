//! The assignment of the values of an input to the rows of a request.

use super::{Input, RawColumn};
use crate::batch::KeyColumn;
use crate::error::RequestError;
use crate::key::FeatureKey;

/// The assignment of the values of an input to the rows of a request.
pub(super) struct Shape {
    rows: usize,
    /// The index at which the values of each row end, or `None` if each row has one value.
    ends: Option<Vec<usize>>,
    is_shared: bool,
}

impl Shape {
    pub(super) fn of(
        input: &Input,
        column: &RawColumn<'_>,
        rows: usize,
    ) -> Result<Self, RequestError> {
        let values = column.values.len();
        let wanted = if column.is_shared { 1 } else { rows };
        let ends = match &column.lengths {
            // Some clients send each value as a list with one element. Lists of any other length
            // are refused.
            Some(lengths)
                if !input.spec.is_list
                    && (lengths.len() != values || lengths.iter().any(|&length| length != 1)) =>
            {
                let reason = "some rows have a list; give one value for each row";
                return Err(input.refuse(None, reason));
            }
            // The number of floats of a vector is known, so that a tensor needs no lengths.
            None if input.spec.size.is_some_and(|size| {
                values != wanted && wanted.checked_mul(size) == Some(values)
            }) =>
            {
                let size = input.spec.size.unwrap_or_default();
                Some((1..=wanted).map(|row| row * size).collect())
            }
            lengths if lengths.is_none() || !input.spec.is_list => {
                if values != wanted {
                    let reason =
                        format!("{values} values for {wanted} rows; give one value for each row");
                    return Err(input.refuse(None, reason));
                }
                None
            }
            lengths => {
                let lengths = lengths.as_deref().unwrap_or_default();
                if lengths.len() != wanted {
                    let reason = format!(
                        "{} lengths for {wanted} rows; give one length for each row",
                        lengths.len()
                    );
                    return Err(input.refuse(None, reason));
                }
                let mut end = 0usize;
                let ends: Option<Vec<usize>> = lengths
                    .iter()
                    .map(|&length| {
                        end = end.checked_add(length).filter(|&end| end <= values)?;
                        Some(end)
                    })
                    .collect();
                let sum_differs = || {
                    let reason = format!(
                        "the sum of the lengths is not {values}, the number of values; correct the lengths"
                    );
                    input.refuse(None, reason)
                };
                Some(ends.filter(|_| end == values).ok_or_else(sum_differs)?)
            }
        };
        Ok(Self { rows, ends, is_shared: column.is_shared })
    }

    /// Returns whether the columns of the input have one row that stands for several rows of the
    /// batch.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared && self.rows > 1
    }

    /// Returns the number of rows of the request for which one row of the input stands.
    pub(super) fn rows_of_each(&self) -> usize {
        if self.is_shared() { self.rows } else { 1 }
    }

    /// Calls `of` with the index of the value of each row, and returns one result for each row. If
    /// the input is shared, it has one row.
    pub(super) fn single<T: Clone>(
        &self,
        input: &Input,
        of: impl Fn(usize) -> Result<T, &'static str>,
    ) -> Result<Vec<T>, RequestError> {
        if self.is_shared {
            let value = of(0).map_err(|reason| input.refuse(None, reason))?;
            return Ok(vec![value; self.rows.min(1)]);
        }
        // A collected `Result` would not know the number of values beforehand.
        let mut values = Vec::with_capacity(self.rows);
        for row in 0..self.rows {
            match of(row) {
                Ok(value) => values.push(value),
                Err(reason) => return Err(input.refuse(Some(row), reason)),
            }
        }
        Ok(values)
    }

    /// Fills the numeric columns of a vector, one for each of its floats. A row is missing if it
    /// has no values or one missing value. `float` returns the float of a value.
    pub(super) fn vectors(
        &self,
        input: &Input,
        columns: &mut [Vec<f32>],
        missing: Option<f32>,
        is_missing: impl Fn(usize) -> bool,
        float: impl Fn(usize) -> Result<f32, &'static str>,
    ) -> Result<(), RequestError> {
        let (size, given) = (columns.len(), if self.is_shared { 1 } else { self.rows });
        columns.iter_mut().for_each(|column| *column = Vec::with_capacity(given));
        let mut start = 0;
        for row in 0..given {
            let end = self.ends.as_ref().map_or(row + 1, |ends| ends[row]);
            let (values, place) = (start..end, (!self.is_shared).then_some(row));
            start = end;
            if values.is_empty() || (values.len() == 1 && is_missing(values.start)) {
                let Some(missing) = missing else {
                    let reason = "the vector is missing, but the feature needs one; send a list of \
                                  numbers";
                    return Err(input.refuse(place, reason));
                };
                columns.iter_mut().for_each(|column| column.push(missing));
                continue;
            }
            if values.len() != size {
                let found = values.len();
                let reason = format!(
                    "the vector has {found} numbers, but the feature has size {size}; send {size} \
                     numbers"
                );
                return Err(input.refuse(place, reason));
            }
            for (column, value) in columns.iter_mut().zip(values) {
                column.push(float(value).map_err(|reason| input.refuse(place, reason))?);
            }
        }
        if self.is_shared {
            columns.iter_mut().for_each(|column| column.truncate(self.rows.min(1)));
        }
        Ok(())
    }

    /// Calls `of` with the index of each value that the request has, and returns the results.
    pub(super) fn each<T>(
        &self,
        input: &Input,
        of: impl Fn(usize) -> Result<T, &'static str>,
    ) -> Result<Vec<T>, RequestError> {
        let rows = if self.is_shared { 1 } else { self.rows };
        let value = |row: usize| {
            let place = (!self.is_shared).then_some(row);
            of(row).map_err(|reason| input.refuse(place, reason))
        };
        (0..rows).map(value).collect()
    }

    /// Returns the keys of each row, without missing values. A row may have any number of keys. If
    /// the input is shared, it has one row. Its copies in all rows must still fit a column.
    pub(super) fn lists(
        &self,
        input: &Input,
        key: impl Fn(usize) -> Result<Option<FeatureKey>, &'static str>,
    ) -> Result<KeyColumn, RequestError> {
        let rows = if self.is_shared { 1 } else { self.rows };
        let mut offsets = Vec::with_capacity(self.rows + 1);
        let mut keys = Vec::new();
        offsets.push(0);
        let mut next = 0;
        for row in 0..rows {
            let end = self.ends.as_ref().map_or(row + 1, |ends| ends[row]);
            for value in next..end {
                keys.extend(key(value).map_err(|reason| input.refuse(Some(row), reason))?);
            }
            next = end;
            offsets.push(offset(input, keys.len())?);
        }
        if self.is_shared {
            offset(input, keys.len().saturating_mul(self.rows))?;
            offsets.truncate(self.rows + 1);
            keys.truncate(keys.len() * self.rows.min(1));
        }
        Ok(KeyColumn::ragged(offsets, keys))
    }
}

fn offset(input: &Input, values: usize) -> Result<i32, RequestError> {
    let reason = "the request has 2^31 values or more; send fewer rows";
    i32::try_from(values).map_err(|_| input.refuse(None, reason))
}
