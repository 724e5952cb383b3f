//! Elementary functions of f32 as polynomials without branches. LLVM vectorises a loop around them.
//! They give the same bits at every [`Level`](super::Level), because they call no libm and use no
//! fused operations.
//!
//! Each function supports every input, including infinities and subnormal numbers. A NaN gives a
//! NaN, whose payload is not fixed. The accuracy is given in units in the last place (ulp) of the
//! exact result, and is tested against f64. The methods and coefficients are from Moshier's Cephes
//! library unless a function names another source.

#![expect(clippy::excessive_precision, reason = "coefficients as their sources give them")]

use std::f32::consts::LOG2_E;

/// The constant 1.5 * 2^23. Adding this constant to a number rounds it to the nearest integer, with
/// ties to even, and the low bits of the sum hold this integer. Subtracting the constant then gives
/// the rounded number.
const ROUND: f32 = 12_582_912.0;
/// The high part of ln 2, which has nine significant bits, so that its product with an exponent is
/// exact.
const LN_2_HIGH: f32 = 0.693_359_375;
/// The low part of ln 2: the difference between ln 2 and its high part.
const LN_2_LOW: f32 = -2.121_944_400_546_905_8e-4;

/// Returns `if condition { yes } else { no }` as one select instruction.
#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// Returns 2 to the power of `exponent`, which must lie in -126..=127.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Returns e to the power of `x`, within 1 ulp. Subnormal results are rounded once.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these bounds, the result is infinite or zero in any case. A NaN is unchanged by both
    // comparisons.
    let x = select(x < -104.0, -104.0, x);
    let x = select(x > 89.0, 89.0, x);
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 0.166_666_654_59;
    p = p * r + 0.500_000_012_01;
    let value = p * (r * r) + r + 1.0;
    // Two factors are needed, because one factor cannot reach 2^128 or 2^-150. The first product is
    // exact.
    let half = exponent >> 1;
    value * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// Returns the natural logarithm of `x`, within 1 ulp. The result is -inf for zero, and NaN for
/// numbers below zero.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // A subnormal is scaled to a normal number first.
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = select(subnormal, x * 8_388_608.0, x);
    let correction = select(subnormal, -23.0, 0.0);
    // The mantissa is moved to [sqrt(1/2), sqrt(2)), where the polynomial in m - 1 is accurate.
    let bits = scaled.to_bits() as i32;
    let exponent = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32);
    let exponent = exponent as f32 + correction;
    let r = mantissa - 1.0;
    let square = r * r;
    let mut p = 7.037_683_629_2e-2;
    p = p * r - 0.115_146_103_10;
    p = p * r + 0.116_769_987_40;
    p = p * r - 0.124_201_408_46;
    p = p * r + 0.142_493_227_87;
    p = p * r - 0.166_680_576_65;
    p = p * r + 0.200_007_147_65;
    p = p * r - 0.249_999_939_93;
    p = p * r + 0.333_333_311_74;
    let tail = p * r * square + exponent * LN_2_LOW - 0.5 * square;
    let value = tail + r + exponent * LN_2_HIGH;
    let value = select(x == 0.0, f32::NEG_INFINITY, value);
    let value = select(x < 0.0, f32::NAN, value);
    // The logarithm of infinity is infinity, and the logarithm of a NaN is a NaN.
    select(x < f32::INFINITY, value, x + x)
}

/// Returns ln(1 + x), within 2 ulp even for tiny `x`. The result is -inf for -1, and NaN for
/// numbers below -1.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The first-order term adds what the rounding of 1 + x has lost.
    let lost = select(x > 1.0, 1.0 - (sum - x), x - (sum - 1.0));
    let value = ln(sum) + lost / sum;
    let regular = sum > 0.0 && sum < f32::INFINITY;
    select(regular, value, ln(sum))
}

/// Returns 1 / (1 + e^-x), within 3 ulp. It does not overflow for large or small `x`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let decay = exp(-x.abs());
    select(x < 0.0, decay, 1.0) / (1.0 + decay)
}

/// Returns ln(1 + e^x), which is the softplus, within 3 ulp. The binary cross-entropy of logits
/// uses it.
#[inline(always)]
pub fn log1p_exp(x: f32) -> f32 {
    select(x < 0.0, 0.0, x) + ln_1p(exp(-x.abs()))
}

/// Returns the hyperbolic tangent of `x`, within 3 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let square = x * x;
    let mut p = -5.704_988_727_45e-3;
    p = p * square + 2.063_908_879_54e-2;
    p = p * square - 5.373_971_555_31e-2;
    p = p * square + 0.133_314_422_036;
    p = p * square - 0.333_332_819_422;
    let near = p * square * magnitude + magnitude;
    select(magnitude < 0.625, near, far).copysign(x)
}

/// Returns the sine and the cosine of 2 pi `turns`, for the Box-Muller method and for cyclic
/// features. They are within 1e-7 of the exact values for |turns| below 2^20. Larger numbers have
/// lost their fraction, and their results have no meaning.
#[inline(always)]
pub fn sin_cos_2pi(turns: f32) -> (f32, f32) {
    let quarters = turns * 4.0 + ROUND;
    let quadrant = quarters.to_bits();
    // The reduction is exact: the remainder lies in [-1/8, 1/8] turns.
    let angle = (turns - (quarters - ROUND) * 0.25) * std::f32::consts::TAU;
    let square = angle * angle;
    let mut s = -1.951_529_589_1e-4;
    s = s * square + 8.332_160_873_6e-3;
    s = s * square - 0.166_666_546_11;
    let sine = s * square * angle + angle;
    let mut c = 2.443_315_711_8e-5;
    c = c * square - 1.388_731_625_5e-3;
    c = c * square + 4.166_664_568_3e-2;
    let cosine = c * square * square - 0.5 * square + 1.0;
    let swapped = quadrant & 1 != 0;
    let (s, c) = (select(swapped, cosine, sine), select(swapped, sine, cosine));
    let flip = |value: f32, bit: u32| f32::from_bits(value.to_bits() ^ (bit << 31));
    (flip(s, (quadrant >> 1) & 1), flip(c, ((quadrant.wrapping_add(1)) >> 1) & 1))
}

/// Returns the inverse of the error function on (-1, 1), with a relative error below 1e-6. The
/// result is infinite at the ends of the range and NaN outside. The function turns one uniform
/// number into one normal number (or, with scaling, a truncated normal number) without rejection.
/// The method is from Giles, "Approximating the erfinv function", 2010.
#[inline(always)]
pub fn erf_inv(x: f32) -> f32 {
    let w = -ln((1.0 - x) * (1.0 + x));
    let near = w - 2.5;
    let mut p = 2.810_226_36e-8;
    p = p * near + 3.432_739_39e-7;
    p = p * near - 3.523_387_7e-6;
    p = p * near - 4.391_506_54e-6;
    p = p * near + 2.185_808_7e-4;
    p = p * near - 1.253_725_03e-3;
    p = p * near - 4.177_681_64e-3;
    p = p * near + 0.246_640_727;
    p = p * near + 1.501_409_41;
    let far = w.sqrt() - 3.0;
    let mut q = -2.002_142_57e-4;
    q = q * far + 1.009_505_58e-4;
    q = q * far + 1.349_343_22e-3;
    q = q * far - 3.673_428_44e-3;
    q = q * far + 5.739_507_73e-3;
    q = q * far - 7.622_461_3e-3;
    q = q * far + 9.438_870_47e-3;
    q = q * far + 1.001_674_06;
    q = q * far + 2.832_976_82;
    let value = select(w < 5.0, p, q) * x;
    select(w == f32::INFINITY, x * f32::INFINITY, value)
}

#[cfg(test)]
mod tests {
    use super::super::{Level, level, vectorised_at};
    use super::*;

    /// The distance between two tested bit patterns. It is a prime, so the tested numbers include
    /// every exponent and many different mantissas. There are 4.3 million numbers, including
    /// infinities and NaN.
    const STEP: usize = 997;

    fn everywhere() -> Vec<f32> {
        let mut inputs: Vec<f32> = (0..=u32::MAX).step_by(STEP).map(f32::from_bits).collect();
        let edges =
            [0.0, f32::MIN_POSITIVE, f32::from_bits(1), 0.5, 0.625, 1.0, 88.72, 104.0, f32::MAX];
        for edge in edges {
            for bits in 0..64u32 {
                let near = f32::from_bits((f32::to_bits(edge) + bits).saturating_sub(32));
                inputs.extend([near, -near]);
            }
        }
        inputs.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, 0.0, -0.0]);
        inputs
    }

    /// Returns the distance between `got` and `exact` in units of the last place of an f32 at
    /// `exact`.
    fn ulps(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if got.to_bits() == rounded.to_bits() || (got.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        let exponent = exact.abs().log2().floor().clamp(-126.0, 127.0);
        (f64::from(got) - exact).abs() / 2f64.powf(exponent - 23.0)
    }

    /// Compares `function` at every level with `reference` on `inputs`, and returns the largest
    /// error.
    #[inline(always)]
    fn check(
        name: &str,
        inputs: &[f32],
        limit: f64,
        function: impl Fn(f32) -> f32 + Copy,
        reference: impl Fn(f64) -> f64,
    ) {
        let mut scalar = vec![0.0f32; inputs.len()];
        for wanted in Level::ALL {
            let mut out = vec![0.0f32; inputs.len()];
            vectorised_at(
                wanted,
                #[inline(always)]
                || {
                    for (out, x) in out.iter_mut().zip(inputs) {
                        *out = function(*x);
                    }
                },
            );
            if wanted == Level::Scalar {
                scalar = out;
                continue;
            }
            for ((x, scalar), out) in inputs.iter().zip(&scalar).zip(&out) {
                assert!(
                    scalar.to_bits() == out.to_bits() || (scalar.is_nan() && out.is_nan()),
                    "{name}({x:e}) is {scalar:e} as scalar, {out:e} at {wanted:?}"
                );
            }
        }
        let mut worst = (0.0, 0.0f32);
        for (x, got) in inputs.iter().zip(&scalar) {
            let error = ulps(*got, reference(f64::from(*x)));
            assert!(error <= limit, "{name}({x:e}) is {got:e}, off by {error} ulp");
            if error > worst.0 {
                worst = (error, *x);
            }
        }
        eprintln!(
            "{name}: at worst {:.3} ulp, at {:e}; levels up to {:?}",
            worst.0,
            worst.1,
            level()
        );
    }

    #[test]
    fn exp_is_exact_to_one_ulp_and_equal_at_every_level() {
        check("exp", &everywhere(), 1.0, exp, f64::exp);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (0.0, f32::INFINITY));
    }

    #[test]
    fn ln_is_exact_to_one_ulp_and_equal_at_every_level() {
        check("ln", &everywhere(), 1.0, ln, f64::ln);
        assert_eq!((ln(1.0), ln(0.0), ln(-0.0)), (0.0, f32::NEG_INFINITY, f32::NEG_INFINITY));
    }

    #[test]
    fn ln_1p_is_exact_to_two_ulp_and_equal_at_every_level() {
        check("ln_1p", &everywhere(), 2.0, ln_1p, f64::ln_1p);
    }

    #[test]
    fn sigmoid_is_exact_to_three_ulp_and_equal_at_every_level() {
        check("sigmoid", &everywhere(), 3.0, sigmoid, |x| {
            if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
        });
    }

    #[test]
    fn log1p_exp_is_exact_to_three_ulp_and_equal_at_every_level() {
        check("log1p_exp", &everywhere(), 3.0, log1p_exp, |x| {
            if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
        });
    }

    #[test]
    fn tanh_is_exact_to_three_ulp_and_equal_at_every_level() {
        check("tanh", &everywhere(), 3.0, tanh, f64::tanh);
    }

    #[test]
    fn sine_and_cosine_of_turns_hold_on_and_beyond_one_turn() {
        let turns: Vec<f32> = (0..1 << 20)
            .map(|i| i as f32 / (1 << 20) as f32)
            .chain((0..100_000).map(|i| (i as f32 - 50_000.0) * 0.37))
            .collect();
        for wanted in Level::ALL {
            let mut out = vec![(0.0, 0.0); turns.len()];
            vectorised_at(
                wanted,
                #[inline(always)]
                || {
                    for (out, x) in out.iter_mut().zip(&turns) {
                        *out = sin_cos_2pi(*x);
                    }
                },
            );
            for (x, (sine, cosine)) in turns.iter().zip(&out) {
                assert_eq!((*sine, *cosine), sin_cos_2pi(*x), "at {x}, {wanted:?}");
                let angle = (f64::from(*x) - f64::from(*x).floor()) * std::f64::consts::TAU;
                assert!((f64::from(*sine) - angle.sin()).abs() < 1e-7, "sine of {x} turns");
                assert!((f64::from(*cosine) - angle.cos()).abs() < 1e-7, "cosine of {x} turns");
            }
        }
        assert_eq!([0.0, 0.25, 0.5, 0.75].map(|x| sin_cos_2pi(x).0), [0.0, 1.0, 0.0, -1.0]);
        assert!(sin_cos_2pi(f32::NAN).0.is_nan() && sin_cos_2pi(f32::INFINITY).1.is_nan());
    }

    /// Computes erf by its Taylor series, which converges everywhere and is exact enough below 3.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn erf_inv_inverts_erf() {
        let inputs: Vec<f32> =
            (-29_000..=29_000).map(|i| i as f32 * 1e-4).map(|y| erf(f64::from(y)) as f32).collect();
        for wanted in Level::ALL {
            let mut out = vec![0.0f32; inputs.len()];
            vectorised_at(
                wanted,
                #[inline(always)]
                || {
                    for (out, x) in out.iter_mut().zip(&inputs) {
                        *out = erf_inv(*x);
                    }
                },
            );
            for (x, y) in inputs.iter().zip(&out) {
                assert_eq!(y.to_bits(), erf_inv(*x).to_bits(), "at {x}, {wanted:?}");
                // The function is flat there, so an error of y causes an error of erf(y) that is
                // multiplied by the slope.
                let slope = 2.0 / std::f64::consts::PI.sqrt() * (-f64::from(*y).powi(2)).exp();
                let error = (erf(f64::from(*y)) - f64::from(*x)).abs() / slope;
                assert!(
                    error <= 2e-6 * f64::from(y.abs()).max(1e-3),
                    "erf_inv({x}) is {y}, off by {error:e}"
                );
            }
        }
        assert_eq!(
            (erf_inv(0.0), erf_inv(1.0), erf_inv(-1.0)),
            (0.0, f32::INFINITY, f32::NEG_INFINITY)
        );
        assert!(erf_inv(1.5).is_nan() && erf_inv(f32::NAN).is_nan());
    }
}
