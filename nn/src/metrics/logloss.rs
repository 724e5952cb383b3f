//! The logistic loss (binary cross-entropy) of a row.

/// The distance from 0 and 1 to which probabilities are clipped, as in the published click-through
/// benchmarks.
pub(super) const PROBABILITY_CLIP: f64 = 1e-7;

#[inline]
pub(super) fn loss_of_probability(probability: f32, label: f32) -> f64 {
    let probability = f64::from(probability).clamp(PROBABILITY_CLIP, 1.0 - PROBABILITY_CLIP);
    if label == 1.0 { -probability.ln() } else { -(-probability).ln_1p() }
}

#[inline]
pub(super) fn loss_of_logit(logit: f32, label: f32) -> f64 {
    // The loss of a positive row is softplus(-z). The sign is applied first, so that no precision
    // is lost.
    let z = if label == 1.0 { -f64::from(logit) } else { f64::from(logit) };
    z.max(0.0) + (-z.abs()).exp().ln_1p()
}
