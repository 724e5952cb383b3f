//! The state of a trainer between two meetings with the other trainers.

use super::meetings::Meetings;

/// The state of a trainer that trains at its own speed.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// The number of pushes of this trainer since the generation began.
    pub(super) pushes: u64,
    /// The push after which all trainers stop; 0 if no trainer wants to stop.
    pub(super) stop_at: u64,
    /// The sum of the losses of this trainer's rows since the trainers met last.
    pub(super) loss_sum: f64,
    /// The step from which on the sum of the losses is not finite; 0 if it is finite.
    pub(super) lost_at: u64,
    /// The dense parameters at the beginning of the changes that the next push holds.
    pub(super) before: Vec<f32>,
    /// The meetings with the other trainers.
    pub(super) meetings: Meetings,
}

impl Apart {
    /// Adds the mean loss of a batch of `rows` rows, with which this trainer has made a step.
    pub(super) fn add_loss(&mut self, step: u64, loss: f64, rows: usize) {
        self.loss_sum += loss * rows as f64;
        if !self.loss_sum.is_finite() && self.lost_at == 0 {
            self.lost_at = step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_without_a_finite_loss_is_kept() {
        let mut apart = Apart::default();
        apart.add_loss(3, 0.5, 10);
        assert_eq!((apart.loss_sum, apart.lost_at), (5.0, 0));
        apart.add_loss(5, f64::INFINITY, 10);
        apart.add_loss(7, f64::NAN, 10);
        assert!(!apart.loss_sum.is_finite() && apart.lost_at == 5, "{apart:?}");
    }
}
