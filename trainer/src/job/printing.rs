//! The form in which the values of a job are printed.

use toml::Value;

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
