//! The conversion of arrays to the values that a caller copies as they are.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, downcast_integer_array};
use arrow_schema::DataType;
use zillion_feature::{RawValue, TimePart, TimeRule, Zone};

use super::bad::{Bad, unexpected};
use super::numbers::scan_values;
use super::texts::{TextRules, is_text, texts};
use super::times::{is_time, scan_moments};
use crate::derived::raw_time;
use crate::value;

/// Returns whether the values of a type can be copied.
pub(super) fn can_keep(found: &DataType) -> bool {
    let is_float = matches!(found, DataType::Float32 | DataType::Float64);
    let is_plain = matches!(found, DataType::Utf8 | DataType::Binary | DataType::Boolean);
    found.is_integer() || is_float || is_plain || is_time(found)
}

/// Appends the values of an array as they are. Texts that stand for a missing value stay texts.
pub(super) fn keep(
    array: &ArrayRef,
    rules: &TextRules,
    values: &mut Vec<RawValue<'static>>,
) -> Result<(), Bad> {
    if is_text(array) {
        return texts(array, |text| {
            let text = text.map(|text| value::kept_text(text.bytes())).transpose()?;
            values.push(text.unwrap_or_default());
            Ok(())
        });
    }
    if is_time(array.data_type()) {
        let rule =
            TimeRule { derive: TimePart::Days, unit: None, zone: Zone::default(), order: None };
        return scan_moments(array, &rule, rules, |time| {
            values.push(raw_time(time));
            Ok(())
        });
    }
    downcast_integer_array!(
        array => scan_values(array.iter(), |id| {
            let whole = |id| match (i64::try_from(id), u64::try_from(id)) {
                (Ok(id), _) => RawValue::Int(id),
                (_, Ok(id)) => RawValue::Uint(id),
                _ => RawValue::Missing,
            };
            values.push(id.map(i128::from).map(whole).unwrap_or_default());
            Ok(())
        }),
        DataType::Float32 => {
            // The shortest text of a float of 32 bits is that of the file.
            let floats = array.as_primitive::<Float32Type>().iter();
            values.extend(floats.map(|x| x.map(|x| RawValue::Float(widen(x))).unwrap_or_default()));
            Ok(())
        }
        DataType::Float64 => {
            let floats = array.as_primitive::<Float64Type>().iter();
            values.extend(floats.map(|x| x.map(RawValue::Float).unwrap_or_default()));
            Ok(())
        }
        DataType::Boolean => {
            let flags = array.as_boolean().iter();
            values.extend(flags.map(|flag| flag.map(RawValue::Bool).unwrap_or_default()));
            Ok(())
        }
        _ => unexpected(array)
    )
}

/// Returns the number of 64 bits that has the same shortest text as a number of 32 bits.
fn widen(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| f64::from(x))
}
