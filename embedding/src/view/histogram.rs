//! A histogram of one figure of the rows of a table. It takes two passes over the mapped files. The
//! first pass finds the range of the figure, and the second pass counts rows.
//!
//! Numbers of pushes and ages vary over many orders of magnitude, so their bins become wider as the
//! value grows. Steps and norms have bins of equal width. Bins of whole numbers begin at whole
//! numbers. So every row is in exactly one bin, and rows can have the values at the bounds of a
//! bin.

use serde::Serialize;
use zillion_device::Workers;

use crate::view::{RowView, TableView, view};

/// The figure of the rows that a histogram counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The number of pushes of the row.
    Count,
    /// The step of the last push.
    LastStep,
    /// The L2 norm of the weights.
    Norm,
    /// The number of steps since the last push.
    Age,
}

/// A histogram of a table's rows by one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// The name of the table.
    pub table: String,
    /// The figure that the histogram counts.
    pub of: Measure,
    /// The number of rows in all bins together.
    pub rows: u64,
    /// The bins in ascending order, without gaps. The first and the last bin have at least one row.
    /// There are no bins if the table has no rows.
    pub bins: Vec<Range>,
}

/// A bin of a histogram: a range of values, and the number of rows whose figure lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The smallest value of the bin.
    pub from: f64,
    /// The largest value of the bin. For norms, it is the beginning of the next bin.
    pub to: f64,
    /// The number of rows whose figure lies in the bin.
    pub rows: u64,
}

impl TableView {
    /// Returns the histogram of a figure of the rows, with at most `bins` bins. There are fewer
    /// bins if the figure has fewer different values. The age of a row is the number of steps from
    /// its last push to `step`.
    pub fn histogram(&self, workers: &Workers, of: Measure, bins: usize, step: u64) -> Histogram {
        let value = |row: &RowView<'_>| value(row, of, step);
        let ends = workers.map(self.parts.len(), |i| {
            let part = &self.parts[i];
            let values = (0..part.len()).map(|row| value(&view(part, row)));
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
                (low.min(x), high.max(x))
            })
        });
        let low = ends.iter().map(|e| e.0).fold(f64::INFINITY, f64::min);
        let high = ends.iter().map(|e| e.1).fold(f64::NEG_INFINITY, f64::max);
        let starts = if low <= high { starts(of, low, high, bins.max(1)) } else { Vec::new() };
        let counted = workers.map(self.parts.len(), |i| {
            let part = &self.parts[i];
            let mut counts = vec![0u64; starts.len()];
            for row in 0..part.len() {
                let x = value(&view(part, row));
                // The first start is the smallest value, so at least one start is not above `x`.
                let bin = starts.partition_point(|&start| start <= x);
                if let Some(count) = counts.get_mut(bin.saturating_sub(1)) {
                    *count += 1;
                }
            }
            counts
        });
        let bin = |i: usize| Range {
            from: starts[i],
            to: match (starts.get(i + 1), of) {
                (None, _) => high,
                (Some(&next), Measure::Norm) => next,
                (Some(&next), _) => next - 1.0,
            },
            rows: counted.iter().map(|counts| counts[i]).sum(),
        };
        Histogram {
            table: self.shape.name().to_owned(),
            of,
            rows: self.rows(),
            bins: (0..starts.len()).map(bin).collect(),
        }
    }
}

fn value(row: &RowView<'_>, of: Measure, step: u64) -> f64 {
    match of {
        Measure::Count => row.count.into(),
        Measure::LastStep => row.last_step.into(),
        Measure::Norm => row.norm().into(),
        Measure::Age => step.saturating_sub(row.last_step.into()) as f64,
    }
}

/// Returns the beginnings of the bins in ascending order, without duplicates. The first beginning
/// is `low`, and no beginning is above `high`.
fn starts(of: Measure, low: f64, high: f64, bins: usize) -> Vec<f64> {
    let widens = matches!(of, Measure::Count | Measure::Age);
    let to = |x: f64| if widens { x.ln_1p() } else { x };
    let back = |x: f64| if widens { x.exp_m1() } else { x };
    // The interval after the last whole number belongs to that number.
    let whole = of != Measure::Norm;
    let end = if whole { high + 1.0 } else { high };
    let width = (to(end) - to(low)) / bins as f64;
    let start = |bin: usize| {
        let x = back(to(low) + width * bin as f64);
        if whole { x.ceil() } else { x }
    };
    let mut starts = vec![low];
    starts.extend((1..bins).map(start).filter(|&x| x > low && x <= high));
    starts.dedup();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_begin_at_whole_numbers_and_cover_the_range() {
        assert_eq!(starts(Measure::LastStep, 0.0, 9.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        // If there are fewer values than bins, each value has one bin.
        assert_eq!(starts(Measure::LastStep, 3.0, 5.0, 50), [3.0, 4.0, 5.0]);
        assert_eq!(starts(Measure::Age, 7.0, 7.0, 10), [7.0]);
        assert_eq!(starts(Measure::Norm, 1.0, 2.0, 2), [1.0, 1.5]);
        assert_eq!(starts(Measure::Norm, 1.0, 1.0, 4), [1.0]);
        let wide = starts(Measure::Count, 1.0, 1e6, 20);
        assert!(wide.is_sorted_by(|a, b| a < b) && wide.len() > 15, "{wide:?}");
        let widths: Vec<f64> = wide.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(widths.is_sorted(), "{widths:?}");
    }
}
