//! The alternating turns of a comparison. If the two things that are compared were measured one
//! after the other instead, a change in the speed of the machine would distort the comparison.

use std::time::Duration;

/// The length of a turn.
pub(crate) const TURN: Duration = Duration::from_millis(250);

/// Returns the upper median of the ratios of the turns. There must be at least one ratio.
pub(crate) fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
