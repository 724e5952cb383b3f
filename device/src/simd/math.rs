//! Elementary functions of f32 as branch-free polynomials: LLVM vectorises a loop around them, and
//! they give the same bits at every [`Level`](super::Level) because they call no libm and fuse nothing.
//!
//! Each holds for every input, infinities and subnormals included; a NaN goes in and comes out (its
//! payload is not promised). Accuracy is stated in units in the last place (ulp) of the exact result
//! and tested against f64. Reductions and coefficients are those of Moshier's Cephes library unless a
//! function says otherwise.

use std::f32::consts::{LN_2, LOG2_E};

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves that
/// integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has nine significant bits, so that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_375;
const LN_2_LOW: f32 = LN_2_TAIL;
#[expect(clippy::excessive_precision, reason = "the constant as the source gives it")]
const LN_2_TAIL: f32 = -2.121_944_400_546_905_8e-4;

/// `if condition { yes } else { no }` as one select.
#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// 2 to the power `exponent`, which must lie in -126..=127.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// e to the power `x`, within 1 ulp; subnormal results are rounded once.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Outside of these bounds the result is infinite or zero anyway. A NaN passes both comparisons.
    let x = select(x < -104.0, -104.0, x);
    let x = select(x > 89.0, 89.0, x);
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 0.166_666_65;
    p = p * r + 0.500_000_06;
    let value = p * (r * r) + r + 1.0;
    // Two factors, since one cannot reach 2^128 or 2^-150. The first product is exact.
    let half = exponent >> 1;
    value * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// The natural logarithm of `x`, within 1 ulp; -inf at zero, NaN below.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // A subnormal is scaled to a normal number first.
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = select(subnormal, x * 8_388_608.0, x);
    let correction = select(subnormal, -23.0, 0.0);
    // The mantissa goes to [sqrt(1/2), sqrt(2)), where the polynomial in m - 1 holds.
    let bits = scaled.to_bits() as i32;
    let exponent = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32);
    let exponent = exponent as f32 + correction;
    let r = mantissa - 1.0;
    let square = r * r;
    let mut p = 7.037_683_6e-2;
    p = p * r - 0.115_146_1;
    p = p * r + 0.116_769_98;
    p = p * r - 0.124_201_41;
    p = p * r + 0.142_493_23;
    p = p * r - 0.166_680_57;
    p = p * r + 0.200_007_14;
    p = p * r - 0.249_999_94;
    p = p * r + 0.333_333_3;
    let tail = p * r * square + exponent * LN_2_LOW - 0.5 * square;
    let value = tail + r + exponent * LN_2_HIGH;
    let value = select(x == 0.0, f32::NEG_INFINITY, value);
    let value = select(x < 0.0, f32::NAN, value);
    // Infinity and NaN are their own logarithms.
    select(x < f32::INFINITY, value, x + x)
}

/// ln(1 + x), within 2 ulp also where x is tiny; -inf at -1, NaN below.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What the rounding of 1 + x lost, put back by the first-order term.
    let lost = select(x > 1.0, 1.0 - (sum - x), x - (sum - 1.0));
    let value = ln(sum) + lost / sum;
    let regular = sum > 0.0 && sum < f32::INFINITY;
    select(regular, value, ln(sum))
}

/// 1 / (1 + e^-x), within 3 ulp, without overflow at either end.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let decay = exp(-x.abs());
    select(x < 0.0, decay, 1.0) / (1.0 + decay)
}

/// ln(1 + e^x), the softplus, within 3 ulp: what binary cross entropy on logits needs.
#[inline(always)]
pub fn log1p_exp(x: f32) -> f32 {
    select(x < 0.0, 0.0, x) + ln_1p(exp(-x.abs()))
}

/// The hyperbolic tangent, within 3 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    p = p * square + 2.063_908_9e-2;
    p = p * square - 5.373_971_6e-2;
    p = p * square + 0.133_314_42;
    p = p * square - 0.333_332_8;
    let near = p * square * magnitude + magnitude;
    select(magnitude < 0.625, near, far).copysign(x)
}

/// The sine and cosine of 2 pi `turns`, for Box-Muller and for cyclic features: within 1e-7 of the
/// exact value for |turns| below 2^20. Larger arguments lose their fraction first and are not reduced.
#[inline(always)]
pub fn sin_cos_2pi(turns: f32) -> (f32, f32) {
    let quarters = turns * 4.0 + ROUND;
    let quadrant = quarters.to_bits();
    // Exact: the remainder lies in [-1/8, 1/8] turns.
    let angle = (turns - (quarters - ROUND) * 0.25) * std::f32::consts::TAU;
    let square = angle * angle;
    let mut s = -1.951_529_6e-4;
    s = s * square + 8.332_161e-3;
    s = s * square - 0.166_666_55;
    let sine = s * square * angle + angle;
    let mut c = 2.443_315_7e-5;
    c = c * square - 1.388_731_6e-3;
    c = c * square + 4.166_664_6e-2;
    let cosine = c * square * square - 0.5 * square + 1.0;
    let swapped = quadrant & 1 != 0;
    let (s, c) = (select(swapped, cosine, sine), select(swapped, sine, cosine));
    let flip = |value: f32, bit: u32| f32::from_bits(value.to_bits() ^ (bit << 31));
    (flip(s, (quadrant >> 1) & 1), flip(c, ((quadrant.wrapping_add(1)) >> 1) & 1))
}

/// The inverse of the error function on (-1, 1), relative error below 1e-6, infinite at the ends and
/// NaN outside: one normal (or, scaled, truncated normal) number from one uniform number, without
/// rejection. Giles, "Approximating the erfinv function", 2010.
#[inline(always)]
pub fn erf_inv(x: f32) -> f32 {
    let w = -ln((1.0 - x) * (1.0 + x));
    let near = w - 2.5;
    let mut p = 2.810_226_4e-8;
    p = p * near + 3.432_739_4e-7;
    p = p * near - 3.523_387_7e-6;
    p = p * near - 4.391_506_5e-6;
    p = p * near + 2.185_808_7e-4;
    p = p * near - 1.253_725_1e-3;
    p = p * near - 4.177_681_6e-3;
    p = p * near + 0.246_640_73;
    p = p * near + 1.501_409_4;
    let far = w.sqrt() - 3.0;
    let mut q = -2.002_142_6e-4;
    q = q * far + 1.009_505_6e-4;
    q = q * far + 1.349_343_2e-3;
    q = q * far - 3.673_428_5e-3;
    q = q * far + 5.739_507_7e-3;
    q = q * far - 7.622_461_3e-3;
    q = q * far + 9.438_870_5e-3;
    q = q * far + 1.001_674_1;
    q = q * far + 2.832_976_8;
    let value = select(w < 5.0, p, q) * x;
    select(w == f32::INFINITY, x * f32::INFINITY, value)
}

/// ln 2 as one number, for callers that change the base.
pub const LN_TWO: f32 = LN_2;
