//! The columns that are left out because of what else the data has: other outcomes of a row beside
//! its label, and parts of the date beside its time.

use super::label::{is_binary, is_outcome};
use super::words;
use crate::profile::ColumnProfile;

/// The names of parts of a date, with the number of values that a part has before it begins again.
/// A year never does.
const PARTS_OF_DATES: [(&str, u64); 7] = [
    ("month", 12),
    ("yearmonth", u64::MAX),
    ("week", 52),
    ("weeknumber", 52),
    ("quarter", 4),
    ("year", u64::MAX),
    ("yr", u64::MAX),
];
/// The words before the name of a part that speak of the row itself. A `birth_year` does not.
const OF_ROWS: [&str; 8] = ["event", "order", "log", "visit", "click", "purchase", "sale", "date"];
/// The maximum number of distinct values of a part of a date.
const MOST_PARTS: u64 = 400;

/// The facts about the data that the guess of a column needs.
pub(super) struct Context<'a> {
    /// The name of the label.
    pub(super) label: Option<&'a str>,
    /// Whether the rows have a time. They are then split by time.
    pub(super) has_event_time: bool,
}

impl Context<'_> {
    /// Returns the reason for leaving out a column, or `None` if nothing else of the data speaks
    /// against it.
    pub(super) fn leaves_out(&self, column: &ColumnProfile) -> Option<String> {
        self.is_other_outcome(column).or_else(|| self.follows_time(column))
    }

    fn is_other_outcome(&self, column: &ColumnProfile) -> Option<String> {
        let label = self.label?;
        (is_binary(column) && is_outcome(&column.name)).then(|| {
            format!(
                "its name is that of an outcome, and `{label}` is the label, so it is probably known \
                 only after the row; make it the label instead, a second label, or a feature if it \
                 is known before"
            )
        })
    }

    fn follows_time(&self, column: &ColumnProfile) -> Option<String> {
        let (distinct, _) = column.distinct();
        let known = words(&column.name);
        let (last, before) = known.split_last()?;
        let (_, period) = PARTS_OF_DATES.iter().find(|(word, _)| word == last)?;
        if !before.iter().all(|word| OF_ROWS.contains(&word.as_str())) {
            return None;
        }
        (self.has_event_time && distinct < (*period).min(MOST_PARTS)).then(|| {
            format!(
                "it has {distinct} values, which follow the time of the row, so later rows have \
                 values that no earlier row has; use parts of the time that come again, such as the \
                 weekday"
            )
        })
    }
}
