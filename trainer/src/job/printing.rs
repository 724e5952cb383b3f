//! The form in which the values of a job are printed.

use serde::Serialize;
use toml::{Table, Value};

use crate::error::{Error, Result};

/// Adds a section to a job that is printed, if the job has the section.
pub(super) fn add(root: &mut Table, key: &str, section: Option<&impl Serialize>) -> Result<()> {
    if let Some(section) = section {
        root.insert(key.to_owned(), Value::try_from(section).map_err(Error::Print)?);
    }
    Ok(())
}

/// Shortens floats that come from 32-bit settings to the shortest decimal number that reads back as
/// the same `f32`: 0.05 instead of 0.05000000074505806.
pub(super) fn shorten(value: &mut Value) {
    match value {
        Value::Float(x) if f64::from(*x as f32) == *x => {
            if let Ok(short) = (*x as f32).to_string().parse() {
                *x = short;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| shorten(value)),
        _ => {}
    }
}
