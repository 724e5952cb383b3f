//! The limits of a request that count while its inputs are read: the number of inputs, of values
//! over all inputs, and of rows. A reader takes its part before it takes memory.

use std::fmt;

use super::{LENGTHS, refuse};
use crate::config::Limits;
use crate::error::{Result, ServeError};

/// The largest number of inputs of a request, with the inputs of lengths.
pub(crate) const MOST_INPUTS: usize = 16_384;

/// The largest number of bytes of the name of an input or of an output.
pub(crate) const MOST_NAME_BYTES: usize = 1024;

/// The inputs and values that a request may still have.
#[derive(Clone, Debug)]
pub struct Allowance {
    limits: Limits,
    inputs: usize,
    values: usize,
}

/// The checked shape of a tensor: `[rows]`, or `[rows, values per row]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    rows: usize,
    width: Option<usize>,
    elements: usize,
}

impl Allowance {
    /// Creates the allowance of a request.
    pub fn new(limits: &Limits) -> Self {
        Self { limits: *limits, inputs: MOST_INPUTS, values: limits.values }
    }

    /// Takes an input and all elements of its shape, and returns the shape. Lengths are one number
    /// for each row, so that they count as rows and not as values.
    ///
    /// # Errors
    /// Returns an error that names the input if the shape does not have one or two dimensions, and
    /// [`ServeError::TooLarge`] if the request then has more than its limits allow.
    pub fn take(&mut self, input: &str, shape: &[u64]) -> Result<Shape> {
        check_name(input)?;
        self.inputs = self.inputs.checked_sub(1).ok_or_else(too_many_inputs)?;
        let shape = Shape::new(input, shape)?;
        if input.ends_with(LENGTHS) {
            check_rows(&self.limits, shape.elements)?;
            return Ok(shape);
        }
        let left = self.values.checked_sub(shape.elements);
        self.values = left.ok_or_else(|| too_many_values(&self.limits))?;
        Ok(shape)
    }
}

impl Shape {
    fn new(input: &str, shape: &[u64]) -> Result<Self> {
        let large = || {
            refuse(
                input,
                &format!(
                    "the shape {shape:?} is too large for any data; send the shape of the data"
                ),
            )
        };
        let size = |dim: u64| usize::try_from(dim).map_err(|_| large());
        let (rows, width) = match *shape {
            [rows] => (size(rows)?, None),
            [rows, width] => (size(rows)?, Some(size(width)?)),
            _ => {
                return Err(refuse(
                    input,
                    "the shape must be [rows], or [rows, values per row]; send one of these shapes",
                ));
            }
        };
        let elements = rows.checked_mul(width.unwrap_or(1)).ok_or_else(large)?;
        Ok(Self { rows, width, elements })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of values of each row.
    pub fn width(&self) -> usize {
        self.width.unwrap_or(1)
    }

    /// Returns the number of all values.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Returns whether the shape has one dimension.
    pub fn is_flat(&self) -> bool {
        self.width.is_none()
    }

    /// Checks that the data of the shape has this number of values.
    ///
    /// # Errors
    /// Returns an error that names the input if the number differs.
    pub(crate) fn check_values(&self, input: &str, values: usize) -> Result<()> {
        if values == self.elements {
            return Ok(());
        }
        let reason = format!(
            "the shape {self} does not fit the {values} values of the data; correct the shape or \
             the data"
        );
        Err(refuse(input, &reason))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            None => write!(f, "[{}]", self.rows),
            Some(width) => write!(f, "[{}, {width}]", self.rows),
        }
    }
}

/// Checks that the name of an input is as short as a name can be.
///
/// # Errors
/// Returns an error if it is longer than [`MOST_NAME_BYTES`].
fn check_name(name: &str) -> Result<()> {
    if name.len() <= MOST_NAME_BYTES {
        return Ok(());
    }
    let reason =
        format!("the name has more than {MOST_NAME_BYTES} bytes; send a name of the model");
    Err(refuse(name, &reason))
}

/// Checks a number of rows against the limit.
///
/// # Errors
/// Returns [`ServeError::TooLarge`] if there are more rows.
pub(crate) fn check_rows(limits: &Limits, rows: usize) -> Result<()> {
    if rows <= limits.rows {
        return Ok(());
    }
    Err(too_many_rows(limits))
}

/// Returns the error of a request with more rows than its limit.
pub(crate) fn too_many_rows(limits: &Limits) -> ServeError {
    let what = "the number of rows";
    let remedy = "send fewer rows at a time, or raise the setting `serve.max_rows`";
    ServeError::TooLarge { what, limit: limits.rows, remedy }
}

/// Returns the error of a request with more values than its limit.
pub(crate) fn too_many_values(limits: &Limits) -> ServeError {
    let what = "the number of values";
    let remedy = "send fewer rows at a time, or raise the setting `serve.max_values`";
    ServeError::TooLarge { what, limit: limits.values, remedy }
}

/// Returns the error of a request with more inputs than any model has.
pub(crate) fn too_many_inputs() -> ServeError {
    ServeError::Malformed(format!(
        "the request has more than {MOST_INPUTS} inputs; send only the inputs of the model"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_inputs_count_before_they_are_read() {
        let limits = Limits { values: 100, rows: 10, ..Limits::default() };
        let mut allowance = Allowance::new(&limits);
        assert_eq!(allowance.take("a", &[10, 6]).unwrap().elements(), 60);
        let refused = allowance.take("b", &[41]).unwrap_err().to_string();
        assert!(refused.contains("serve.max_values"), "{refused}");
        assert_eq!(allowance.take("b", &[40]).unwrap().to_string(), "[40]");
        assert!(allowance.take("c", &[1]).is_err() && allowance.take("c", &[9, 0]).is_ok());
        let lengths = allowance.take("b__lengths", &[11]).unwrap_err().to_string();
        assert!(lengths.contains("serve.max_rows"), "{lengths}");
        assert!(allowance.take("b__lengths", &[10]).is_ok());
    }

    #[test]
    fn inputs_are_counted_and_have_short_names() {
        let mut allowance = Allowance::new(&Limits::default());
        for _ in 0..MOST_INPUTS {
            allowance.take("x", &[0]).unwrap();
        }
        let refused = allowance.take("x", &[0]).unwrap_err().to_string();
        assert!(refused.contains("more than 16384 inputs"), "{refused}");
        let long = "x".repeat(3 << 20);
        let refused = Allowance::new(&Limits::default()).take(&long, &[1]).unwrap_err().to_string();
        assert!(refused.contains("more than 1024 bytes") && refused.len() < 300, "{refused}");
    }
}
