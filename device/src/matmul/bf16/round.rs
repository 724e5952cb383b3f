//! The conversion of f32 to bf16.

use crate::simd::vectorised;

/// Returns the bits of the bf16 that is nearest to a number. If two are equally near, it is the one
/// whose last bit is zero. A NaN keeps its sign and the first bits of its payload, and is quiet.
/// A number below the smallest normal f32 becomes zero with its sign, as in the instructions of
/// processors.
#[inline(always)]
pub fn round(value: f32) -> u16 {
    const SIGN: u32 = 1 << 31;
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if magnitude > 0x7f80_0000 {
        bits | 0x0040_0000
    } else if magnitude < 0x0080_0000 {
        bits & SIGN
    } else {
        rounded
    };
    (bits >> 16) as u16
}

/// Rounds each number as [`round`] does, with the widest registers of the machine. The shorter of
/// the two slices gives the count.
pub fn round_all(from: &[f32], to: &mut [u16]) {
    #[inline(always)]
    fn convert(from: &[f32], to: &mut [u16]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = round(from);
        }
    }
    vectorised(
        #[inline(always)]
        || convert(from, to),
    );
}
