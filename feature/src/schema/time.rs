//! The unit of the numbers in an event-time column.
//!
//! A column of whole numbers does not show whether it counts seconds or milliseconds. A freshness
//! that is wrong by a factor of 1,000 is worse than no freshness. Therefore the job must name the
//! unit, and numbers that are not plausible in this unit are refused. The plausible ranges of the
//! units do not overlap.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The unit of event times, which count from the start of 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeUnit {
    /// The times count seconds.
    #[serde(rename = "s")]
    Second,
    /// The times count milliseconds.
    #[serde(rename = "ms")]
    Millisecond,
    /// The times count microseconds.
    #[serde(rename = "us")]
    Microsecond,
    /// The times count nanoseconds.
    #[serde(rename = "ns")]
    Nanosecond,
}

/// The range of plausible event times in milliseconds: from the start of 1980 to the end of 2199. A
/// number outside this range has another unit or another meaning.
const PLAUSIBLE_MS: std::ops::Range<i64> = 315_532_800_000..7_258_118_400_000;

impl TimeUnit {
    /// Returns the number of units in a second.
    pub fn per_second(self) -> i64 {
        match self {
            Self::Second => 1,
            Self::Millisecond => 1_000,
            Self::Microsecond => 1_000_000,
            Self::Nanosecond => 1_000_000_000,
        }
    }

    /// Converts a time to milliseconds, rounded down. Returns `None` if the time is not plausible
    /// for an event, because it is before 1980 or after 2199.
    pub fn to_ms(self, time: i64) -> Option<i64> {
        let ms = match self {
            Self::Second => time.checked_mul(1000)?,
            Self::Millisecond => time,
            Self::Microsecond => time.div_euclid(1000),
            Self::Nanosecond => time.div_euclid(1_000_000),
        };
        PLAUSIBLE_MS.contains(&ms).then_some(ms)
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Second => "seconds",
            Self::Millisecond => "milliseconds",
            Self::Microsecond => "microseconds",
            Self::Nanosecond => "nanoseconds",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNITS: [(TimeUnit, i64); 4] = [
        (TimeUnit::Second, 1_000_000_000),
        (TimeUnit::Millisecond, 1_000_000),
        (TimeUnit::Microsecond, 1_000),
        (TimeUnit::Nanosecond, 1),
    ];

    #[test]
    fn a_moment_is_the_same_in_every_unit() {
        // 2023-11-14 22:13:20.
        for (unit, of) in UNITS {
            assert_eq!(unit.to_ms(1_700_000_000_000_000_000 / of), Some(1_700_000_000_000));
        }
        assert_eq!(TimeUnit::Millisecond.to_ms(7), None);
        assert_eq!(TimeUnit::Second.to_ms(i64::MAX), None);
    }

    proptest! {
        #[test]
        fn no_number_is_a_moment_in_two_units(time in any::<i64>()) {
            let meant = UNITS.iter().filter(|(unit, _)| unit.to_ms(time).is_some());
            prop_assert!(meant.count() <= 1);
        }
    }
}
