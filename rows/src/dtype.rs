//! The number types of weights in memory and in checkpoints, and the conversions between them.
//!
//! An optimizer computes in f32 for every type: it widens a row, updates the row and rounds it
//! again. A type of 16 bits cannot hold the small updates at the end of a training run. If a push
//! rounded to the nearest number, an update smaller than half of the last place of a weight would
//! not change the weight. So a push rounds *stochastically*: it rounds up with a probability that
//! grows with the distance from the next lower number of the type. The mean of the stored numbers
//! is therefore the computed number. The random bits are a function of the table's seed, the key,
//! the step and the position of the weight in its row. So the result does not depend on threads,
//! shards or resumed runs.
//!
//! The weights of initial rows are rounded to the nearest number of the type; of two equally near
//! numbers, the one with an even significand is taken. A number that the type can hold does not
//! change.
//!
//! A weight whose magnitude is above the largest number of a type becomes that number with the sign
//! of the weight, and a push counts such weights. NaN stays NaN, so that the error becomes visible.
//!
//! All conversions consist of integer and float operations without branches, which LLVM vectorises.
//! Intrinsics would need `unsafe` blocks, and a second version for machines without them.

use serde::{Deserialize, Serialize};
use zillion_feature::random::{combine, mix32, text_seed};

use crate::spec::Bounds;

/// The number type of a table's weights. Optimizer state is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// The IEEE 754 single precision: four bytes per number.
    #[default]
    F32,
    /// The IEEE 754 half precision: 11 significant bits and numbers up to 65504. The smallest
    /// distance between two neighbouring numbers is 2⁻²⁴, near zero.
    F16,
    /// The bfloat16 format, the upper half of an f32: 8 significant bits and the range of an f32.
    Bf16,
}

impl Dtype {
    /// All number types of weights.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the name of the type in job files and in the parts of checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Returns the number of bytes of one weight.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Returns whether this type is f32, the default type of a table.
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Returns the given bounds, narrowed to numbers of this type. Any number between the returned
    /// bounds is then also between them after rounding. If no number of the type lies between the
    /// given bounds, the returned lower bound is above the returned upper bound.
    pub fn inward(self, bounds: Bounds) -> Bounds {
        let Bounds { low, high } = bounds;
        // The number of the type that comes before or after a given number in ascending order.
        let step = |x: f32, up: bool| match self {
            Self::F32 => x,
            Self::F16 => F16::widen(neighbour(F16::nearest(x), up)),
            Self::Bf16 => Bf16::widen(neighbour(Bf16::nearest(x), up)),
        };
        let mut near = [low, high];
        self.round_nearest(&mut near);
        Bounds {
            low: if near[0] < low { step(near[0], true) } else { near[0] },
            high: if near[1] > high { step(near[1], false) } else { near[1] },
        }
    }

    /// Rounds weights to the nearest numbers of the type.
    pub fn round_nearest(self, weights: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => weights.iter_mut().for_each(|w| *w = F16::widen(F16::nearest(*w))),
            Self::Bf16 => weights.iter_mut().for_each(|w| *w = Bf16::widen(Bf16::nearest(*w))),
        }
    }

    /// Rounds one weight of a row to a number of the type, with the random bits that a push in
    /// `step` uses. `seed` is the seed of the table, and `unit` is the position of the weight in
    /// its row.
    pub fn round_pushed(self, seed: u64, key: u64, step: u64, unit: usize, weight: f32) -> f32 {
        let bits = Rounding::new(seed).step(step).row(key).unit(unit as u32);
        match self {
            Self::F32 => weight,
            Self::F16 => F16::widen(F16::stochastic(weight, bits)),
            Self::Bf16 => Bf16::widen(Bf16::stochastic(weight, bits)),
        }
    }
}

/// The source of the random bits of one table for stochastic rounding.
#[derive(Clone, Copy, Debug)]
pub struct Rounding(u64);

impl Rounding {
    /// Derives the source of a table's random bits from the seed of the table.
    pub fn new(table_seed: u64) -> Self {
        Self(text_seed(table_seed, "rounding"))
    }

    /// Derives the source of the random bits of one step.
    pub fn step(self, step: u64) -> StepRounding {
        StepRounding(combine(self.0, step))
    }
}

/// The source of the random bits of one table in one step.
#[derive(Clone, Copy, Debug)]
pub struct StepRounding(u64);

impl StepRounding {
    /// Returns the seed from which the random bits of all rows are derived.
    pub fn seed(self) -> u64 {
        self.0
    }

    /// Derives the source of the random bits of one row.
    #[inline(always)]
    pub fn row(self, key: u64) -> RowRounding {
        let seed = combine(self.0, key);
        RowRounding { low: seed as u32, high: (seed >> 32) as u32 }
    }
}

/// The source of the random bits of one row in one step.
#[derive(Clone, Copy, Debug)]
pub struct RowRounding {
    low: u32,
    high: u32,
}

impl RowRounding {
    /// Returns the random bits of the weight at position `unit` of the row. The arithmetic uses 32
    /// bits, so that each weight takes one SIMD lane.
    #[inline(always)]
    pub fn unit(self, unit: u32) -> u32 {
        mix32(self.low.wrapping_add(unit.wrapping_mul(0x9e37_79b9)) ^ self.high)
    }
}

/// A number type of 16 bits for the weights of stored rows.
pub trait Half {
    /// The largest number of the type.
    const MAX: f32;

    /// Converts a number of the type to the f32 of the same value.
    fn widen(half: u16) -> f32;

    /// Returns the number of the type that is nearest to `x`. If two numbers are equally near,
    /// returns the one with an even significand.
    fn nearest(x: f32) -> u16;

    /// Returns `x` itself if the type can hold it. Otherwise, returns one of the two numbers of the
    /// type next to `x`; the random bits decide between them.
    fn stochastic(x: f32, random: u32) -> u16;
}

/// Returns the number of the type next to a finite number: the next larger one if `up`, else the
/// next smaller one.
fn neighbour(half: u16, up: bool) -> u16 {
    const NEGATIVE: u16 = 1 << 15;
    match (half & !NEGATIVE, half & NEGATIVE != 0) {
        (0, _) => 1 | if up { 0 } else { NEGATIVE },
        (_, negative) if negative == up => half - 1,
        _ => half + 1,
    }
}

const SIGN: u32 = 1 << 31;

/// Returns the bits of the absolute value of `x`, or those of `max` if the absolute value is
/// larger. NaN keeps its bits.
#[inline(always)]
fn magnitude(x: f32, max: f32) -> u32 {
    let bits = x.to_bits() & !SIGN;
    let held = if bits > max.to_bits() { max.to_bits() } else { bits };
    if bits > f32::INFINITY.to_bits() { bits } else { held }
}

/// The bfloat16 format: the upper half of an f32.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Bf16 {
    #[inline(always)]
    fn cut(x: f32, added: u32) -> u16 {
        let bits = magnitude(x, Self::MAX);
        let is_nan = bits > f32::INFINITY.to_bits();
        // The payload of a NaN may lie in the lower half alone.
        let rounded = if is_nan { bits | 1 << 22 } else { bits.wrapping_add(added) };
        ((rounded | (x.to_bits() & SIGN)) >> 16) as u16
    }
}

impl Half for Bf16 {
    const MAX: f32 = f32::from_bits(0x7f7f_0000);

    #[inline(always)]
    fn widen(half: u16) -> f32 {
        f32::from_bits(u32::from(half) << 16)
    }

    #[inline(always)]
    fn nearest(x: f32) -> u16 {
        Self::cut(x, 0x7fff + ((x.to_bits() >> 16) & 1))
    }

    #[inline(always)]
    fn stochastic(x: f32, random: u32) -> u16 {
        Self::cut(x, random >> 16)
    }
}

/// The half-precision format of IEEE 754.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl F16 {
    /// The f32 bits of 2⁻¹⁴, the smallest normal number of f16. Smaller numbers have fewer
    /// significant bits.
    const NORMAL: u32 = 113 << 23;
    /// The number of low bits of an f32's significand that an f16 does not have.
    const DROPPED: u32 = 13;
    /// The factor 2²⁴. The numbers of f16 below [`Self::NORMAL`] are whole multiples of its
    /// inverse.
    const FINE: f32 = 16_777_216.0;

    /// Converts a sign and the f32 bits of an absolute value to the 16 bits of the type. Absolute
    /// values below [`Self::NORMAL`] are rounded to the nearest number; all others must be numbers
    /// of the type.
    #[inline(always)]
    fn pack(bits: u32, sign: u32) -> u16 {
        // Adding 0.5 moves multiples of 2⁻²⁴ to the lower end of the significand.
        let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let normal = bits.wrapping_sub(112 << 23) >> Self::DROPPED;
        let packed = if bits < Self::NORMAL { small } else { normal };
        let packed = if bits > f32::INFINITY.to_bits() { 0x7e00 } else { packed };
        (packed | sign >> 16) as u16
    }
}

impl Half for F16 {
    const MAX: f32 = 65504.0;

    #[inline(always)]
    fn widen(half: u16) -> f32 {
        let bits = (u32::from(half) & 0x7fff) << Self::DROPPED;
        let exponent = bits & (0x1f << 23);
        let normal = bits + (112 << 23);
        // The exponent is raised by one, where the leading bit is implied, and that bit is
        // subtracted again. So no subnormal number of f32 is used, because processors are slow with
        // such numbers.
        let small = f32::from_bits(bits + Self::NORMAL) - f32::from_bits(Self::NORMAL);
        let finite = if exponent == 0 { small.to_bits() } else { normal };
        let wide = if exponent == 0x1f << 23 { bits | 0xff << 23 } else { finite };
        f32::from_bits(wide | (u32::from(half) & 0x8000) << 16)
    }

    #[inline(always)]
    fn nearest(x: f32) -> u16 {
        let bits = magnitude(x, Self::MAX);
        let odd = (bits >> Self::DROPPED) & 1;
        let rounded = bits.wrapping_add(0xfff + odd);
        // The sum in `pack` rounds small numbers.
        let kept =
            if bits < Self::NORMAL || bits > f32::INFINITY.to_bits() { bits } else { rounded };
        Self::pack(kept, x.to_bits() & SIGN)
    }

    #[inline(always)]
    fn stochastic(x: f32, random: u32) -> u16 {
        let bits = magnitude(x, Self::MAX);
        let mask = (1 << Self::DROPPED) - 1;
        let normal = bits.wrapping_add(random >> (32 - Self::DROPPED)) & !mask;
        // The number in units of 2⁻²⁴. It is at most 1024, so the rest of the fraction is exact.
        let steps = f32::from_bits(bits) * Self::FINE;
        // Adding 2²³ gives the nearest whole number; one is subtracted if that was rounded up.
        let nearest = (steps + 8_388_608.0) - 8_388_608.0;
        let whole = if nearest > steps { nearest - 1.0 } else { nearest };
        let up = (!random >> 8) as f32 * (1.0 / Self::FINE) < steps - whole;
        let small = (whole + if up { 1.0 } else { 0.0 }) * (1.0 / Self::FINE);
        let rounded = if bits < Self::NORMAL { small.to_bits() } else { normal };
        let kept = if bits > f32::INFINITY.to_bits() { bits } else { rounded };
        Self::pack(kept, x.to_bits() & SIGN)
    }
}

/// Widens a row of 16-bit numbers to f32.
#[inline(always)]
pub fn widen<H: Half>(halves: &[u16], out: &mut [f32]) {
    for (x, &half) in out.iter_mut().zip(halves) {
        *x = H::widen(half);
    }
}

/// Rounds a row of f32 numbers to the nearest numbers of 16 bits.
#[inline(always)]
pub fn nearest<H: Half>(row: &[f32], out: &mut [u16]) {
    for (half, &x) in out.iter_mut().zip(row) {
        *half = H::nearest(x);
    }
}

/// Rounds a row of f32 numbers stochastically. Returns the number of weights whose magnitude was
/// above the largest number of the type.
#[inline(always)]
pub fn stochastic<H: Half>(row: &[f32], rounding: RowRounding, out: &mut [u16]) -> u32 {
    let mut beyond = 0;
    for (unit, (half, &x)) in out.iter_mut().zip(row).enumerate() {
        *half = H::stochastic(x, rounding.unit(unit as u32));
        beyond += u32::from(x.abs() > H::MAX);
    }
    beyond
}

#[cfg(test)]
mod tests;
