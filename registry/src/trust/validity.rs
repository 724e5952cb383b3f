//! The time for which a pointer move is valid, as a text with a number and a unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The units of a validity in seconds, the largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// The time for which a pointer move is valid, as in `30d`, `12h`, `90m` or `45s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Validity(Duration);

impl Validity {
    /// Returns the end of the validity of a move, in milliseconds since 1970.
    pub(crate) fn end_ms(self, at_ms: u64) -> u64 {
        at_ms.saturating_add(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Validity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = UNITS.iter().find_map(|(unit, seconds)| {
            let number = text.strip_suffix(unit)?;
            let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u64>().ok().filter(|&n| is_plain && n > 0)?.checked_mul(*seconds)
        });
        seconds.map(|seconds| Self(Duration::from_secs(seconds))).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            format!("must be a number and a unit (d, h, m or s), such as 30d, found {text:?}")
        })
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let fits = |&&(_, unit): &&(&str, u64)| seconds.is_multiple_of(unit);
        let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("s", 1));
        write!(f, "{}{name}", seconds / unit)
    }
}

impl TryFrom<String> for Validity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Validity> for String {
    fn from(validity: Validity) -> Self {
        validity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_is_a_number_and_a_unit() {
        for (text, seconds) in [("30d", 30 * 86_400), ("12h", 43_200), ("90m", 5400), ("45s", 45)] {
            let validity: Validity = text.parse().unwrap();
            assert_eq!((validity.0.as_secs(), validity.to_string()), (seconds, text.to_owned()));
            assert_eq!(validity.end_ms(7), seconds * 1000 + 7);
        }
        assert_eq!("86400s".parse::<Validity>().unwrap().to_string(), "1d");
        for text in ["", "d", "0d", "-1d", "+1d", "1.5d", "7", "7w", "99999999999999999999d"] {
            assert!(text.parse::<Validity>().unwrap_err().contains("30d"), "{text}");
        }
        assert_eq!("1d".parse::<Validity>().unwrap().end_ms(u64::MAX - 1), u64::MAX);
    }
}
