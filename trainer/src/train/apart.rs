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
    /// The dense parameters at the beginning of the changes that the next push holds.
    pub(super) before: Vec<f32>,
    /// The meetings with the other trainers.
    pub(super) meetings: Meetings,
}
