//! The training loss along a run, in a bounded number of points.

use serde::{Deserialize, Serialize};

/// The largest number of points of a curve.
const MOST_POINTS: usize = 256;

/// The training loss along a run. Each point covers the same number of steps; the number doubles
/// when there are too many points, so that the curve depends only on the losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossCurve {
    /// The number of steps that a point covers.
    steps: u64,
    /// The points, the earliest first.
    pub points: Vec<LossPoint>,
}

/// The mean loss of neighbouring steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossPoint {
    /// The last step of the point.
    pub step: u64,
    /// The number of rows of the steps.
    pub rows: u64,
    /// The mean loss of these rows. Each loss was computed before its row was learned from.
    pub loss: f64,
}

impl Default for LossCurve {
    fn default() -> Self {
        Self { steps: 1, points: Vec::new() }
    }
}

impl LossCurve {
    /// Adds the mean loss of the rows of a batch. A loss that is not finite is left out, because
    /// JSON has no number for it.
    pub(super) fn add(&mut self, step: u64, rows: u64, loss: f64) {
        if !loss.is_finite() || rows == 0 {
            return;
        }
        self.push(LossPoint { step, rows, loss });
        while self.points.len() > MOST_POINTS {
            self.steps = self.steps.saturating_mul(2);
            for point in std::mem::take(&mut self.points) {
                self.push(point);
            }
        }
    }

    /// Removes the points that cover steps after `step`.
    pub(super) fn rewind(&mut self, step: u64) {
        self.points.retain(|point| point.step <= step);
    }

    fn push(&mut self, point: LossPoint) {
        let steps = self.steps.max(1);
        let place = |step: u64| step.saturating_sub(1) / steps;
        match self.points.last_mut() {
            Some(last) if place(last.step) == place(point.step) => {
                let rows = last.rows + point.rows;
                let share = point.rows as f64 / rows as f64;
                last.loss += (point.loss - last.loss) * share;
                last.rows = rows;
                last.step = point.step;
            }
            _ => self.points.push(point),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_few_points_with_the_mean_of_all_losses() {
        let mut curve = LossCurve::default();
        for step in 1..=10_000u64 {
            curve.add(step, 10 + step % 3, step as f64);
        }
        curve.add(10_001, 10, f64::NAN);
        assert!((128..=MOST_POINTS).contains(&curve.points.len()), "{}", curve.points.len());
        let rows: u64 = curve.points.iter().map(|point| point.rows).sum();
        assert_eq!(rows, (1..=10_000u64).map(|step| 10 + step % 3).sum::<u64>());
        let mean = |points: &[(f64, u64)]| {
            points.iter().map(|&(loss, rows)| loss * rows as f64).sum::<f64>()
        };
        let all: Vec<_> = (1..=10_000u64).map(|step| (step as f64, 10 + step % 3)).collect();
        let kept: Vec<_> = curve.points.iter().map(|point| (point.loss, point.rows)).collect();
        assert!((mean(&all) / mean(&kept) - 1.0).abs() < 1e-9);
        assert!(curve.points.windows(2).all(|pair| pair[0].step < pair[1].step));
        curve.rewind(5_000);
        assert!(curve.points.iter().all(|point| point.step <= 5_000) && curve.points.len() > 50);
    }
}
