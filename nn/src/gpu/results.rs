//! The scalars and the results of a whole step on the device.

use bytemuck::{Pod, Zeroable};

use crate::ops::StepSeed;

/// The number of batches whose copies to the device may not have run yet.
pub(crate) const BATCHES: usize = 3;

/// The number of steps whose results may not have been read yet.
pub(crate) const RESULTS: usize = 8;

/// The numbers of a step that do not come from its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// The seed of the step's random bits.
    pub seed: StepSeed,
    /// The factor of the learning rates of dense parameters.
    pub rate_scale: f32,
    /// The largest norm of all gradients together, if the job clips gradients.
    pub clip_norm: Option<f64>,
}

/// The number of a step of an executor, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Returns the number of steps that were enqueued before.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResults {
    /// The number of the step.
    pub ticket: Ticket,
    /// The loss of the batch.
    pub loss: f32,
    /// The squared norm of the dense gradients, with the regulariser.
    pub dense_sq_norm: f64,
    /// Whether the step changed nothing, because the norm of its gradients is not finite.
    pub is_skipped: bool,
}

/// The state on which the recorded graph of a step depends, besides the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepKey {
    pub(crate) generation: u64,
    pub(crate) clip_norm: Option<u64>,
}

/// The numbers of a step on the device, which the host downloads together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Record {
    pub(crate) dense_sq_norm: f64,
    pub(crate) rows_sq_norm: f64,
    /// The factor of the gradients.
    pub(crate) scale: f32,
    /// 1 if the step is skipped.
    pub(crate) skip: u32,
    pub(crate) loss: f32,
    /// The number of steps that were skipped.
    pub(crate) skips: u32,
}
