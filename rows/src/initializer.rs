//! The initial weights of rows, which are pure functions of the table's seed, the segment, the key
//! and the position in the segment.
//!
//! Three readers get the same numbers, on every machine and in any order: a pull of a key without a
//! row, the push that then creates the row, and a server that reads an unknown key.

use serde::{Deserialize, Serialize};
use zillion_device::simd::{math, vectorised};
use zillion_feature::FeatureKey;
use zillion_feature::random::{combine, mix64, text_seed, unit_f32};

use crate::spec::Bounds;

/// The distribution of the weights of a new row. In a job file:
/// `initializer = { kind = "normal", std = 0.01 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum InitializerSpec {
    /// A uniform distribution over `[low, high)`.
    Uniform {
        /// The smallest weight of the distribution.
        low: f32,
        /// The exclusive upper bound of the weights.
        high: f32,
    },
    /// A normal distribution (Box, Muller 1958; one uniform pair per weight).
    Normal {
        /// The mean of the distribution.
        #[serde(default)]
        mean: f32,
        /// The standard deviation of the distribution.
        std: f32,
    },
    /// A normal distribution that is truncated at two standard deviations, drawn by inversion. As
    /// in TensorFlow, `std` is the standard deviation before the truncation. The truncated
    /// distribution has a standard deviation of `0.88 * std`.
    TruncatedNormal {
        /// The mean of the distribution.
        #[serde(default)]
        mean: f32,
        /// The standard deviation before the truncation.
        std: f32,
    },
    /// The same value for every weight.
    Constant {
        /// The value of every weight.
        value: f32,
    },
}

impl InitializerSpec {
    /// Returns the key and the allowed values of the first setting that is out of range, or `None`
    /// if all settings are valid.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        match *self {
            Self::Uniform { low, .. } if !low.is_finite() => Some(("low", "must be finite")),
            Self::Uniform { low, high } if !(high.is_finite() && high >= low) => {
                Some(("high", "must be finite and not below `low`"))
            }
            Self::Normal { mean, .. } | Self::TruncatedNormal { mean, .. } if !mean.is_finite() => {
                Some(("mean", "must be finite"))
            }
            Self::Normal { std, .. } | Self::TruncatedNormal { std, .. }
                if !(std.is_finite() && std >= 0.0) =>
            {
                Some(("std", "must be zero or a positive number"))
            }
            Self::Constant { value } if !value.is_finite() => Some(("value", "must be finite")),
            _ => None,
        }
    }
}

/// The generator of the initial weights of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initializer {
    spec: InitializerSpec,
    seed: u64,
    bounds: Option<Bounds>,
}

/// The odd constant of the generator splitmix64. The weights of a row are consecutive draws of this
/// generator.
const UNIT_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The number of weights that are drawn together, which is the number of floats in the widest
/// vector register.
const TOGETHER: usize = 16;
/// The probability that a normal draw lies within two standard deviations: erf(2 / sqrt(2)).
const WITHIN_TWO_SIGMA: f32 = 0.954_499_7;

impl Initializer {
    /// Creates the initializer of a segment. Its random numbers depend on the segment's name, so a
    /// new segment does not change the weights of the other segments.
    pub(crate) fn new(spec: InitializerSpec, table_seed: u64, segment: &str) -> Self {
        Self { spec, seed: text_seed(table_seed, segment), bounds: None }
    }

    /// Returns the same initializer with all weights clamped to the bounds.
    pub(crate) fn within(self, bounds: Option<Bounds>) -> Self {
        Self { bounds, ..self }
    }

    /// Writes the initial weights of the segment for `key`.
    pub(crate) fn fill(&self, key: FeatureKey, weights: &mut [f32]) {
        let row_seed = combine(self.seed, key.0);
        match self.spec {
            InitializerSpec::Uniform { low, high } => {
                let width = high - low;
                draw(
                    weights,
                    row_seed,
                    #[inline(always)]
                    move |bits| {
                        // The rounded product may be equal to `high`.
                        let x = low + width * unit_f32(bits as u32);
                        if x < high || width == 0.0 { x } else { low }
                    },
                );
            }
            InitializerSpec::Normal { mean, std } => {
                draw(
                    weights,
                    row_seed,
                    #[inline(always)]
                    move |bits| mean + std * standard_normal(bits),
                );
            }
            InitializerSpec::TruncatedNormal { mean, std } => {
                draw(
                    weights,
                    row_seed,
                    #[inline(always)]
                    move |bits| mean + std * standard_truncated_normal(bits),
                );
            }
            InitializerSpec::Constant { value } => weights.fill(value),
        }
        if let Some(bounds) = self.bounds {
            weights.iter_mut().for_each(|weight| *weight = bounds.hold(*weight));
        }
    }
}

/// Computes each weight from 64 random bits with the function `f`. The random bits depend on
/// `row_seed` and on the position of the weight.
#[inline(always)]
fn draw(weights: &mut [f32], row_seed: u64, f: impl Fn(u64) -> f32) {
    vectorised(
        #[inline(always)]
        || {
            // A loop of known length draws as many weights as a vector register holds, even if
            // fewer are wanted. Rows are short, and a loop of any length spends two or three times
            // as long on its scalar rest.
            let (whole, rest) = weights.as_chunks_mut::<TOGETHER>();
            let mut seed = row_seed;
            for weights in whole {
                units(weights, seed, &f);
                seed = seed.wrapping_add((TOGETHER as u64).wrapping_mul(UNIT_STEP));
            }
            match rest {
                [] => {}
                [_] => units(rest, seed, &f),
                _ => {
                    let mut drawn = [0.0; TOGETHER];
                    units(&mut drawn, seed, &f);
                    rest.copy_from_slice(&drawn[..rest.len()]);
                }
            }
        },
    );
}

/// Draws consecutive weights of a row. `seed` is the counter of the random generator for the first
/// weight.
#[inline(always)]
fn units(weights: &mut [f32], seed: u64, f: &impl Fn(u64) -> f32) {
    for (unit, weight) in weights.iter_mut().enumerate() {
        *weight = f(mix64(seed.wrapping_add((unit as u64).wrapping_mul(UNIT_STEP))));
    }
}

#[inline(always)]
fn standard_normal(bits: u64) -> f32 {
    // The draws are in (0, 1], so that the logarithm is finite.
    let radius = 1.0 - unit_f32((bits >> 32) as u32);
    let (_, cosine) = math::sin_cos_2pi(unit_f32(bits as u32));
    (-2.0 * math::ln(radius)).max(0.0).sqrt() * cosine
}

#[inline(always)]
fn standard_truncated_normal(bits: u64) -> f32 {
    // The draw is the middle of a cell of 2^-24, mapped to (-1, 1). So the draws are symmetric and
    // never at the ends.
    let centred = 2.0 * unit_f32((bits >> 32) as u32) - (1.0 - 1.0 / 16_777_216.0);
    std::f32::consts::SQRT_2 * math::erf_inv(centred * WITHIN_TWO_SIGMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u64 = 20_000;
    const DIM: usize = 16;

    fn sample(spec: InitializerSpec) -> Vec<f64> {
        let initializer = Initializer::new(spec, 7, "vector");
        let mut values = Vec::new();
        let mut row = [0.0f32; DIM];
        for id in 0..N {
            initializer.fill(FeatureKey::from_u64(id), &mut row);
            values.extend(row.iter().map(|&x| f64::from(x)));
        }
        values
    }

    fn mean_and_std(values: &[f64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        (mean, (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
    }

    /// Returns the Kolmogorov-Smirnov distance between a sample and a distribution, in units of
    /// 1/sqrt(n).
    fn distance(mut values: Vec<f64>, cumulative: impl Fn(f64) -> f64) -> f64 {
        values.sort_unstable_by(f64::total_cmp);
        let n = values.len() as f64;
        let largest = values
            .iter()
            .enumerate()
            .map(|(i, &x)| {
                let expected = cumulative(x);
                (expected - i as f64 / n).abs().max((expected - (i + 1) as f64 / n).abs())
            })
            .fold(0.0, f64::max);
        largest * n.sqrt()
    }

    /// Returns the cumulative distribution function of the standard normal distribution at `x`,
    /// computed by Simpson's rule to twelve digits.
    fn normal_cumulative(x: f64) -> f64 {
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let x = x.clamp(-8.0, 8.0);
        let (steps, h) = (400, x / 400.0);
        let sum: f64 = (0..=steps)
            .map(|i| {
                let weight = if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
                weight * density(f64::from(i) * h)
            })
            .sum();
        0.5 + sum * h / 3.0
    }

    /// The largest allowed Kolmogorov-Smirnov distance: the 0.1 % point of the Kolmogorov
    /// distribution. The draws of the tests are fixed, so their results never vary.
    const KS_LIMIT: f64 = 1.95;

    #[test]
    fn uniform_rows_are_uniform() {
        let values = sample(InitializerSpec::Uniform { low: -0.5, high: 1.5 });
        assert!(values.iter().all(|&x| (-0.5..1.5).contains(&x)));
        let (mean, std) = mean_and_std(&values);
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!((std - 2.0 / 12f64.sqrt()).abs() < 0.005, "{std}");
        assert!(distance(values, |x| (x + 0.5) / 2.0) < KS_LIMIT);
    }

    #[test]
    fn normal_rows_are_normal() {
        let values = sample(InitializerSpec::Normal { mean: 0.25, std: 2.0 });
        let (mean, std) = mean_and_std(&values);
        assert!((mean - 0.25).abs() < 0.015, "{mean}");
        assert!((std - 2.0).abs() < 0.01, "{std}");
        assert!(distance(values, |x| normal_cumulative((x - 0.25) / 2.0)) < KS_LIMIT);
    }

    #[test]
    fn truncated_rows_are_a_normal_distribution_without_its_tails() {
        let values = sample(InitializerSpec::TruncatedNormal { mean: 1.0, std: 0.5 });
        assert!(values.iter().all(|x| (x - 1.0).abs() <= 1.0));
        let (mean, std) = mean_and_std(&values);
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((std - 0.5 * 0.879_626).abs() < 0.003, "{std}");
        let inside = normal_cumulative(2.0) - normal_cumulative(-2.0);
        let cumulative =
            |x: f64| (normal_cumulative((x - 1.0) / 0.5) - normal_cumulative(-2.0)) / inside;
        assert!(distance(values, cumulative) < KS_LIMIT);
    }

    #[test]
    fn constant_rows_are_constant() {
        assert!(sample(InitializerSpec::Constant { value: 0.5 }).iter().all(|&x| x == 0.5));
    }

    #[test]
    fn units_and_neighbouring_keys_are_uncorrelated() {
        let values = sample(InitializerSpec::Normal { mean: 0.0, std: 1.0 });
        for lag in [1, 2, DIM - 1, DIM, DIM + 1] {
            let pairs = values.len() - lag;
            let product: f64 = (0..pairs).map(|i| values[i] * values[i + lag]).sum();
            let correlation = product / pairs as f64;
            assert!(correlation.abs() < 4.0 / (pairs as f64).sqrt(), "lag {lag}: {correlation}");
        }
    }

    #[test]
    fn a_shorter_row_is_a_prefix_and_segments_differ() {
        let spec = InitializerSpec::Normal { mean: 0.0, std: 1.0 };
        let (mut long, mut short, mut other) = ([0.0; 19], [0.0; 5], [0.0; 5]);
        let key = FeatureKey(u64::MAX);
        Initializer::new(spec, 3, "a").fill(key, &mut long);
        Initializer::new(spec, 3, "a").fill(key, &mut short);
        Initializer::new(spec, 3, "b").fill(key, &mut other);
        assert_eq!(long[..5], short);
        assert_ne!(short, other);
    }

    #[test]
    fn draws_agree_with_the_formulas_in_double_precision() {
        for i in 0..5_000 {
            let bits = mix64(i);
            let uniform = |bits: u32| f64::from(bits >> 8) / 16_777_216.0;
            let (high, low) = (uniform((bits >> 32) as u32), uniform(bits as u32));
            let normal =
                (-2.0 * (1.0 - high).ln()).sqrt() * (2.0 * std::f64::consts::PI * low).cos();
            assert!((f64::from(standard_normal(bits)) - normal).abs() < 2e-6, "{bits}");
            let truncated = f64::from(standard_truncated_normal(bits));
            let (below, inside) = (normal_cumulative(-2.0), 1.0 - 2.0 * normal_cumulative(-2.0));
            let back = (normal_cumulative(truncated) - below) / inside;
            assert!((back - high).abs() < 1e-6, "{back} {high}");
        }
    }

    /// Checks the initial weights against fixed values. Resumed runs depend on these bits, and so
    /// do the rows of unknown keys in every version.
    #[test]
    fn golden_vectors_pin_the_initial_rows() {
        let first = |spec| {
            let mut row = [0.0f32; 3];
            Initializer::new(spec, 42, "vector").fill(FeatureKey::from_u64(1), &mut row);
            row.map(f32::to_bits)
        };
        assert_eq!(first(InitializerSpec::Uniform { low: -1.0, high: 1.0 }), UNIFORM);
        assert_eq!(first(InitializerSpec::Normal { mean: 0.0, std: 1.0 }), NORMAL);
        assert_eq!(first(InitializerSpec::TruncatedNormal { mean: 0.0, std: 1.0 }), TRUNCATED);
    }

    const UNIFORM: [u32; 3] = [0xbf14f082, 0x3d24cb80, 0x3dfd1390];
    const NORMAL: [u32; 3] = [0x3df29547, 0xbfe963f4, 0xbfb53238];
    const TRUNCATED: [u32; 3] = [0xbf95c51a, 0x3f585a25, 0x3ef0b469];
}
