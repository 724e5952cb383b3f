//! The profile of one column.

use serde::Serialize;

use super::tally::{Cells, Kept, SEPARATORS, Separated, Tally};
use super::times::Times;
use super::values::Values;

/// The summary of the values in one column.
#[derive(Debug)]
pub struct ColumnProfile {
    /// The name of the column.
    pub name: String,
    /// The type that the file declares for the column. In a CSV or TSV file it is `text`, and the
    /// counts of the cells determine the kind of the values.
    pub data_type: String,
    /// The number of rows that were read.
    pub rows: u64,
    /// The number of rows without a value.
    pub missing: u64,
    /// The numbers of cells with a value, by the shape of the value.
    pub cells: Cells,
    /// The number of values in all lists.
    pub items: u64,
    /// The smallest and the largest number of values in a list, or `None` if there are no lists.
    pub list_lengths: Option<(usize, usize)>,
    /// The mean number of bytes of a text.
    pub mean_bytes: f64,
    /// The counts of text cells with several values, for each of the separators `|`, `;` and `,`.
    pub separated: [(char, Separated); 3],
    /// The number of cells that are equal to each marker of the profile.
    pub markers: Vec<u64>,
    /// The first text that is not a number, or `None` if there is no such text.
    pub example: Option<String>,
    /// The first number with thousands separators, a currency or a unit, or `None` if there is no
    /// such number.
    pub example_decorated: Option<String>,
    /// The counts of the values that are times.
    pub times: Times,
    /// Whether all values are whole numbers and each is larger than the previous one.
    pub ascending: bool,
    /// The values of the first rows, as many as the profile was to keep.
    pub(crate) kept: Vec<Kept>,
    pub(super) values: Values,
    /// All numbers of the column or a uniform sample of them, in ascending order.
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
    /// The first quartile of the numbers.
    pub p25: f64,
    /// The median of the numbers.
    pub p50: f64,
    /// The third quartile of the numbers.
    pub p75: f64,
    /// The 99th percentile of the numbers.
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
            list_lengths: tally.list_lengths,
            mean_bytes: tally.bytes as f64 / cells.text.max(1) as f64,
            separated: tally.separated.map(|s| (separators.next().map_or('|', char::from), s)),
            markers: tally.markers,
            example: tally.example,
            example_decorated: tally.example_decorated,
            times: tally.times,
            ascending: tally.ascending && cells.whole > 1 && cells.whole == rows,
            kept: tally.kept,
            values,
            numbers: numbers.sorted(),
            smallest,
            largest,
        }
    }

    /// Returns the kind of the values: `whole`, `number`, `boolean`, `text`, `list`, `object` or
    /// `empty`. If no feature can read the column, returns the type that the file declares.
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

    /// Returns the share of the rows without a value, from 0 to 1.
    pub fn missing_share(&self) -> f64 {
        self.missing as f64 / self.rows.max(1) as f64
    }

    /// Returns the number of distinct values, and whether this number is exact. It is exact up to
    /// 262,144; a larger number is an estimate with an error of about 2 %.
    pub fn distinct(&self) -> (u64, bool) {
        self.values.distinct()
    }

    /// Returns the `n` most frequent values. Only a value that occurs in less than 1/4096 of the
    /// rows may have no text. A value without a text is left out.
    pub fn top(&self, n: usize) -> Vec<Count> {
        let shown = |(key, count)| {
            self.values.text(key).map(|text| Count { value: text.to_owned(), count })
        };
        self.values.top(n).into_iter().filter_map(shown).collect()
    }

    /// Returns the largest error of the counts in [`ColumnProfile::top`]. A count may be too low by
    /// this number, and is never too high.
    pub fn count_error(&self) -> u64 {
        self.values.count_error
    }

    /// Returns a bound that divides the numbers in two: the smallest number that at most the share
    /// `most` of the numbers reach, or the largest number if more of them are equal to it. Returns
    /// `None` if all numbers are equal.
    pub(crate) fn bound_of_share(&self, most: f64) -> Option<f64> {
        let n = self.numbers.len();
        let mut bounds = Vec::new();
        for (at, pair) in self.numbers.windows(2).enumerate() {
            if pair[0] < pair[1] {
                bounds.push(((n - at - 1) as f64 / n as f64, pair[1]));
            }
        }
        let fitting = bounds.iter().find(|(share, _)| *share <= most).or(bounds.last());
        fitting.and_then(|(_, bound)| bound.to_string().parse().ok())
    }

    /// Returns the share of the numbers that are at least `bound`, from 0 to 1.
    pub(crate) fn share_from(&self, bound: f64) -> f64 {
        let below = self.numbers.partition_point(|&x| x < bound as f32);
        1.0 - below as f64 / self.numbers.len().max(1) as f64
    }

    /// Returns the quantiles of the numbers, or `None` if the column has no numbers. The quantiles
    /// are exact for up to 65,536 numbers; for more numbers, they come from a uniform sample.
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

    /// Returns the quantile of the numbers at `share`, from 0 to 1, or `None` if there are no
    /// numbers.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let at = (share * self.numbers.len() as f64) as usize;
        let number = self.numbers.get(at.min(self.numbers.len().checked_sub(1)?))?;
        // The number is shown in its shortest form: 0.1, and not 0.10000000149.
        number.to_string().parse().ok()
    }
}
