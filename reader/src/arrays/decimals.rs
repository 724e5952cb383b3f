//! The conversion of arrays of decimals and booleans to arrays that the roles read.
//!
//! A decimal is an exact number, so it may be an id: `42.00` is the id 42, and a number of 22
//! digits is an id of type string. Columns of decimals are rare, so their digits are written out
//! and parsed.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int64Array, PrimitiveArray, StringArray, UInt64Array,
};
use arrow_schema::DataType;
use zillion_feature::RawType;
use zillion_feature::raw_value::{ValueError, parse_f64, parse_i64, parse_u64};

use super::bad::{Bad, unexpected};
use crate::field::Role;

/// Returns whether a type is a decimal number of any width.
pub(super) fn is_decimal(found: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    matches!(found, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..))
}

/// Converts an array of decimals to an array of texts, whole numbers or floating-point numbers, as
/// the role reads them. `as_text` tells whether the role reads texts.
///
/// # Errors
/// Returns the first value that is not an id, although the role reads ids.
pub(super) fn plain_decimals(
    array: &ArrayRef,
    role: &Role,
    as_text: bool,
) -> Result<ArrayRef, Bad> {
    let texts = texts_of(array);
    if as_text {
        return Ok(Arc::new(StringArray::from_iter(texts)));
    }
    let raw = match role {
        Role::Id { raw, .. } | Role::RawId { raw } => Some(*raw),
        Role::SideRow(lookup) => Some(lookup.raw),
        _ => None,
    };
    let bad = |row: usize, error: ValueError, text: &str| Bad {
        row,
        refusal: error.into(),
        text: Some(text.as_bytes().to_vec()),
    };
    let rows = texts.iter().enumerate();
    let whole = rows.map(|(row, text)| Some((row, whole_part(text.as_deref()?))));
    match raw {
        Some(RawType::U64) => {
            let id = |(row, text): (usize, &str)| {
                parse_u64(text.as_bytes()).map_err(|error| bad(row, error, text))
            };
            let ids: Result<Vec<Option<u64>>, Bad> = whole.map(|w| w.map(id).transpose()).collect();
            Ok(Arc::new(UInt64Array::from(ids?)))
        }
        Some(_) => {
            let id = |(row, text): (usize, &str)| {
                parse_i64(text.as_bytes()).map_err(|error| bad(row, error, text))
            };
            let ids: Result<Vec<Option<i64>>, Bad> = whole.map(|w| w.map(id).transpose()).collect();
            Ok(Arc::new(Int64Array::from(ids?)))
        }
        None => {
            let number = |text: &String| parse_f64(text.as_bytes()).unwrap_or(f64::NAN);
            let numbers = texts.iter().map(|text| text.as_ref().map(number));
            Ok(Arc::new(Float64Array::from_iter(numbers)))
        }
    }
}

/// Converts an array of booleans to the texts `true` and `false`.
pub(super) fn flag_texts(array: &ArrayRef) -> ArrayRef {
    let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
    let text = |flag: bool| if flag { "true" } else { "false" };
    Arc::new(StringArray::from_iter(flags.iter().map(|flag| flag.map(text))))
}

/// Returns a decimal text without a fraction of zeros.
fn whole_part(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|b| b == b'0') => whole,
        _ => text,
    }
}

fn texts_of(array: &ArrayRef) -> Vec<Option<String>> {
    match array.data_type() {
        DataType::Decimal32(..) => digits(array.as_primitive::<Decimal32Type>()),
        DataType::Decimal64(..) => digits(array.as_primitive::<Decimal64Type>()),
        DataType::Decimal128(..) => digits(array.as_primitive::<Decimal128Type>()),
        DataType::Decimal256(..) => digits(array.as_primitive::<Decimal256Type>()),
        _ => unexpected(array),
    }
}

fn digits<T: DecimalType>(array: &PrimitiveArray<T>) -> Vec<Option<String>> {
    let text = |row: usize| array.is_valid(row).then(|| array.value_as_string(row));
    (0..array.len()).map(text).collect()
}
