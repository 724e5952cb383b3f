//! The settings of progressive validation and their checks.

use serde::{Deserialize, Serialize};

use super::error::ValidationError;

/// The longest window in seconds: one day.
const LONGEST: u64 = 86_400;

/// The settings of progressive validation.
///
/// With `o` open short windows, `l` lengths and `s` segments (at most `max_segments + 1` for each
/// column), the memory is at most `(o + l) × (480 KiB + s × 16 KiB)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The lengths of the windows in seconds, in ascending order. Each one is a multiple of the
    /// one before. The default is 10 seconds, 1 minute and 10 minutes.
    pub windows: Vec<u64>,
    /// The names of the columns whose values are segments with figures of their own.
    pub segments: Vec<String>,
    /// The largest number of values of a column with figures of their own. Rows with other values
    /// are counted together.
    pub max_segments: usize,
    /// The largest number of open windows of the shortest length. If there are more, the oldest
    /// one is closed early.
    pub max_open: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { windows: vec![10, 60, 600], segments: Vec::new(), max_segments: 16, max_open: 64 }
    }
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the setting which cannot be used.
    pub fn check(&self) -> Result<(), ValidationError> {
        let refuse = |setting, value: String, remedy| {
            Err(ValidationError::Setting { setting, value, remedy })
        };
        let grow = |pair: &[u64]| pair[0] < pair[1] && pair[1].is_multiple_of(pair[0]);
        let in_range = |&seconds: &u64| (1..=LONGEST).contains(&seconds);
        let is_usable = self.windows.iter().all(in_range)
            && !self.windows.is_empty()
            && self.windows.windows(2).all(|pair| pair[0] > 0 && grow(pair));
        if !is_usable {
            let remedy = "lengths from 1 to 86,400 seconds in ascending order, each one a multiple \
                          of the one before";
            return refuse("windows", format!("{:?}", self.windows), remedy);
        }
        let mut names = self.segments.clone();
        names.sort();
        if names.iter().any(String::is_empty) || names.windows(2).any(|pair| pair[0] == pair[1]) {
            let remedy = "the names of columns, each one once";
            return refuse("segments", format!("{:?}", self.segments), remedy);
        }
        if !(1..=1024).contains(&self.max_segments) {
            return refuse("max_segments", self.max_segments.to_string(), "1 to 1,024");
        }
        if !(1..=4096).contains(&self.max_open) {
            return refuse("max_open", self.max_open.to_string(), "1 to 4,096");
        }
        Ok(())
    }
}
