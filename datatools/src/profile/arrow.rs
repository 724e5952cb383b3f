//! The counting of values of Parquet and Arrow columns.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use zillion_feature::FeatureKey;
use zillion_reader::{plain_type, visit_texts};

use super::tally::Tally;

/// Returns the type of a column in a few words.
pub(super) fn type_name(found: &DataType) -> String {
    match found {
        DataType::Utf8 => "string".to_owned(),
        DataType::Binary => "bytes".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::List(element) => format!("list of {}", type_name(element.data_type())),
        DataType::Struct(_) => "struct".to_owned(),
        DataType::Timestamp(..) => "timestamp".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

/// Adds the values of an array. `is_missing` recognises the null markers of strings.
pub(super) fn add(tally: &mut Tally, array: &ArrayRef, is_missing: &dyn Fn(&[u8]) -> bool) {
    macro_rules! each {
        ($array:expr, $x:ident => $add:expr) => {
            for at in 0..$array.len() {
                if $array.is_null(at) {
                    tally.missing();
                } else {
                    let $x = $array.value(at);
                    $add
                }
            }
        };
    }
    macro_rules! numbers {
        ($type:ty, $x:ident => $add:expr) => {{
            let values = array.as_primitive::<$type>();
            each!(values, $x => $add);
        }};
    }
    match array.data_type() {
        DataType::Int8 => numbers!(Int8Type, x => tally.whole(x.into())),
        DataType::Int16 => numbers!(Int16Type, x => tally.whole(x.into())),
        DataType::Int32 => numbers!(Int32Type, x => tally.whole(x.into())),
        DataType::Int64 => numbers!(Int64Type, x => tally.whole(x)),
        DataType::UInt8 => numbers!(UInt8Type, x => tally.whole(x.into())),
        DataType::UInt16 => numbers!(UInt16Type, x => tally.whole(x.into())),
        DataType::UInt32 => numbers!(UInt32Type, x => tally.whole(x.into())),
        DataType::UInt64 => numbers!(UInt64Type, x => match i64::try_from(x) {
            Ok(id) => tally.whole(id),
            Err(_) => tally.beyond_i64(x),
        }),
        DataType::Float16 => numbers!(Float16Type, x => tally.fraction(x.to_f64())),
        DataType::Float32 => numbers!(Float32Type, x => tally.fraction(x.into())),
        DataType::Float64 => numbers!(Float64Type, x => tally.fraction(x)),
        DataType::Boolean => {
            let values = array.as_boolean();
            each!(values, x => tally.boolean(x));
        }
        found if is_text(found) => visit_texts(array, |value| match value {
            Some(value) if !is_missing(value) => tally.text(value),
            _ => tally.missing(),
        }),
        DataType::List(_) => {
            let values = array.as_list::<i32>();
            each!(values, items => {
                tally.list(items.len());
                add_items(tally, &items);
            });
        }
        // No feature can read such a column, so only missing values are counted.
        _ => (0..array.len()).filter(|&at| array.is_null(at)).for_each(|_| tally.missing()),
    }
}

fn is_text(found: &DataType) -> bool {
    matches!(plain_type(found), DataType::Utf8 | DataType::Binary)
}

fn add_items(tally: &mut Tally, items: &ArrayRef) {
    macro_rules! ids {
        ($type:ty) => {
            for id in items.as_primitive::<$type>().iter().flatten() {
                tally.item(FeatureKey::from_u64(id as u64), || id.to_string());
            }
        };
    }
    match items.data_type() {
        DataType::Int8 => ids!(Int8Type),
        DataType::Int16 => ids!(Int16Type),
        DataType::Int32 => ids!(Int32Type),
        DataType::Int64 => ids!(Int64Type),
        DataType::UInt8 => ids!(UInt8Type),
        DataType::UInt16 => ids!(UInt16Type),
        DataType::UInt32 => ids!(UInt32Type),
        DataType::UInt64 => ids!(UInt64Type),
        found if is_text(found) => visit_texts(items, |item| {
            if let Some(item) = item {
                tally.text_item(item);
            }
        }),
        _ => {}
    }
}
