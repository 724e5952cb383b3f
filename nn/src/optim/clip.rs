//! Clipping by the global norm.

/// What gradients of this norm are multiplied by so that it is at most `max`:
/// `min(1, max / (norm + 1e-6))`, as PyTorch's `clip_grad_norm_` has it.
///
/// A norm that is not a number gives NaN, which [`DenseOptimizer::step`](super::DenseOptimizer::step)
/// refuses: such a step must be dropped and counted, not scaled. (An infinite norm gives 0, by the
/// formula; check the norm, not the scale.)
#[must_use]
pub fn clip_scale(norm: f64, max: f64) -> f32 {
    if norm.is_nan() {
        return f32::NAN;
    }
    (max / (norm + 1e-6)).min(1.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_as_torch_does() {
        assert_eq!(clip_scale(5.0, 10.0), 1.0);
        assert_eq!(clip_scale(0.0, 10.0), 1.0);
        assert_eq!(clip_scale(20.0, 10.0), (10.0 / 20.000_001) as f32);
        assert_eq!(clip_scale(f64::INFINITY, 10.0), 0.0);
        assert!(clip_scale(f64::NAN, 10.0).is_nan());
    }
}
