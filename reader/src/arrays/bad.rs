//! Values of arrays that are refused.

use arrow_array::Array;

use crate::value::Refusal;

/// A value that was refused: its row in the array and its text.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) row: usize,
    pub(crate) refusal: Refusal,
    pub(crate) text: Option<Vec<u8>>,
}

/// Panics because an array has a type that the check of types refuses: a defect of this crate.
pub(super) fn unexpected(array: &dyn Array) -> ! {
    unreachable!("a column of type {} passed the check of types", array.data_type())
}
