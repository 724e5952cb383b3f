//! Moments that a user gives: a date and a time in UTC, or milliseconds since 1970.

use std::fmt;
use std::str::FromStr;

/// A moment in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

/// The days from the first of March of the year 0 to the beginning of 1970.
const DAYS_TO_1970: u64 = 719_468;
/// The days of four centuries.
const ERA: u64 = 146_097;

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(milliseconds) = text.parse() {
            return Ok(Self(milliseconds));
        }
        parse(text).map(Self).ok_or_else(|| {
            format!(
                "`{text}` is no moment; give a date with a time in UTC, as in \
                 2026-03-01T12:00:00Z, or milliseconds since 1970"
            )
        })
    }
}

/// Parses `YYYY-MM-DDTHH:MM:SSZ`; the seconds may have three decimals.
fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, milliseconds) = match time.split_once('.') {
        Some((time, decimals)) => (time, number(decimals, 3, 0, 999)?),
        None => (time, 0),
    };
    let mut date = date.split('-');
    let year = number(date.next()?, 4, 1970, 9999)?;
    let month = number(date.next()?, 2, 1, 12)?;
    let day = number(date.next()?, 2, 1, days_of(year, month))?;
    let mut time = time.split(':');
    let hour = number(time.next()?, 2, 0, 23)?;
    let minute = number(time.next()?, 2, 0, 59)?;
    let second = number(time.next()?, 2, 0, 59)?;
    if date.next().is_some() || time.next().is_some() {
        return None;
    }
    let days = days_since_1970(year, month, day);
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milliseconds)
}

/// Parses a number with a fixed count of digits, between two bounds.
fn number(text: &str, digits: usize, least: u64, most: u64) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|_| is_number)?;
    (least..=most).contains(&value).then_some(value)
}

fn days_of(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1970 to a date. A year begins in March here, so that a leap day is its
/// last day.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - DAYS_TO_1970
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0 / 86_400_000 + DAYS_TO_1970, self.0 % 86_400_000);
        let (era, of_era) = (days / ERA, days % ERA);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = year + era * 400 + next;
        let (seconds, milliseconds) = (of_day / 1000, of_day % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if milliseconds > 0 {
            write!(f, ".{milliseconds:03}")?;
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_moments_and_back() {
        for (text, milliseconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799_000),
            ("2001-09-09T01:46:40.123Z", 1_000_000_000_123),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
        ] {
            assert_eq!(text.parse(), Ok(Moment(milliseconds)), "{text}");
            assert_eq!(Moment(milliseconds).to_string(), text);
        }
        assert_eq!("1700000000000".parse(), Ok(Moment(1_700_000_000_000)));
        // Every day of the Gregorian cycle has its own number.
        for day in 0..ERA {
            let moment = Moment(day * 86_400_000);
            assert_eq!(moment.to_string().parse(), Ok(moment));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "noon",
            "-5",
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-3-01T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.5Z",
            "2026-03-01T12:00:00+01:00",
            "1969-12-31T23:59:59Z",
            "2026-03-01-02T12:00:00Z",
        ] {
            let error = text.parse::<Moment>().unwrap_err();
            assert!(error.contains("2026-03-01T12:00:00Z"), "{text}: {error}");
        }
    }
}
