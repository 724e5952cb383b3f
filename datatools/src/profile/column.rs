//! The profile of one column.

use serde::Serialize;

use super::tally::{Cells, SEPARATORS, Separated, Tally};
use super::values::Values;

/// The summary of a column's values.
#[derive(Debug)]
pub struct ColumnProfile {
    /// The name of the column.
    pub name: String,
    /// The type of the column in the file. In a text file it is `text`, and the kind of the values
    /// follows from the cells.
    pub data_type: String,
    /// The number of rows that were read.
    pub rows: u64,
    /// The number of rows without a value.
    pub missing: u64,
    /// The counts of the cells with a value, by their shape.
    pub cells: Cells,
    /// The number of values in lists.
    pub items: u64,
    /// The mean length of a text, in bytes.
    pub mean_bytes: f64,
    /// The counts of text cells that hold several values between `|`, `;` or `,`.
    pub separated: [(char, Separated); 3],
    /// The number of cells that are equal to each of the markers of the profile.
    pub markers: Vec<u64>,
    /// The first text that is not a number.
    pub example: Option<String>,
    /// The first number that has separators of thousands, a currency or a unit.
    pub example_decorated: Option<String>,
    /// Whether all values are whole numbers and each is larger than the one before it.
    pub ascending: bool,
    pub(super) values: Values,
    /// All numbers of the column, or an even sample of them, in ascending order.
    pub(super) numbers: Vec<f32>,
    smallest: f64,
    largest: f64,
}

/// A value and its number of occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The value as text.
    pub value: String,
    /// The number of occurrences.
    pub count: u64,
}

/// The quantiles of the numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Numbers {
    /// The smallest of the numbers.
    pub min: f64,
    /// The number below which a quarter of the numbers lie.
    pub p25: f64,
    /// The median of the numbers.
    pub p50: f64,
    /// The number below which three quarters of the numbers lie.
    pub p75: f64,
    /// The number below which 99 % of the numbers lie.
    pub p99: f64,
    /// The largest of the numbers.
    pub max: f64,
}

impl ColumnProfile {
    pub(super) fn new(name: String, data_type: String, rows: u64, tally: Tally) -> Self {
        let Tally { missing, cells, values, numbers, smallest, largest, .. } = tally;
        let mut separators = SEPARATORS.into_iter();
        Self {
            name,
            data_type,
            rows,
            missing,
            cells,
            items: tally.items,
            mean_bytes: tally.bytes as f64 / cells.text.max(1) as f64,
            separated: tally.separated.map(|s| (separators.next().map_or('|', char::from), s)),
            markers: tally.markers,
            example: tally.example,
            example_decorated: tally.example_decorated,
            ascending: tally.ascending && cells.whole > 1 && cells.whole == rows,
            values,
            numbers: numbers.sorted(),
            smallest,
            largest,
        }
    }

    /// Returns the kind of the values: `whole`, `number`, `boolean`, `text`, `list`, `object`,
    /// `empty`, or the file's type if no feature can read it.
    pub fn kind(&self) -> &str {
        let cells = &self.cells;
        let whole = cells.whole + cells.beyond_i64;
        if cells.object > 0 {
            "object"
        } else if cells.list > 0 {
            "list"
        } else if cells.text > 0 {
            "text"
        } else if cells.fraction + cells.not_finite > 0 {
            "number"
        } else if whole > 0 && cells.boolean == 0 {
            "whole"
        } else if cells.boolean > 0 {
            if whole > 0 { "text" } else { "boolean" }
        } else if self.missing == self.rows || self.markers.iter().sum::<u64>() > 0 {
            "empty"
        } else {
            &self.data_type
        }
    }

    /// Returns the number of rows with a value.
    pub fn present(&self) -> u64 {
        self.rows - self.missing - self.markers.iter().sum::<u64>()
    }

    /// Returns the share of rows without a value.
    pub fn missing_share(&self) -> f64 {
        self.missing as f64 / self.rows.max(1) as f64
    }

    /// Returns the number of distinct values, and whether the number is exact. Up to 262,144 it is
    /// exact; above, it is an estimate with an error of about 2 %.
    pub fn distinct(&self) -> (u64, bool) {
        self.values.distinct()
    }

    /// Returns the `n` most frequent values. A value that makes up less than a 4,096th of the rows
    /// may have no text and is then left out.
    pub fn top(&self, n: usize) -> Vec<Count> {
        let shown = |(key, count)| {
            self.values.text(key).map(|text| Count { value: text.to_owned(), count })
        };
        self.values.top(n).into_iter().filter_map(shown).collect()
    }

    /// Returns the largest error of the counts of [`ColumnProfile::top`], which may be too low.
    pub fn count_error(&self) -> u64 {
        self.values.count_error
    }

    /// Returns the quantiles of the numbers, or `None` if there are no numbers. Quantiles are exact
    /// for up to 65,536 numbers, and come from an even sample of more numbers.
    pub fn numbers(&self) -> Option<Numbers> {
        Some(Numbers {
            min: self.smallest,
            p25: self.quantile(0.25)?,
            p50: self.quantile(0.5)?,
            p75: self.quantile(0.75)?,
            p99: self.quantile(0.99)?,
            max: self.largest,
        })
    }

    /// Returns the number below which the given share of the numbers lies.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let at = (share * self.numbers.len() as f64) as usize;
        let number = self.numbers.get(at.min(self.numbers.len().checked_sub(1)?))?;
        // The number is shown as it was written: 0.1, not 0.10000000149.
        number.to_string().parse().ok()
    }
}
