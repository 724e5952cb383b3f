//! The optimizers of dense parameters. The module contains one file for each rule, the global norm
//! of the gradients and its clipping, the schedules by steps and by validation, and the storage of
//! the state in a checkpoint.
//!
//! The formulas are PyTorch's, because published results were trained with them. The regulariser is
//! part of the gradient: `λ·w` is added before the norm is computed and clipped. This equals the
//! gradient of a loss term `(λ/2)·|w|²`. The regulariser is not a decoupled weight decay.
//!
//! A training step with clipping is
//!
//! ```text
//! norm  = sqrt(optimizer.sq_norm(params, grads) + rows' own)     f64, fixed order
//! scale = clip_scale(norm, max)
//! optimizer.step(params, grads, plateau.rate_scale(), scale)
//! ```
//!
//! Results do not depend on the number of threads: work is cut into blocks of fixed size, and the
//! sums of the blocks are added in the order of blocks.

mod adagrad;
mod adam;
mod average;
mod checkpoint;
mod clip;
mod dense;
mod device;
mod ftrl;
mod lamb;
mod momentum;
mod plateau;
mod rule;
mod schedule;
mod sgd;
mod shaping;
mod spec;
mod tensors;

pub use average::{Average, AverageSpec, read_scoring_params};
pub use checkpoint::{write_dense, write_dense_with};
pub use clip::clip_scale;
pub use dense::DenseOptimizer;
pub(crate) use device::{DEVICE_BLOCK, check_factors};
pub use plateau::{Plateau, PlateauMetric, PlateauSpec, Verdict};
pub use schedule::{Decay, ScheduleSpec};
pub use spec::DenseOptimizerSpec;
pub use tensors::read_params;

#[cfg(test)]
mod tests;
