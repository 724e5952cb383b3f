//! The number types of stored weights and the random numbers of rows, as `rows/src/dtype.rs`,
//! `rows/src/initializer.rs` and `feature/src/random.rs` define them: the reference of the kernels.
//! A test of the whole workspace compares the kernels with those functions themselves.

use super::super::kernels::{InitialSegment, TableRules};
use crate::simd::math;

/// The odd constant of the generator splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const SIGN: u32 = 1 << 31;
/// The bits of 2⁻¹⁴, the smallest normal number of half precision.
const NORMAL: u32 = 113 << 23;
const INFINITE: u32 = f32::INFINITY.to_bits();

/// Mixes 64 bits by a bijection.
pub(super) fn mix64(x: u64) -> u64 {
    let z = x.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Computes a seed from a seed and a word.
pub(super) fn combine(seed: u64, word: u64) -> u64 {
    mix64(seed ^ mix64(word))
}

/// Returns the random bits of a weight of a row, by the seed of the row in the step.
pub(super) fn unit(row_seed: u64, unit: usize) -> u32 {
    let position = (unit as u32).wrapping_mul(0x9e37_79b9);
    let x = (row_seed as u32).wrapping_add(position) ^ (row_seed >> 32) as u32;
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Returns the largest number of a type.
pub(super) fn largest(dtype: u32) -> f32 {
    if dtype == TableRules::F16 { 65504.0 } else { f32::from_bits(0x7f7f_0000) }
}

fn magnitude(x: f32, most: f32) -> u32 {
    let bits = x.to_bits() & !SIGN;
    if bits > INFINITE { bits } else { bits.min(most.to_bits()) }
}

/// Returns the number of single precision with the value of a half.
pub(super) fn widen(dtype: u32, half: u16) -> f32 {
    let half = u32::from(half);
    if dtype == TableRules::BF16 {
        return f32::from_bits(half << 16);
    }
    let (sign, exponent, fraction) = (half >> 15, half >> 10 & 0x1f, half & 0x3ff);
    match exponent {
        0 => (fraction as f32 / 16_777_216.0).copysign(if sign == 1 { -1.0 } else { 1.0 }),
        0x1f => f32::from_bits(sign << 31 | INFINITE | fraction << 13),
        _ => f32::from_bits(sign << 31 | (exponent + 112) << 23 | fraction << 13),
    }
}

fn cut(x: f32, added: u32) -> u16 {
    let bits = magnitude(x, largest(TableRules::BF16));
    let rounded = if bits > INFINITE { bits | 1 << 22 } else { bits + added };
    ((rounded | (x.to_bits() & SIGN)) >> 16) as u16
}

fn pack(bits: u32, sign: u32) -> u16 {
    let packed = if bits > INFINITE {
        0x7e00
    } else if bits < NORMAL {
        (f32::from_bits(bits) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        (bits - (112 << 23)) >> 13
    };
    (packed | sign >> 16) as u16
}

/// Rounds to the nearest half, and to the even one of two.
pub(super) fn nearest(dtype: u32, x: f32) -> u16 {
    if dtype == TableRules::BF16 {
        return cut(x, 0x7fff + (x.to_bits() >> 16 & 1));
    }
    let bits = magnitude(x, largest(dtype));
    let is_kept = !(NORMAL..=INFINITE).contains(&bits);
    let rounded = if is_kept { bits } else { bits + 0xfff + (bits >> 13 & 1) };
    pack(rounded, x.to_bits() & SIGN)
}

/// Rounds to one of the two nearest halves, by random bits.
pub(super) fn stochastic(dtype: u32, x: f32, random: u32) -> u16 {
    if dtype == TableRules::BF16 {
        return cut(x, random >> 16);
    }
    let bits = magnitude(x, largest(dtype));
    let rounded = if bits > INFINITE {
        bits
    } else if bits < NORMAL {
        let steps = f32::from_bits(bits) * 16_777_216.0;
        let whole = steps.floor();
        let is_up = (!random >> 8) as f32 / 16_777_216.0 < steps - whole;
        ((whole + if is_up { 1.0 } else { 0.0 }) / 16_777_216.0).to_bits()
    } else {
        (bits + (random >> 19)) & !0x1fff
    };
    pack(rounded, x.to_bits() & SIGN)
}

/// Returns an initial weight of a key before its rounding to the type of the table.
pub(super) fn initial(segment: &InitialSegment, key: u64, unit: usize) -> f32 {
    let uniform = |bits: u32| (bits >> 8) as f32 * (1.0 / 16_777_216.0);
    let bits = mix64(combine(segment.seed, key).wrapping_add((unit as u64).wrapping_mul(STEP)));
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    let InitialSegment { a, b, .. } = *segment;
    let x = match segment.kind {
        InitialSegment::CONSTANT => a,
        InitialSegment::UNIFORM => {
            let x = a + (b - a) * uniform(low);
            if x < b || b - a == 0.0 { x } else { a }
        }
        InitialSegment::NORMAL => {
            let (_, cosine) = math::sin_cos_2pi(uniform(low));
            a + b * ((-2.0 * math::ln(1.0 - uniform(high))).max(0.0).sqrt() * cosine)
        }
        _ => {
            let centred = 2.0 * uniform(high) - (1.0 - 1.0 / 16_777_216.0);
            a + b * (std::f32::consts::SQRT_2 * math::erf_inv(centred * 0.954_499_7))
        }
    };
    let raised = if x < segment.low { segment.low } else { x };
    if raised > segment.high { segment.high } else { raised }
}
