//! The weights of sampled negatives and of corrections.
//!
//! # Corrections
//!
//! A row that is emitted at once is a negative for each kind of feedback that has not come yet. If
//! the feedback comes later, the row is emitted again as a positive. The sum of both must teach the
//! model what the positive alone would have taught.
//!
//! Let f be the probability that the model gives to the row. The gradient of the logistic loss by
//! the log-odds is f for a negative and -(1 - f) for a positive. For a row of weight w whose
//! negative was emitted with the weight c, the correction must contribute
//!
//! ```text
//! -w (1 - f)  -  c f  =  -w' (1 - f)    with    w' = w + c f / (1 - f)
//! ```
//!
//! If c = w, then w' = w / (1 - f). This is the fake-negative weighting of Ktena et al.,
//! "Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR prediction",
//! RecSys 2019. They weight positives with 1 + f and negatives with (1 - f)(1 + f), which has the
//! same ratio, 1 / (1 - f), and differs by a common factor near 1 only.
//!
//! The joiner knows no model. So it emits w and c, and training computes w' by
//! [`correction_weight`].

use super::key::Key;

/// The largest ratio f / (1 - f) in a correction. It bounds w' where the model is almost certain.
const LARGEST_ODDS: f32 = 1e6;

/// Returns the weight with which a correction is learned: `weight + cancels × f / (1 - f)`, where
/// f is `probability`, the model's probability for the row before the update. The ratio f / (1 - f)
/// is at most 10^6. Training treats the result as a constant: no gradient goes through it.
///
/// For the row of an earlier negative, `cancels` is the weight of this negative. For a row that is
/// no correction, `cancels` is 0, and the result is `weight`.
pub fn correction_weight(weight: f32, cancels: f32, probability: f32) -> f32 {
    let odds = (probability / (1.0 - probability)).clamp(0.0, LARGEST_ODDS);
    if cancels == 0.0 { weight } else { weight + cancels * odds }
}

/// The smallest probability with which negatives may be kept. Weights of up to 10^23 stay finite
/// with it, also after a correction.
pub(crate) const SMALLEST_KEEP: f64 = 1e-9;

/// The rule that decides which negatives are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// The negatives whose bits are below this number are kept; `None` keeps all.
    threshold: Option<u64>,
    /// The factor of the weight of a kept negative.
    factor: f32,
}

impl Sampling {
    /// Creates the rule that keeps a negative with the probability `keep`.
    pub(crate) fn new(keep: f64, corrects_weight: bool) -> Self {
        let threshold = (keep < 1.0).then_some((keep * 2f64.powi(64)) as u64);
        Self { threshold, factor: if corrects_weight { (1.0 / keep) as f32 } else { 1.0 } }
    }

    /// Returns whether a row may have this weight: it is at least 0, and it is finite also after
    /// the largest factors of sampling and of a correction.
    pub(crate) fn is_usable(&self, weight: f32) -> bool {
        weight >= 0.0 && (weight + weight * self.factor * LARGEST_ODDS).is_finite()
    }

    /// Returns the weight with which a negative is emitted, or `None` if it is left out. The
    /// decision depends on the key alone, so a replay decides alike.
    pub(crate) fn negative_weight(&self, key: Key, weight: f32) -> Option<f32> {
        let is_kept = self.threshold.is_none_or(|threshold| key.sample_bits() < threshold);
        is_kept.then_some(weight * self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the gradient of the logistic loss by the log-odds.
    fn gradient(weight: f32, label: f32, f: f32) -> f32 {
        weight * (f - label)
    }

    #[test]
    fn a_correction_cancels_the_earlier_negative() {
        for f in [0.001, 0.02, 0.3, 0.5, 0.9, 0.999] {
            for (weight, cancels) in [(1.0, 1.0), (2.0, 2.0), (1.0, 4.0), (1.0, 0.0)] {
                let correction = gradient(correction_weight(weight, cancels, f), 1.0, f);
                let sum = gradient(cancels, 0.0, f) + correction;
                let positive = gradient(weight, 1.0, f);
                assert!((sum - positive).abs() <= 2e-4 * cancels.max(1.0), "{f}: {sum}");
            }
        }
    }

    #[test]
    fn a_correction_has_the_ratio_of_fake_negative_weighting() {
        for f in [0.01f32, 0.1, 0.4] {
            let published = (1.0 + f) / ((1.0 - f) * (1.0 + f));
            assert!((correction_weight(1.0, 1.0, f) - published).abs() < 1e-6);
        }
        assert_eq!(correction_weight(1.0, 1.0, 1.0), 1.0 + LARGEST_ODDS);
        assert_eq!(correction_weight(3.0, 0.0, 1.0), 3.0);
    }

    #[test]
    fn usable_weights_stay_finite() {
        let sampling = Sampling::new(SMALLEST_KEEP, true);
        assert!(sampling.factor.is_finite() && sampling.threshold.is_some_and(|t| t > 1 << 30));
        let mut largest = 1.0f32;
        while sampling.is_usable(largest * 2.0) {
            largest *= 2.0;
        }
        assert!(correction_weight(largest, largest * sampling.factor, 1.0).is_finite());
        assert!(largest > 1e23, "{largest}");
        for weight in [f32::NAN, -1.0, f32::INFINITY, f32::MAX] {
            assert!(!sampling.is_usable(weight), "{weight}");
            assert!(!Sampling::new(1.0, true).is_usable(weight), "{weight}");
        }
        assert!(Sampling::new(1.0, true).is_usable(1e32));
    }

    #[test]
    fn sampling_keeps_the_expected_weight() {
        let sampling = Sampling::new(0.1, true);
        let kept = (0..100_000u32)
            .filter_map(|number| sampling.negative_weight(Key::of(&number.to_le_bytes()), 2.0));
        let (mut count, mut sum) = (0u32, 0.0);
        for weight in kept {
            count += 1;
            sum += f64::from(weight);
        }
        // Four standard errors of a binomial distribution.
        assert!((9_620..10_380).contains(&count), "{count}");
        assert!((sum / 200_000.0 - 1.0).abs() < 0.04, "{sum}");
        let shifted = Sampling::new(0.1, false);
        for number in 0..1_000u32 {
            let key = Key::of(&number.to_le_bytes());
            let weight = shifted.negative_weight(key, 2.0);
            assert_eq!(weight.is_some(), sampling.negative_weight(key, 2.0).is_some());
            assert!(weight.is_none_or(|weight| weight == 2.0));
            assert_eq!(Sampling::new(1.0, true).negative_weight(key, 2.0), Some(2.0));
        }
    }
}
