//! Checks of the ranges of numbers in a job, as functions for serde's `deserialize_with`.

use std::fmt::Display;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A floating-point number of any width.
pub(crate) trait Float<'de>: Deserialize<'de> + Copy + Display + Into<f64> {}

impl<'de, T: Deserialize<'de> + Copy + Display + Into<f64>> Float<'de> for T {}

/// Reads a number. Returns an error that describes the allowed range if the number is outside this
/// range.
fn read<'de, D: Deserializer<'de>, T: Float<'de>>(
    deserializer: D,
    range: &str,
    contains: impl FnOnce(f64) -> bool,
) -> Result<T, D::Error> {
    let value = T::deserialize(deserializer)?;
    if contains(value.into()) {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be {range}, found {value}")))
}

/// Reads a finite number.
pub(crate) fn finite<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "a finite number", f64::is_finite)
}

/// Reads a finite number above zero.
pub(crate) fn positive<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "above 0", |value| value.is_finite() && value > 0.0)
}

/// Reads a finite number that is zero or above.
pub(crate) fn not_negative<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "0 or above", |value| value.is_finite() && value >= 0.0)
}

/// Reads a number in `[0, 1)`.
pub(crate) fn below_one<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "at least 0 and below 1", |value| (0.0..1.0).contains(&value))
}

/// Reads a number in `[0, 1]`.
pub(crate) fn share<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

/// Reads a number in `(0, 1]`.
pub(crate) fn factor<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "above 0 and at most 1", |value| value > 0.0 && value <= 1.0)
}

/// Reads a number in `(0, 1)`.
pub(crate) fn inner_share<'de, D: Deserializer<'de>, T: Float<'de>>(d: D) -> Result<T, D::Error> {
    read(d, "above 0 and below 1", |value| value > 0.0 && value < 1.0)
}

/// Reads a whole number of at least 1.
pub(crate) fn at_least_one<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PartialOrd + From<u8>,
{
    let value = T::deserialize(deserializer)?;
    if value >= T::from(1) {
        Ok(value)
    } else {
        Err(D::Error::custom("must be at least 1, found 0"))
    }
}
