//! The conversion of arrays to the types that the decoders accept. Large, fixed-size and dictionary
//! types become plain types with the same values. Values are copied only if a dictionary is
//! replaced by plain values.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, ListArray, downcast_dictionary_array,
    new_null_array,
};
use arrow_buffer::{ArrowNativeType, NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field};
use arrow_select::take::take;
use zillion_feature::RawType;

use crate::arrays::plain_type;
use crate::field::Role;
use crate::value::{ClassIndex, LabelRule};

/// Returns the type that replaces the null type of a column. All values of such a column are
/// missing.
pub(super) fn type_of_nulls(role: &Role) -> DataType {
    match role {
        Role::Id { raw: RawType::String, .. }
        | Role::Ids { raw: RawType::String }
        | Role::RawId { raw: RawType::String }
        | Role::RawIds { raw: RawType::String, .. } => DataType::Utf8,
        Role::Label { rule: LabelRule::Class(classes), .. }
            if matches!(**classes, ClassIndex::Texts(_)) =>
        {
            DataType::Utf8
        }
        Role::SideRow(lookup) if lookup.raw == RawType::String => DataType::Utf8,
        _ => DataType::Int64,
    }
}

/// Returns an array with the same values in plain form. If `keep_dictionary` is true, a dictionary
/// of strings stays a dictionary, with 32-bit indices.
pub(super) fn plain(
    array: &ArrayRef,
    null_type: &DataType,
    keep_dictionary: bool,
) -> Result<ArrayRef, String> {
    match array.data_type() {
        DataType::Null => Ok(new_null_array(null_type, array.len())),
        DataType::Dictionary(keys, values) => {
            let text = matches!(plain_type(values), DataType::Utf8 | DataType::Binary);
            if keep_dictionary && text {
                return with_small_entries(array, keys);
            }
            let dictionary = array.as_any_dictionary();
            let values = take(dictionary.values().as_ref(), dictionary.keys(), None);
            plain(&values.map_err(|e| e.to_string())?, null_type, false)
        }
        DataType::List(element) => {
            let list = array.as_list::<i32>();
            match plain_type(element.data_type()) == *element.data_type() {
                true => Ok(array.clone()),
                false => list_of(list.value_offsets(), list.values(), list.nulls(), null_type),
            }
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            list_of(list.value_offsets(), list.values(), list.nulls(), null_type)
        }
        DataType::FixedSizeList(_, length) => {
            let list = array.as_fixed_size_list();
            let ends: Vec<i64> = (0..=list.len() as i64).map(|i| i * i64::from(*length)).collect();
            list_of(&ends, list.values(), list.nulls(), null_type)
        }
        _ => Ok(array.clone()),
    }
}

/// Returns an array of lists with small offsets. It holds only the values between the first and the
/// last offset.
fn list_of<O: ArrowNativeType>(
    offsets: &[O],
    values: &ArrayRef,
    nulls: Option<&NullBuffer>,
    null_type: &DataType,
) -> Result<ArrayRef, String> {
    let (first, last) = match offsets {
        [first, .., last] => (first.as_usize(), last.as_usize()),
        _ => (0, 0),
    };
    if last < first || last > values.len() || last - first > i32::MAX as usize {
        return Err("a list ends outside of its values".to_owned());
    }
    let values = plain(&values.slice(first, last - first), null_type, false)?;
    let ends = offsets.iter().map(|end| end.as_usize().wrapping_sub(first) as i32);
    let offsets = match offsets.is_empty() {
        true => OffsetBuffer::new_empty(),
        false => {
            let ends: Vec<i32> = ends.collect();
            if ends.windows(2).any(|pair| pair[0] > pair[1]) {
                return Err("a list ends before it starts".to_owned());
            }
            OffsetBuffer::new(ends.into())
        }
    };
    let field = Arc::new(Field::new("item", values.data_type().clone(), true));
    let list = ListArray::try_new(field, offsets, values, nulls.cloned());
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|e| e.to_string())
}

/// Returns the same dictionary array with 32-bit indices.
fn with_small_entries(array: &ArrayRef, keys: &DataType) -> Result<ArrayRef, String> {
    if *keys == DataType::Int32 {
        return Ok(array.clone());
    }
    downcast_dictionary_array!(
        array => {
            // Arrow has checked that every number is below the length of the dictionary.
            let numbers: Int32Array = array.keys().unary(|key| key.as_usize() as i32);
            let small = DictionaryArray::<Int32Type>::try_new(numbers, array.values().clone());
            small.map(|small| Arc::new(small) as ArrayRef).map_err(|e| e.to_string())
        },
        other => Err(format!("a column of type {other} is not a dictionary"))
    )
}
