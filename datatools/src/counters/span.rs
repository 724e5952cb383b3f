//! Spans of time, such as `7d`, and their length in the unit of a column of times.

use std::fmt;
use std::str::FromStr;

use arrow_schema::{DataType, TimeUnit as ArrowUnit};
use zillion_feature::TimeUnit;
use zillion_reader::Result;

use crate::parquet_files::setting;

/// The letters of the units of a span, with their seconds.
const UNITS: [(char, u64); 5] =
    [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 7 * 86_400)];

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The whole time, without a beginning.
    All,
    /// A number of units of the column of times.
    Ticks(u64),
    /// A number of a unit such as `d`, and the seconds of the unit.
    Clock(u64, char),
}

impl Span {
    /// Returns the length in units of a column of times with the type `column`, or `None` for the
    /// whole time. `key` is the setting that an error names.
    ///
    /// # Errors
    /// Returns an error if the unit of the times is not known, if the span is no multiple of the
    /// unit, or if the length does not fit 64 bits.
    pub(super) fn ticks(
        self,
        column: &DataType,
        unit: Option<TimeUnit>,
        key: &str,
    ) -> Result<Option<u64>> {
        let column = match column {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        let is_text = matches!(column, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        let (count, letter) = match self {
            Self::All => return Ok(None),
            Self::Ticks(0) => return Ok(Some(0)),
            Self::Ticks(_) if is_text => {
                let problem = format!("span `{self}` has no unit, but the times are texts");
                return Err(setting(format!("{problem}; give it one, as in 7d or 12h"), key));
            }
            Self::Ticks(ticks) => return Ok(Some(ticks)),
            Self::Clock(count, letter) => (count, letter),
        };
        let seconds = UNITS.iter().find(|(known, _)| *known == letter).map_or(0, |(_, s)| *s);
        let seconds = u128::from(count) * u128::from(seconds);
        // The number of ticks in a second, or of seconds in a tick.
        let (ticks, tick) = match (column, unit) {
            (DataType::Date32, _) => (1, 86_400),
            (DataType::Date64 | DataType::Timestamp(ArrowUnit::Millisecond, _), _) => (1000, 1),
            (DataType::Timestamp(ArrowUnit::Second, _), _) => (1, 1),
            (DataType::Timestamp(ArrowUnit::Microsecond, _), _) => (1_000_000, 1),
            (DataType::Timestamp(ArrowUnit::Nanosecond, _), _) => (1_000_000_000, 1),
            // Texts with dates are read as microseconds, whatever the unit of numbers is.
            _ if is_text => (1_000_000, 1),
            (_, Some(TimeUnit::Second)) => (1, 1),
            (_, Some(TimeUnit::Millisecond)) => (1000, 1),
            (_, Some(TimeUnit::Microsecond)) => (1_000_000, 1),
            (_, Some(TimeUnit::Nanosecond)) => (1_000_000_000, 1),
            (_, None) => {
                let problem = format!(
                    "span `{self}` has a unit, but the unit of the times, which are whole numbers, \
                     is not known; set the unit of the times (s, ms, us or ns), or give the span \
                     as a number of their units"
                );
                return Err(setting(problem, key));
            }
        };
        if seconds % tick != 0 {
            let problem =
                format!("span `{self}` is no number of whole days, and the times are days");
            return Err(setting(format!("{problem}; give a span in days"), key));
        }
        let length = u64::try_from(seconds * ticks / tick);
        length.map(Some).map_err(|_| {
            setting(format!("span `{self}` is too long; give a shorter one, or all"), key)
        })
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let letter =
            text.chars().next_back().filter(|letter| UNITS.iter().any(|(l, _)| l == letter));
        let digits = letter.map_or(text, |letter| &text[..text.len() - letter.len_utf8()]);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let count = digits.parse::<u64>().ok().filter(|_| is_number);
        match (count, letter) {
            (Some(count), Some(letter)) => Ok(Self::Clock(count, letter)),
            (Some(count), None) => Ok(Self::Ticks(count)),
            (None, _) => Err(format!(
                "`{text}` is no span of time; write a number with s, m, h, d or w, as in 7d, a \
                 number of units of the times, or all"
            )),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Ticks(ticks) => write!(f, "{ticks}"),
            Self::Clock(count, letter) => write!(f, "{count}{letter}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_unit_of_the_times() {
        let ticks = |text: &str, column: &DataType, unit| {
            text.parse::<Span>().unwrap().ticks(column, unit, "windows")
        };
        let millisecond = DataType::Timestamp(ArrowUnit::Millisecond, None);
        for (text, column, unit, wanted) in [
            ("all", &DataType::Int64, None, None),
            ("90", &DataType::Int64, None, Some(90)),
            ("7d", &DataType::Date32, None, Some(7)),
            ("2w", &DataType::Int64, Some(TimeUnit::Second), Some(14 * 86_400)),
            ("1h", &millisecond, Some(TimeUnit::Second), Some(3_600_000)),
            ("0s", &DataType::Int64, Some(TimeUnit::Nanosecond), Some(0)),
            ("0", &DataType::Utf8, None, Some(0)),
        ] {
            assert_eq!(ticks(text, column, unit).unwrap(), wanted, "{text}");
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        // Texts are read as microseconds, also if numbers would have another unit.
        let texts = DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into());
        for column in [&DataType::Utf8, &texts] {
            assert_eq!(ticks("1h", column, Some(TimeUnit::Second)).unwrap(), Some(3_600_000_000));
        }
        for (text, column, problem) in [
            ("90", &DataType::Utf8, "the times are texts"),
            ("7d", &DataType::Int64, "set the unit of the times"),
            ("36h", &DataType::Date32, "whole days"),
            ("18446744073709551615w", &millisecond, "too long"),
        ] {
            let error = ticks(text, column, None).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        for text in ["", "d", "-1d", "1.5h", "7 d", "1y", "+5", "é"] {
            assert!(text.parse::<Span>().unwrap_err().contains("as in 7d"), "{text}");
        }
    }
}
