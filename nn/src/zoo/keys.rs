//! The checks of keys that several models share.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::checks::at_least_one;

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

pub(super) fn rank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    at_least_one(deserializer).map(Some)
}
