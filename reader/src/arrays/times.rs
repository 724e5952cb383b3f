//! The conversion of arrays of dates, timestamps, texts and numbers to points in time.

use arrow_array::{Array, ArrayRef, downcast_integer_array, downcast_temporal_array};
use arrow_schema::{DataType, TimeUnit as ArrowUnit};
use zillion_feature::raw_value::ValueError;
use zillion_feature::{Moment, TimeRule, TimeUnit};

use super::bad::{Bad, unexpected};
use super::numbers::{Whole, scan, scan_values};
use super::texts::{TextRules, is_text, texts};
use crate::value::{Outcome, Refusal};

/// Returns whether the values of a type are dates or timestamps.
pub(super) fn is_time(found: &DataType) -> bool {
    matches!(found, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

/// Returns the unit of a type of timestamps.
pub(super) fn time_unit(found: &DataType) -> Option<TimeUnit> {
    match found {
        DataType::Timestamp(ArrowUnit::Second, _) => Some(TimeUnit::Second),
        DataType::Timestamp(ArrowUnit::Millisecond, _) | DataType::Date64 => {
            Some(TimeUnit::Millisecond)
        }
        DataType::Timestamp(ArrowUnit::Microsecond, _) => Some(TimeUnit::Microsecond),
        DataType::Timestamp(ArrowUnit::Nanosecond, _) => Some(TimeUnit::Nanosecond),
        // A date of whole days counts in none of these units.
        _ => None,
    }
}

/// Calls `visit` with the time in each row of an array, or with `None` if the row has no value.
pub(super) fn scan_moments(
    array: &ArrayRef,
    rule: &TimeRule,
    rules: &TextRules,
    mut visit: impl FnMut(Option<Moment>) -> Outcome<()>,
) -> Result<(), Bad> {
    if is_text(array) {
        return texts(array, |text| {
            let text = rules.present(text);
            visit(text.map(|text| rule.read_text(text.bytes())).transpose()?)
        });
    }
    let found = array.data_type().clone();
    let has_zone = matches!(found, DataType::Timestamp(_, Some(_)));
    let unit = time_unit(&found);
    let read = |count: i64| {
        let moment = match unit {
            Some(unit) => Moment::from_count(count, unit),
            None => Moment::from_day(count),
        };
        let moment = moment.ok_or(ValueError::NotTime)?;
        if has_zone { Ok(moment) } else { rule.read_local(moment) }
    };
    downcast_temporal_array!(
        array => scan_values(array.iter(), |time| {
            let count = time.map(Whole::time).transpose()?;
            visit(count.map(read).transpose()?)
        }),
        _ => downcast_integer_array!(
            array => scan_values(array.iter(), |value| {
                let count = value.map(Whole::time).transpose()?;
                visit(count.map(|count| rule.read_count(count)).transpose()?)
            }),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => scan(array, |x| {
                visit(x.map(|x| rule.read_float(x)).transpose().map_err(Refusal::from)?)
            }),
            _ => unexpected(array)
        )
    )
}
