//! Turns of a comparison. The candidates are measured alternately: measured one after the other,
//! the comparison would also compare the machine then with the machine now.

use std::time::Duration;

/// The length of a turn.
pub(crate) const TURN: Duration = Duration::from_millis(250);

/// Returns the upper median of the turns' ratios; there is at least one.
pub(crate) fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
