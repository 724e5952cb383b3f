//! The columns of features that derive a number from a time, such as the hour of the day.

use zillion_feature::raw_value::id_from_float;
use zillion_feature::{Moment, RawValue, TimePart, TimeRule, TimeUnit, Zone};

use crate::block::Column;
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
/// numbers. A time without a zone is in UTC.
pub(crate) fn event_rule(unit: TimeUnit) -> TimeRule {
    TimeRule { derive: TimePart::Days, unit: Some(unit), zone: Zone::default(), order: None }
}

/// Returns an event time as a number of its unit.
pub(crate) fn event_time(moment: Moment, unit: TimeUnit) -> Outcome<i64> {
    value::time(moment.count(unit).ok_or(Refusal::NotInUnit(unit))?, Some(unit))
}
