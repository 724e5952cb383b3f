//! Points in time: their reading from raw values, and the numbers that features derive from them.
//!
//! Training and serving both use this module, so that an hour or a weekday means the same in both.
//! A time that says nothing about its zone (a date, a text such as `2024-05-01 10:00`, a timestamp
//! without a zone) is a reading of the clock in the zone of the rule. Whole numbers count from the
//! start of 1970 in UTC. Zones are fixed offsets, because the rules of named zones change between
//! releases of their database, and a server could then derive another hour than training.

mod text;

use std::fmt;

use chrono::{DateTime, Datelike, SecondsFormat};
use serde::{Deserialize, Serialize};

use crate::raw_value::{RawValue, ValueError, parse_f64, parse_i64};
use crate::schema::TimeUnit;
pub use text::{DateOrder, parse_moment};

/// The number of seconds of a day.
const DAY: i64 = 86_400;
/// The seconds since 1970 of the years 1 to 9999.
const RANGE: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;
/// The largest offset of a zone from UTC, in minutes.
const LARGEST_OFFSET: i32 = 18 * 60;

/// A point in time of the years 1 to 9999, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The seconds since the start of 1970.
    seconds: i64,
    /// The nanoseconds after the second, below 10⁹.
    nanos: u32,
}

impl Moment {
    /// Returns the moment that is this many seconds and nanoseconds after the start of 1970, or
    /// `None` if it is not in the years 1 to 9999.
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        (RANGE.contains(&seconds) && nanos < 1_000_000_000).then_some(Self { seconds, nanos })
    }

    /// Returns the moment that is `count` units after the start of 1970, or `None` if it is not in
    /// the years 1 to 9999.
    pub fn from_count(count: i64, unit: TimeUnit) -> Option<Self> {
        let per_second = unit.per_second();
        let nanos = count.rem_euclid(per_second) * (1_000_000_000 / per_second);
        Self::new(count.div_euclid(per_second), u32::try_from(nanos).ok()?)
    }

    /// Returns the start of the day that is `day` days after the first of January 1970.
    pub fn from_day(day: i64) -> Option<Self> {
        Self::new(day.checked_mul(DAY)?, 0)
    }

    /// Returns the number of units since the start of 1970, rounded down, or `None` if 64 bits
    /// cannot hold it.
    pub fn count(self, unit: TimeUnit) -> Option<i64> {
        let per_second = unit.per_second();
        let part = i64::from(self.nanos) / (1_000_000_000 / per_second);
        self.seconds.checked_mul(per_second)?.checked_add(part)
    }

    /// Returns the moment at which a clock in `zone` shows the same time as a clock in UTC does at
    /// this moment.
    fn as_local(self, zone: Zone) -> Option<Self> {
        Self::new(self.seconds - zone.seconds(), self.nanos)
    }
}

impl fmt::Display for Moment {
    /// Writes the moment in the form of ISO 8601, which [`parse_moment`] reads as the same moment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp(self.seconds, self.nanos).ok_or(fmt::Error)?;
        f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

/// A time zone with a fixed offset from UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone {
    minutes: i32,
}

impl Zone {
    fn seconds(self) -> i64 {
        60 * i64::from(self.minutes)
    }
}

impl TryFrom<String> for Zone {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "UTC" {
            return Ok(Self::default());
        }
        let minutes = text::parse_offset(name.as_bytes()).filter(|m| m.abs() <= LARGEST_OFFSET);
        let minutes = minutes.ok_or_else(|| {
            format!(
                "\"{name}\" is not a zone; write \"UTC\" or a fixed offset such as \"+05:30\" (names \
                 with daylight saving time are not supported)"
            )
        })?;
        Ok(Self { minutes })
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        match zone.minutes {
            0 => "UTC".to_owned(),
            minutes => {
                let sign = if minutes < 0 { '-' } else { '+' };
                format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
        }
    }
}

/// The number that a feature derives from a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimePart {
    /// The hour of the day, from 0 to 23.
    Hour,
    /// The day of the week, from 0 (Monday) to 6 (Sunday).
    Weekday,
    /// The hour of the week, from 0 (Monday 0:00 to 1:00) to 167.
    HourOfWeek,
    /// The day of the month, from 1 to 31.
    DayOfMonth,
    /// The month, from 1 to 12.
    Month,
    /// The days since the start of 1970, with a fraction. As an id, the number of the day.
    Days,
}

/// The rule by which a feature reads a time and derives a number from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRule {
    /// The number that is derived.
    pub derive: TimePart,
    /// The unit of times that are numbers, or `None` if numbers are refused.
    pub unit: Option<TimeUnit>,
    /// The zone of the hour, of the day and of times that name no zone.
    pub zone: Zone,
    /// The order of day and month in dates such as `01.02.2024`, or `None` if such dates are
    /// refused unless one of the two numbers is above 12.
    pub order: Option<DateOrder>,
}

impl TimeRule {
    /// Reads a raw value as a time. Returns `None` if the value is missing.
    ///
    /// # Errors
    /// Returns an error if the value is not a time.
    pub fn read(&self, value: &RawValue<'_>) -> Result<Option<Moment>, ValueError> {
        match value {
            RawValue::Missing => Ok(None),
            RawValue::Int(count) => self.read_count(*count).map(Some),
            // A number above those of `i64` is of no year, in every unit.
            RawValue::Uint(count) => {
                self.read_count(i64::try_from(*count).unwrap_or(i64::MAX)).map(Some)
            }
            RawValue::Bool(_) => Err(ValueError::NotTime),
            RawValue::Float(count) => self.read_float(*count).map(Some),
            RawValue::Text(text) if text.is_empty() => Ok(None),
            RawValue::Text(text) => self.read_text(text.as_bytes()).map(Some),
        }
    }

    /// Reads a whole number of the rule's unit.
    ///
    /// # Errors
    /// Returns an error if the rule has no unit, or if the number is not of the years 1980 to 2199
    /// in this unit.
    pub fn read_count(&self, count: i64) -> Result<Moment, ValueError> {
        let unit = self.unit.ok_or(ValueError::NoTimeUnit)?;
        unit.to_ms(count).ok_or(ValueError::NotInUnit(unit))?;
        Moment::from_count(count, unit).ok_or(ValueError::NotInUnit(unit))
    }

    /// Reads a floating-point number of the rule's unit, such as seconds with a fraction.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`TimeRule::read_count`], or if the number is not
    /// finite.
    pub fn read_float(&self, count: f64) -> Result<Moment, ValueError> {
        if !count.is_finite() {
            return Err(ValueError::NotFinite);
        }
        let whole = count.floor();
        let moment = self.read_count(whole as i64)?;
        let per_second = self.unit.ok_or(ValueError::NoTimeUnit)?.per_second();
        let rest = (count - whole) * (1_000_000_000 / per_second) as f64;
        let nanos = (moment.nanos + rest as u32).min(999_999_999);
        Ok(Moment { nanos, ..moment })
    }

    /// Reads a text: a number of the rule's unit, or a date with or without a time of day.
    ///
    /// # Errors
    /// Returns an error if the text is neither.
    pub fn read_text(&self, text: &[u8]) -> Result<Moment, ValueError> {
        let text = text.trim_ascii();
        if let Ok(count) = parse_i64(text) {
            return self.read_count(count);
        }
        let is_number = text.iter().all(|b| b.is_ascii_digit() || *b == b'.');
        if is_number && let Ok(count) = parse_f64(text) {
            return self.read_float(count);
        }
        parse_moment(text, self.zone, self.order)
    }

    /// Reads a time that names no zone. `clock` is what a clock in the rule's zone shows, given as
    /// if the zone were UTC.
    ///
    /// # Errors
    /// Returns an error if the time is not in the years 1 to 9999.
    pub fn read_local(&self, clock: Moment) -> Result<Moment, ValueError> {
        clock.as_local(self.zone).ok_or(ValueError::NotTime)
    }

    /// Returns the number that is derived from a time. If `is_id` is true, the number is whole.
    pub fn number(&self, moment: Moment, is_id: bool) -> f64 {
        let local = moment.seconds + self.zone.seconds();
        let (day, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let hour = second / 3600;
        // The first of January 1970 was a Thursday.
        let weekday = (day + 3).rem_euclid(7);
        let date = || DateTime::from_timestamp(local, 0).map(|time| time.date_naive());
        let whole = match self.derive {
            TimePart::Hour => hour,
            TimePart::Weekday => weekday,
            TimePart::HourOfWeek => 24 * weekday + hour,
            TimePart::DayOfMonth => date().map_or(0, |date| i64::from(date.day())),
            TimePart::Month => date().map_or(0, |date| i64::from(date.month())),
            TimePart::Days if is_id => day,
            TimePart::Days => {
                let second = second as f64 + f64::from(moment.nanos) * 1e-9;
                return day as f64 + second / DAY as f64;
            }
        };
        whole as f64
    }

    /// Returns the number that is derived from a raw value, in the form of a raw value. If `is_id`
    /// is true, the number is whole.
    ///
    /// # Errors
    /// Returns an error if the value is not a time.
    pub fn derived(
        &self,
        value: &RawValue<'_>,
        is_id: bool,
    ) -> Result<RawValue<'static>, ValueError> {
        let moment = self.read(value)?;
        Ok(moment.map_or(RawValue::Missing, |m| RawValue::Float(self.number(m, is_id))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(derive: TimePart, zone: &str) -> TimeRule {
        let zone = Zone::try_from(zone.to_owned()).unwrap();
        TimeRule { derive, unit: Some(TimeUnit::Second), zone, order: None }
    }

    fn derive(part: TimePart, zone: &str, text: &str) -> f64 {
        let rule = rule(part, zone);
        rule.number(rule.read_text(text.as_bytes()).unwrap(), false)
    }

    #[test]
    fn parts_of_a_time_follow_the_zone() {
        // The 14th of November 2023 was a Tuesday.
        let utc = "2023-11-14T22:13:20Z";
        assert_eq!(derive(TimePart::Hour, "UTC", utc), 22.0);
        assert_eq!(derive(TimePart::Weekday, "UTC", utc), 1.0);
        assert_eq!(derive(TimePart::HourOfWeek, "UTC", utc), 46.0);
        assert_eq!(derive(TimePart::Hour, "+05:30", utc), 3.0);
        assert_eq!(derive(TimePart::Weekday, "+05:30", utc), 2.0);
        assert_eq!(derive(TimePart::DayOfMonth, "+05:30", utc), 15.0);
        assert_eq!(derive(TimePart::Month, "-08:00", "2024-01-01T03:00Z"), 12.0);
        assert_eq!(derive(TimePart::Days, "UTC", "1970-01-02T12:00Z"), 1.5);
        assert_eq!(derive(TimePart::Days, "UTC", "1969-12-31T12:00Z"), -0.5);
        // A text without a zone shows a clock of the zone.
        assert_eq!(derive(TimePart::Hour, "+05:30", "2023-11-14 22:13:20"), 22.0);
        assert_eq!(derive(TimePart::Hour, "-03:00", "1700000000"), 19.0);
    }

    #[test]
    fn every_form_of_a_time_is_the_same_moment() {
        let rule = rule(TimePart::Hour, "UTC");
        let moment = rule.read_count(1_700_000_000).unwrap();
        let values = [
            RawValue::Int(1_700_000_000),
            RawValue::Uint(1_700_000_000),
            RawValue::Float(1_700_000_000.0),
            RawValue::Text("1700000000".into()),
            RawValue::Text("1700000000.0".into()),
            RawValue::Text("2023-11-14T22:13:20Z".into()),
            RawValue::Text("2023-11-14 23:13:20+01:00".into()),
        ];
        for value in values {
            assert_eq!(rule.read(&value), Ok(Some(moment)), "{value:?}");
        }
        let half = rule.read_float(1_700_000_000.5).unwrap();
        assert_eq!(half.to_string(), "2023-11-14T22:13:20.500Z");
        assert_eq!(rule.read(&RawValue::Missing), Ok(None));
        assert_eq!(rule.read(&RawValue::Text("".into())), Ok(None));
        let milliseconds = RawValue::Int(1_700_000_000_000);
        assert_eq!(rule.read(&milliseconds), Err(ValueError::NotInUnit(TimeUnit::Second)));
        let no_unit = TimeRule { unit: None, ..rule };
        assert_eq!(no_unit.read(&RawValue::Int(1_700_000_000)), Err(ValueError::NoTimeUnit));
        assert_eq!(rule.read(&RawValue::Float(f64::NAN)), Err(ValueError::NotFinite));
        assert_eq!(rule.read(&RawValue::Bool(true)), Err(ValueError::NotTime));
        for count in [u64::MAX, 1 << 63, 1_700_000_000_000] {
            let unit = rule.unit.unwrap();
            assert_eq!(rule.read(&RawValue::Uint(count)), Err(ValueError::NotInUnit(unit)));
        }
        assert_eq!(no_unit.read(&RawValue::Uint(1_700_000_000)), Err(ValueError::NoTimeUnit));
    }

    #[test]
    fn zones_are_fixed_offsets() {
        for (name, minutes) in [("UTC", 0), ("+00:00", 0), ("-0330", -210), ("+14", 840)] {
            assert_eq!(Zone::try_from(name.to_owned()), Ok(Zone { minutes }), "{name}");
        }
        for name in ["Europe/Berlin", "+19:00", "05:30", "", "+5", "+05:60", "CET"] {
            let refused = Zone::try_from(name.to_owned()).unwrap_err();
            assert!(refused.contains("fixed offset"), "{refused}");
        }
        assert_eq!(String::from(Zone { minutes: -210 }), "-03:30");
    }

    proptest! {
        #[test]
        fn a_moment_survives_its_text_and_its_count(seconds in RANGE, nanos in 0u32..1_000_000_000) {
            let moment = Moment::new(seconds, nanos).unwrap();
            let text = moment.to_string();
            prop_assert_eq!(parse_moment(text.as_bytes(), Zone::default(), None), Ok(moment));
            if let Some(count) = moment.count(TimeUnit::Nanosecond) {
                prop_assert_eq!(Moment::from_count(count, TimeUnit::Nanosecond), Some(moment));
            }
            let number = rule(TimePart::HourOfWeek, "+01:00").number(moment, true);
            prop_assert!((0.0..168.0).contains(&number) && number.fract() == 0.0);
        }

        #[test]
        fn floats_are_read_like_the_whole_numbers_below(count in 315_532_800i64..7_258_118_400, part in 0.0f64..1.0) {
            let rule = rule(TimePart::Hour, "UTC");
            let (whole, float) = (rule.read_count(count), rule.read_float(count as f64 + part * 0.99));
            prop_assert_eq!(whole.unwrap().seconds, float.unwrap().seconds);
        }
    }
}
