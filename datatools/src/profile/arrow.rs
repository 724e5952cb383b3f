//! The counting of values in the columns of Parquet and Arrow files.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal128Type, Decimal256Type, DecimalType, Float16Type, Float32Type, Float64Type,
};
use arrow_array::{
    Array, ArrayRef, PrimitiveArray, downcast_integer_array, downcast_temporal_array,
};
use arrow_schema::{DataType, TimeUnit as ArrowUnit};
use zillion_feature::raw_value::{parse_i64, parse_u64};
use zillion_feature::{FeatureKey, Moment, TimeUnit};
use zillion_reader::{plain_type, visit_texts};

use super::tally::Tally;

/// Returns a short name of a column type.
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

/// Adds the values of an array to a tally. `is_missing` tells whether a string means a missing
/// value.
pub(super) fn add(tally: &mut Tally, array: &ArrayRef, is_missing: &dyn Fn(&[u8]) -> bool) {
    macro_rules! each {
        ($array:expr, $x:ident => $add:expr) => {{
            let array = $array;
            for at in 0..array.len() {
                if array.is_null(at) {
                    tally.missing();
                } else {
                    let $x = array.value(at);
                    $add
                }
            }
        }};
    }
    downcast_integer_array!(
        array => each!(array, x => match i64::try_from(i128::from(x)) {
            Ok(id) => tally.whole(id),
            // A whole number that does not fit an `i64` is an unsigned number of 64 bits.
            Err(_) => tally.beyond_i64(x as u64),
        }),
        DataType::Float16 => {
            each!(array.as_primitive::<Float16Type>(), x => tally.fraction(x.to_f64()));
        }
        DataType::Float32 => {
            each!(array.as_primitive::<Float32Type>(), x => tally.fraction(x.into()));
        }
        DataType::Float64 => each!(array.as_primitive::<Float64Type>(), x => tally.fraction(x)),
        DataType::Boolean => each!(array.as_boolean(), x => tally.boolean(x)),
        found if is_text(found) => visit_texts(array, |value| match value {
            Some(value) if !is_missing(value) => tally.text(value),
            _ => tally.missing(),
        }),
        DataType::List(_) => each!(array.as_list::<i32>(), items => {
            tally.list(items.len());
            add_items(tally, &items);
        }),
        found if is_time(found) => add_times(tally, array),
        DataType::Decimal128(..) => add_decimals(tally, array.as_primitive::<Decimal128Type>()),
        DataType::Decimal256(..) => add_decimals(tally, array.as_primitive::<Decimal256Type>()),
        DataType::Null => (0..array.len()).for_each(|_| tally.missing()),
        // No feature can read such a column, so only missing values are counted.
        _ => (0..array.len()).filter(|&at| array.is_null(at)).for_each(|_| tally.missing()),
    );
}

fn is_time(found: &DataType) -> bool {
    matches!(found, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

/// Counts dates and timestamps. A time without a zone is taken as one in UTC.
fn add_times(tally: &mut Tally, array: &ArrayRef) {
    let unit = match array.data_type() {
        DataType::Timestamp(ArrowUnit::Second, _) => Some(TimeUnit::Second),
        DataType::Timestamp(ArrowUnit::Microsecond, _) => Some(TimeUnit::Microsecond),
        DataType::Timestamp(ArrowUnit::Nanosecond, _) => Some(TimeUnit::Nanosecond),
        DataType::Date32 => None,
        _ => Some(TimeUnit::Millisecond),
    };
    let mut add = |count: Option<i64>| {
        let time = count.and_then(|count| match unit {
            Some(unit) => Moment::from_count(count, unit),
            None => Moment::from_day(count),
        });
        match time {
            Some(time) => tally.time(time),
            None => tally.missing(),
        }
    };
    downcast_temporal_array!(
        array => array.iter().for_each(|count| {
            add(count.and_then(|count| i64::try_from(i128::from(count)).ok()));
        }),
        _ => {}
    );
}

/// Counts decimals as the whole numbers, fractions or long ids that they are.
fn add_decimals<T: DecimalType>(tally: &mut Tally, array: &PrimitiveArray<T>) {
    for row in 0..array.len() {
        if array.is_null(row) {
            tally.missing();
            continue;
        }
        let text = array.value_as_string(row);
        let whole = match text.split_once('.') {
            Some((whole, fraction)) if fraction.bytes().all(|b| b == b'0') => whole,
            _ => &text,
        };
        match (parse_i64(whole.as_bytes()), parse_u64(whole.as_bytes())) {
            (Ok(id), _) => tally.whole(id),
            (_, Ok(id)) => tally.beyond_i64(id),
            _ if whole.contains('.') => match text.parse() {
                Ok(x) => tally.fraction(x),
                Err(_) => tally.text(text.as_bytes()),
            },
            _ => tally.text(text.as_bytes()),
        }
    }
}

fn is_text(found: &DataType) -> bool {
    matches!(plain_type(found), DataType::Utf8 | DataType::Binary)
}

fn add_items(tally: &mut Tally, items: &ArrayRef) {
    downcast_integer_array!(
        items => items.iter().flatten().for_each(|id| {
            tally.values.add(FeatureKey::from_u64(i128::from(id) as u64), || id.to_string());
        }),
        found if is_text(found) => visit_texts(items, |item| {
            if let Some(item) = item {
                tally.text_item(item);
            }
        }),
        _ => {}
    );
}
