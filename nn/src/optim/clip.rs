//! Clipping of gradients by their global norm.

/// Returns the factor that reduces the norm of the gradients to `max`: `min(1, max / (norm +
/// 1e-6))`, as in PyTorch's `clip_grad_norm_`.
///
/// If the norm is not finite, the result is NaN, and
/// [`DenseOptimizer::step`](super::DenseOptimizer::step) refuses it. The caller must then drop the
/// step and count it. (For an infinite norm, the formula would give 0. The product of 0 and an
/// infinite gradient would write NaN into the weights.)
#[must_use]
pub fn clip_scale(norm: f64, max: f64) -> f32 {
    if !norm.is_finite() {
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
        assert!(clip_scale(f64::INFINITY, 10.0).is_nan());
        assert!(clip_scale(f64::NAN, 10.0).is_nan());
    }
}
