//! The alternating turns of a comparison. The turns are needed because the speed of the machine
//! changes. If the two sides were measured one after the other, such a change would distort the
//! comparison.

use std::time::Duration;

/// The length of a turn.
pub(crate) const TURN: Duration = Duration::from_millis(250);

/// Returns the upper median of the ratios of all turns. There must be at least one ratio.
pub(crate) fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
