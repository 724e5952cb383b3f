//! The columns whose values are made of others: numbers that follow from a time, such as the hour
//! of the day, event times in a unit, and vectors.

use zillion_feature::raw_value::{id_from_float, parse_i64};
use zillion_feature::{DateOrder, Moment, RawValue, TimePart, TimeRule, TimeUnit, Zone};

use crate::block::{Column, Lists};
use crate::field::Role;
use crate::value::{self, Outcome, Refusal};

/// Appends the number that is derived from a time. `role` is the role of the number, and `moment`
/// is `None` if the time is missing.
pub(crate) fn push_derived(
    column: &mut Column,
    rule: &TimeRule,
    role: &Role,
    moment: Option<Moment>,
) -> Outcome<()> {
    let is_id = matches!(role, Role::Id { .. });
    let number = moment.map(|moment| rule.number(moment, is_id));
    match (role, column) {
        (Role::Id { raw, missing }, Column::Keys(keys)) => {
            let key = number.map(|x| id_from_float(*raw, x)).transpose()?;
            keys.push(key.unwrap_or(*missing));
        }
        (Role::Numeric { map, missing }, Column::Floats(values)) => {
            values.push(match number {
                Some(x) => value::numeric(map, x)?,
                None => missing.ok_or(Refusal::Missing)?,
            });
        }
        (Role::Bucket { buckets, missing }, Column::Keys(keys)) => {
            keys.push(value::bucket(buckets, number, *missing)?);
        }
        (Role::Number { needed }, Column::Numbers(values)) => {
            values.push(value::number(number, *needed)?);
        }
        // The schema allows only these kinds of features to derive a number.
        (role, column) => unreachable!("{role:?} does not derive into {column:?}"),
    }
    Ok(())
}

/// Returns a time in the form in which a request gives it: a text of ISO 8601 in UTC.
pub(crate) fn raw_time(moment: Option<Moment>) -> RawValue<'static> {
    moment.map_or(RawValue::Missing, |moment| RawValue::Text(moment.to_string().into()))
}

/// Returns the rule by which event times of this unit are read from values that are not whole
/// numbers. A time without a zone is in UTC. `order` is that of day and month in dates that need
/// one.
pub(crate) fn event_rule(unit: TimeUnit, order: Option<DateOrder>) -> TimeRule {
    TimeRule { derive: TimePart::Days, unit: Some(unit), zone: Zone::default(), order }
}

/// Returns an event time as a number of its unit.
pub(crate) fn event_time(moment: Moment, unit: TimeUnit) -> Outcome<i64> {
    value::time(moment.count(unit).ok_or(Refusal::NotInUnit(unit))?, Some(unit))
}

/// Returns the event time in a cell: a whole number, or if there is a unit also a date or a number
/// with a fraction. `order` is that of day and month in dates that need one.
pub(crate) fn time_from_cell(
    cell: &[u8],
    unit: Option<TimeUnit>,
    order: Option<DateOrder>,
) -> Outcome<i64> {
    let cell = cell.trim_ascii();
    match (parse_i64(cell), unit) {
        (Ok(time), _) => Ok(time),
        (Err(_), Some(unit)) => {
            let moment = event_rule(unit, order).read_text(cell).map_err(value::refuse_time)?;
            event_time(moment, unit)
        }
        (Err(_), None) => Err(Refusal::NotTime),
    }
}

/// Ends the vector of a row, whose floats have been appended since the end of the last row. If
/// there are none, the vector is missing.
pub(crate) fn end_vector(
    vectors: &mut Lists<f32>,
    size: usize,
    missing: Option<f32>,
) -> Outcome<()> {
    let start = vectors.offsets.last().map_or(0, |&end| end as usize);
    match vectors.values.len() - start {
        0 => {
            let missing = missing.ok_or(Refusal::Missing)?;
            vectors.values.extend(std::iter::repeat_n(missing, size));
        }
        found if found != size => {
            return Err(Refusal::VectorSize { found: u32::try_from(found).unwrap_or(u32::MAX) });
        }
        _ => {}
    }
    vectors.end()
}
