//! The spans by which the rules of a table measure age: numbers of steps, or spans of event time.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of event time in whole seconds. In a job file: `"7 days"`, `"36 hours"`, `"90 seconds"`.
///
/// Event time is the time in the column `columns.event_time` of the data, and never that of a
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventSpan(u32);

/// A span in steps or in event time. In a job file: a number of steps, or a text as in
/// [`EventSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// A number of steps.
    Steps(u64),
    /// A span of event time.
    EventTime(EventSpan),
}

/// The unit in which a table measures the age of its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableClock {
    /// Ages are numbers of steps.
    #[default]
    Steps,
    /// Ages are seconds of event time.
    EventTime,
}

/// The names of the units and their lengths in seconds. The longest units come first, because a
/// span is written in the longest unit that divides it.
const UNITS: [(&str, &str, u64); 5] = [
    ("week", "weeks", 604_800),
    ("day", "days", 86_400),
    ("hour", "hours", 3600),
    ("minute", "minutes", 60),
    ("second", "seconds", 1),
];

/// The longest span in seconds, which is 68 years. The ages of rows are numbers of 32 bits.
const LONGEST: u64 = i32::MAX as u64;

const WANTED: &str = "a span of event time; write for example \"7 days\", \"36 hours\", \
                      \"10 minutes\" or \"90 seconds\" (at least 1 second and at most 68 years)";

impl EventSpan {
    /// Returns a span of some seconds, or `None` if the number is 0 or above 68 years.
    pub fn from_seconds(seconds: u64) -> Option<Self> {
        (1..=LONGEST).contains(&seconds).then_some(Self(seconds as u32))
    }

    /// Returns the number of seconds of the span, which is at least 1.
    pub fn seconds(self) -> u32 {
        self.0
    }
}

impl Span {
    /// Returns the length of the span in its unit: a number of steps or of seconds.
    #[inline(always)]
    pub fn units(self) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::EventTime(span) => span.0.into(),
        }
    }

    /// Returns the unit of the span.
    pub fn clock(self) -> TableClock {
        match self {
            Self::Steps(_) => TableClock::Steps,
            Self::EventTime(_) => TableClock::EventTime,
        }
    }
}

impl From<u64> for Span {
    fn from(steps: u64) -> Self {
        Self::Steps(steps)
    }
}

impl FromStr for EventSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, name) = (&trimmed[..digits], trimmed[digits..].trim());
        let unit = UNITS.iter().find(|(one, many, _)| [*one, *many].contains(&name));
        let seconds =
            number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit.2));
        let span = seconds.and_then(Self::from_seconds);
        span.ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            format!("`{shown}` is not {WANTED}")
        })
    }
}

impl fmt::Display for EventSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = u64::from(self.0);
        let unit = UNITS.iter().find(|(_, _, unit)| seconds.is_multiple_of(*unit));
        let &(one, many, unit) = unit.unwrap_or(&UNITS[UNITS.len() - 1]);
        let number = seconds / unit;
        write!(f, "{number} {}", if number == 1 { one } else { many })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::EventTime(span) => span.fmt(f),
        }
    }
}

impl Serialize for EventSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Span::deserialize(deserializer)? {
            Span::EventTime(span) => Ok(span),
            Span::Steps(number) => {
                Err(de::Error::custom(format!("`{number}` has no unit and is not {WANTED}")))
            }
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u64(*steps),
            Self::EventTime(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StepsOrText;
        impl Visitor<'_> for StepsOrText {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number of steps, or {WANTED}")
            }

            fn visit_u64<E: de::Error>(self, steps: u64) -> Result<Span, E> {
                Ok(Span::Steps(steps))
            }

            fn visit_i64<E: de::Error>(self, steps: i64) -> Result<Span, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Signed(steps), &self);
                u64::try_from(steps).map(Span::Steps).map_err(refused)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map(Span::EventTime).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(StepsOrText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written_as_people_do() {
        for (text, seconds) in [
            ("7 days", 604_800),
            ("1 day", 86_400),
            ("36hours", 129_600),
            (" 90 seconds ", 90),
            ("10 minutes", 600),
            ("2 weeks", 1_209_600),
        ] {
            let span: EventSpan = text.parse().unwrap();
            assert_eq!(span.seconds(), seconds, "{text}");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for text in
            ["", "days", "7", "0 days", "-1 days", "1.5 days", "7 d", "69 years", "9999999 weeks"]
        {
            let error = text.parse::<EventSpan>().unwrap_err();
            assert!(error.contains("write for example"), "{error}");
        }
        assert_eq!("1 week".parse::<EventSpan>().unwrap().to_string(), "1 week");
        assert_eq!(EventSpan(3601).to_string(), "3601 seconds");
    }
}
