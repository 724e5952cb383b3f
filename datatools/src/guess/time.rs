//! The guess of the column of event times.

use zillion_feature::TimeUnit;

use super::{EventTime, has_word};
use crate::profile::{ColumnProfile, Profile};

/// The words that mark a column as the time of the event if its name contains them. The most likely
/// word comes first.
const TIME_NAMES: [&str; 15] = [
    "timestamp",
    "timestamps",
    "ts",
    "time",
    "datetime",
    "unixtime",
    "epoch",
    "clicked",
    "logged",
    "occurred",
    "served",
    "viewed",
    "date",
    "created",
    "updated",
];
/// The words that mark a column as the time of something before the event.
const OTHER_TIMES: [&str; 9] = [
    "birth",
    "born",
    "release",
    "released",
    "published",
    "signup",
    "registered",
    "joined",
    "since",
];
const UNITS: [TimeUnit; 4] =
    [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
/// The reason for leaving out a time that is not the event time.
pub(super) const EXTRA: &str = "a time, but not the time of the row; add a column for what it tells, \
                                such as the age at the time of the row";

/// Returns the column of event times, or `None` if no column with a value in each row holds times.
pub(super) fn choose_event_time(profile: &Profile) -> Option<EventTime> {
    let rank = |column: &ColumnProfile| {
        let named = TIME_NAMES.iter().position(|word| has_word(&column.name, &[word]));
        named.unwrap_or(TIME_NAMES.len())
    };
    let times = profile
        .columns
        .iter()
        .filter(|column| column.present() == column.rows && !has_word(&column.name, &OTHER_TIMES));
    let times = times.filter_map(|column| Some((rank(column), column, time_of(column)?)));
    let (_, column, unit) = times.min_by_key(|&(rank, ..)| rank)?;
    Some(EventTime { name: column.name.clone(), unit })
}

/// Returns whether a column holds times, with their unit if they are whole numbers. Whole numbers
/// are times if the name of the column says so and all of them lie between 1980 and 2199.
pub(super) fn time_of(column: &ColumnProfile) -> Option<Option<TimeUnit>> {
    if column.data_type == "timestamp" || column.data_type.starts_with("date") {
        return Some(None);
    }
    let names = has_word(&column.name, &TIME_NAMES) || has_word(&column.name, &OTHER_TIMES);
    if column.kind() != "whole" || !names {
        return None;
    }
    let numbers = column.numbers()?;
    let is_plausible = |unit: &TimeUnit| {
        [numbers.min, numbers.max].iter().all(|&time| unit.to_ms(time as i64).is_some())
    };
    UNITS.into_iter().find(is_plausible).map(Some)
}
