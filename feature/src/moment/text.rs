//! The grammar of dates and times in texts.
//!
//! The year has four digits. It comes first (`2024-05-01`, `2024/5/1`, `2024.05.01`) or last
//! (`01.05.2024`, `5/1/2024`). If it comes last, the order of day and month must be known or follow
//! from a number above 12. A time of day may follow, and then a zone: `Z`, `UTC`, `GMT` or an
//! offset such as `+02:00`.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use super::{Moment, Zone};
use crate::raw_value::ValueError;

/// The maximum number of bytes of a text that can be a time. The longest form has 9 digits of a
/// fraction and an offset.
const LONGEST: usize = 64;

/// The order of day and month in a date whose year comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DateOrder {
    /// The day comes first, as in `31.12.2024`.
    DayFirst,
    /// The month comes first, as in `12/31/2024`.
    MonthFirst,
}

/// Reads a text as a date with or without a time of day. `zone` is the zone of a text that names
/// none. `order` is the order of day and month if the year comes last.
///
/// # Errors
/// Returns an error if the text is not a time, or if the order of day and month is unknown.
pub fn parse_moment(
    text: &[u8],
    zone: Zone,
    order: Option<DateOrder>,
) -> Result<Moment, ValueError> {
    if text.len() > LONGEST {
        return Err(ValueError::NotTime);
    }
    let mut scan = Scanner { rest: text.trim_ascii() };
    let day = scan.date(order)?;
    let (seconds, nanos) = scan.time_of_day().ok_or(ValueError::NotTime)?;
    let offset = match scan.zone().ok_or(ValueError::NotTime)? {
        Some(minutes) => 60 * i64::from(minutes),
        None => zone.seconds(),
    };
    Moment::new(day * super::DAY + seconds - offset, nanos).ok_or(ValueError::NotTime)
}

/// Reads an offset from UTC, such as `+05:30`, `-0330` or `+02`, as minutes.
pub(super) fn parse_offset(text: &[u8]) -> Option<i32> {
    let mut scan = Scanner { rest: text };
    let minutes = scan.offset()?;
    scan.rest.is_empty().then_some(minutes)
}

/// A number and the number of its digits.
type Digits = (u32, usize);

/// The rest of a text that has not been read yet.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    /// Reads a number of `least` to `most` digits, and returns it with the number of its digits.
    fn digits(&mut self, least: usize, most: usize) -> Option<Digits> {
        let length = self.rest.iter().take(most).take_while(|b| b.is_ascii_digit()).count();
        if length < least || most > 9 {
            return None;
        }
        let (digits, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some((digits.iter().fold(0, |n, digit| 10 * n + u32::from(digit - b'0')), length))
    }

    /// Reads one byte if it is one of `allowed`.
    fn one_of(&mut self, allowed: &[u8]) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        if !allowed.contains(first) {
            return None;
        }
        self.rest = rest;
        Some(*first)
    }

    /// Reads a date, and returns the number of days since the first of January 1970.
    fn date(&mut self, order: Option<DateOrder>) -> Result<i64, ValueError> {
        let (first, second, third) = self.three_numbers().ok_or(ValueError::NotTime)?;
        let (year, month, day) = match (first.1, third.1) {
            (4, 1..=2) => (first.0, second, third.0),
            (1..=2, 4) => {
                let month_first = match order {
                    Some(order) => order == DateOrder::MonthFirst,
                    None if first.0 > 12 => false,
                    None if second > 12 => true,
                    None if first.0 == second => false,
                    None => return Err(ValueError::AmbiguousDate),
                };
                if month_first { (third.0, first.0, second) } else { (third.0, second, first.0) }
            }
            _ => return Err(ValueError::NotTime),
        };
        let year = i32::try_from(year).map_err(|_| ValueError::NotTime)?;
        let date = NaiveDate::from_ymd_opt(year, month, day).ok_or(ValueError::NotTime)?;
        Ok(date.signed_duration_since(NaiveDate::default()).num_days())
    }

    /// Reads three numbers with the same separator between them. The first and the last one are
    /// returned with the numbers of their digits.
    fn three_numbers(&mut self) -> Option<(Digits, u32, Digits)> {
        let first = self.digits(1, 4)?;
        let separator = self.one_of(b"-/.")?;
        let (second, _) = self.digits(1, 2)?;
        self.one_of(&[separator])?;
        Some((first, second, self.digits(1, 4)?))
    }

    /// Reads the time of day if there is one. Returns the seconds since midnight and the
    /// nanoseconds.
    fn time_of_day(&mut self) -> Option<(i64, u32)> {
        if self.rest.is_empty() {
            return Some((0, 0));
        }
        if self.one_of(b"Tt ")? == b' ' {
            self.skip_spaces();
        }
        let (hour, _) = self.digits(1, 2)?;
        self.one_of(b":")?;
        let (minute, _) = self.digits(2, 2)?;
        let (mut second, mut nanos) = (0, 0);
        if self.one_of(b":").is_some() {
            (second, _) = self.digits(2, 2)?;
            if self.one_of(b".,").is_some() {
                let (fraction, digits) = self.digits(1, 9)?;
                nanos = fraction * 10u32.pow(9 - u32::try_from(digits).ok()?);
            }
        }
        let is_valid = hour < 24 && minute < 60 && second < 60;
        is_valid.then_some((i64::from(3600 * hour + 60 * minute + second), nanos))
    }

    /// Reads the zone, up to the end of the text. Returns the offset in minutes, `Some(None)` if
    /// the text names no zone, and `None` if the rest of the text is not a zone.
    #[expect(clippy::option_option, reason = "an absent zone is not a wrong zone")]
    fn zone(&mut self) -> Option<Option<i32>> {
        self.skip_spaces();
        if self.rest.is_empty() {
            return Some(None);
        }
        let names: [&[u8]; 4] = [b"Z", b"z", b"UTC", b"GMT"];
        if names.contains(&self.rest) {
            return Some(Some(0));
        }
        let minutes = self.offset()?;
        self.rest.is_empty().then_some(Some(minutes))
    }

    /// Reads an offset of up to 23 hours and 59 minutes.
    fn offset(&mut self) -> Option<i32> {
        let sign = if self.one_of(b"+-")? == b'-' { -1 } else { 1 };
        let (hours, _) = self.digits(2, 2)?;
        let has_minutes = self.one_of(b":").is_some() || !self.rest.is_empty();
        let minutes = if has_minutes { self.digits(2, 2)?.0 } else { 0 };
        let is_valid = hours < 24 && minutes < 60;
        let total = i32::try_from(60 * hours + minutes).ok()?;
        is_valid.then_some(sign * total)
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, order: Option<DateOrder>) -> Result<String, ValueError> {
        parse_moment(text.as_bytes(), Zone::default(), order).map(|moment| moment.to_string())
    }

    #[test]
    fn usual_forms_are_read() {
        let of = |text: &str| read(text, None).unwrap();
        for text in ["2024-05-01", "2024/05/01", "2024.5.1", " 2024-05-01 ", "2024-05-01 00:00"] {
            assert_eq!(of(text), "2024-05-01T00:00:00Z", "{text}");
        }
        for text in [
            "2024-05-01T10:20:30Z",
            "2024-05-01t10:20:30z",
            "2024-05-01 10:20:30 UTC",
            "2024-05-01 12:20:30+02:00",
            "2024-05-01 12:20:30 +0200",
            "2024-05-01T05:50:30-0430",
            "2024-05-01 12:20:30.000000+02",
            "2024/5/1 10:20:30,0",
        ] {
            assert_eq!(of(text), "2024-05-01T10:20:30Z", "{text}");
        }
        assert_eq!(of("2024-05-01 10:20:30.123456789"), "2024-05-01T10:20:30.123456789Z");
        assert_eq!(of("31.12.2024 23:59"), "2024-12-31T23:59:00Z");
        assert_eq!(of("12/31/2024"), "2024-12-31T00:00:00Z");
        assert_eq!(of("05.05.2024"), "2024-05-05T00:00:00Z");
        assert_eq!(of("0001-01-01"), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn the_order_of_day_and_month_is_not_guessed() {
        assert_eq!(read("01.02.2024", None), Err(ValueError::AmbiguousDate));
        let of = |order| read("01.02.2024", Some(order)).unwrap();
        assert_eq!(of(DateOrder::DayFirst), "2024-02-01T00:00:00Z");
        assert_eq!(of(DateOrder::MonthFirst), "2024-01-02T00:00:00Z");
        assert_eq!(read("31.12.2024", Some(DateOrder::MonthFirst)), Err(ValueError::NotTime));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "2024",
            "2024-05",
            "2024-13-01",
            "2023-02-29",
            "24-05-01",
            "01-05-24",
            "2024-05/01",
            "2024-05-01T",
            "2024-05-01T10",
            "2024-05-01 24:00",
            "2024-05-01 10:60",
            "2024-05-01 1:2",
            "2024-05-01 10:20:60",
            "2024-05-01 10:20:30.",
            "2024-05-01 10:20:30+2",
            "10:30",
            "2024-05-01 10:20:30 CEST",
            "2024-05-01x",
            "2024-05-01 10:20:30.1234567890",
            "9999-12-31T23:59:59-01:00",
            "2024-05-01 10:00+24:00",
            "-2024-05-01",
            "２０２４-05-01",
        ] {
            assert_eq!(read(text, None), Err(ValueError::NotTime), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_moment(&text, Zone::default(), None);
        }

        #[test]
        fn texts_like_dates_agree_with_the_library(text in "(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-6][0-9]:[0-5][0-9]") {
            let form = if text.contains('T') { "%Y-%m-%dT%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
            let theirs = chrono::NaiveDateTime::parse_from_str(&text, form).ok();
            let theirs = theirs.map(|time| time.and_utc().timestamp());
            let own = parse_moment(text.as_bytes(), Zone::default(), None).ok();
            prop_assert_eq!(own.and_then(|m| m.count(crate::schema::TimeUnit::Second)), theirs);
        }
    }
}
