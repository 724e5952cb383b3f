//! What is compared takes turns: one measured behind the other would also compare the machine then with the machine now.

use std::time::Duration;

/// How long a turn is.
pub(crate) const TURN: Duration = Duration::from_millis(250);

/// The upper median of the turns' ratios; there is at least one.
pub(crate) fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
