//! Checks of the keys of models.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

pub(super) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(deserializer)?;
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be above 0, found {value}")))
}

pub(super) fn widths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let widths = Vec::<usize>::deserialize(deserializer)?;
    if widths.contains(&0) {
        return Err(D::Error::custom("a layer must have at least 1 unit, found 0"));
    }
    Ok(widths)
}

pub(super) fn some_widths<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<usize>>, D::Error> {
    widths(deserializer).map(Some)
}

pub(super) fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let value = usize::deserialize(deserializer)?;
    if value >= 1 { Ok(value) } else { Err(D::Error::custom("must be at least 1, found 0")) }
}

pub(super) fn rank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    at_least_one(deserializer).map(Some)
}

pub(super) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(deserializer)?;
    if (0.0..1.0).contains(&value) {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be at least 0 and below 1, found {value}")))
}
