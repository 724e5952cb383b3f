//! The guess of the column of event times.

use zillion_feature::{DateOrder, Moment, TimeUnit};

use super::{EventTime, Guessed, has_word};
use crate::profile::{ColumnProfile, Profile, is_certain};

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

/// A column of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeColumn {
    /// The unit of whole numbers, or `None` if the values tell their meaning themselves.
    pub(super) unit: Option<TimeUnit>,
    /// The order of day and month in texts with its reason, or `None` if the texts need none.
    pub(super) order: Option<(DateOrder, &'static str)>,
    /// Whether the values are texts.
    pub(super) is_text: bool,
}

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
    let times = times.filter(|(_, column, time)| is_of_events(column, time));
    let (_, column, time) = times.min_by_key(|&(rank, ..)| rank)?;
    let own_unit = time.unit;
    // Texts are converted to a unit, and seconds hold all that usual texts tell.
    let unit = own_unit.or(time.is_text.then_some(TimeUnit::Second));
    let is_order_certain = time.order.is_none_or(|(_, why)| is_certain(why));
    let date_order = time.order.map(|(order, why)| (order, why.to_owned()));
    Some(EventTime { name: column.name.clone(), unit, own_unit, date_order, is_order_certain })
}

/// Returns whether the dates and timestamps of a column can be the times of events.
fn is_of_events(column: &ColumnProfile, time: &TimeColumn) -> bool {
    let is_plausible = |time: Moment| {
        let count = time.count(TimeUnit::Second);
        count.is_some_and(|count| TimeUnit::Second.to_ms(count).is_some())
    };
    let span = column.times.span_in(time.order.map(|(order, _)| order));
    span.is_none_or(|(first, last)| is_plausible(first) && is_plausible(last))
}

/// Returns the guess for a column of times that is not the event time: its day as a number, in
/// buckets, so that a missing time needs no number.
pub(super) fn guess_time(column: &ColumnProfile, time: TimeColumn) -> Guessed {
    let order = time.order.map(|(order, _)| order);
    let span = column.times.span_in(order).map_or(String::new(), |(first, last)| {
        let day = |time: Moment| time.to_string().chars().take(10).collect::<String>();
        format!(" from {} to {}", day(first), day(last))
    });
    let why = time.order.map_or(String::new(), |(_, why)| format!(" ({why})"));
    let reason = format!("times{span}{why}, as days; also try derive = \"weekday\" or \"month\"");
    Guessed::Time { unit: time.unit, order, reason }
}

/// Returns what is known of a column of times, or `None` if the column holds other values. Numbers
/// are times if the name of the column says so and all of them lie between 1980 and 2199.
pub(super) fn time_of(column: &ColumnProfile) -> Option<TimeColumn> {
    let plain = TimeColumn { unit: None, order: None, is_text: false };
    if column.data_type == "timestamp" || column.data_type.starts_with("date") {
        return Some(plain);
    }
    let texts = column.cells.text;
    if column.kind() == "text" && texts == column.present() {
        let order = column.times.order(texts).ok()?;
        return Some(TimeColumn { order, is_text: true, ..plain });
    }
    let names = has_word(&column.name, &TIME_NAMES) || has_word(&column.name, &OTHER_TIMES);
    // A float of 32 bits rounds seconds to minutes.
    let is_exact = matches!(column.data_type.as_str(), "text" | "json" | "float64")
        || column.kind() == "whole";
    if !matches!(column.kind(), "whole" | "number") || !names || !is_exact {
        return None;
    }
    let numbers = column.numbers()?;
    let is_plausible = |unit: &TimeUnit| {
        [numbers.min, numbers.max].iter().all(|&time| unit.to_ms(time as i64).is_some())
    };
    let unit = UNITS.into_iter().find(is_plausible)?;
    Some(TimeColumn { unit: Some(unit), ..plain })
}
