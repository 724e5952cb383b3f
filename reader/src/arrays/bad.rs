//! The type for refused values of arrays, and the panic for arrays of an unexpected type.

use arrow_array::Array;

use crate::value::Refusal;

/// A refused value: the index of its row in the array, and the value as text.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) row: usize,
    pub(crate) refusal: Refusal,
    pub(crate) text: Option<Vec<u8>>,
}

/// Panics because the array has a type that the type check should have refused. Such a panic is
/// caused by a defect of this crate.
pub(super) fn unexpected(array: &dyn Array) -> ! {
    unreachable!("a column of type {} passed the check of types", array.data_type())
}
