//! Inner products of a vector of bytes with many vectors of 4-bit integers, for a first look at all
//! vectors.
//!
//! The vectors lie in groups of [`NIBBLE_VECTORS`]. A cache line has [`NIBBLE_STEP`] elements of
//! each vector of a group: a word for each vector. Byte `i` of a word has element `i` in its lower
//! four bits, and element `i + 4` in its upper four. The next line has the next elements of each.
//! So a line is one register of 512 bits with elements of sixteen vectors, and no sum goes across a
//! register. The elements of the vectors have no sign, as the instruction `vpdpbusd` needs it; a
//! caller adds an offset, and subtracts it from the products.
//!
//! All sums are of integers and are exact, so that every instruction set gives the same numbers.

use super::vectorised;
use crate::lines::{CacheLine, WORDS};

/// The number of vectors of a group.
pub const NIBBLE_VECTORS: usize = WORDS;

/// The number of elements of a vector that lie together.
pub const NIBBLE_STEP: usize = 8;

/// The largest number of elements whose products fit the sums: `65,536 × 15 × 128` is below 2³¹.
pub const MOST_NIBBLES: usize = 65_536;

/// The bits of the lower element of each byte of a word.
const LOWER: u32 = 0x0f0f_0f0f;

/// The number of lines between the one that is used and the one that is prefetched. The sequential
/// prefetch of the processor ends at each 4 KiB, also on huge pages.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 32;

/// Computes the inner product of `left` and each vector of `groups`, whose layout the module
/// describes. `out` has an element for each vector.
///
/// # Panics
/// Panics if the length of `left` is no multiple of [`NIBBLE_STEP`] or is above [`MOST_NIBBLES`],
/// or if the lengths of `groups` and `out` do not fit.
pub fn nibble_dots(left: &[i8], groups: &[CacheLine], out: &mut [i32]) {
    assert!(left.len().is_multiple_of(NIBBLE_STEP) && left.len() <= MOST_NIBBLES);
    assert!(out.len().is_multiple_of(NIBBLE_VECTORS), "the last group is not whole");
    assert!(groups.len() * (NIBBLE_STEP * NIBBLE_VECTORS) == left.len() * out.len());
    if left.is_empty() {
        return out.fill(0);
    }
    let (left, _) = left.as_chunks::<NIBBLE_STEP>();
    let (out, _) = out.as_chunks_mut::<NIBBLE_VECTORS>();
    #[cfg(target_arch = "x86_64")]
    if super::level() == super::Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: this machine has both instruction sets.
        return unsafe { vnni_dots(left, groups, out) };
    }
    vectorised(
        #[inline(always)]
        || plain_dots(left, groups, out),
    );
}

/// Computes the products by plain loops, which are the scalar reference.
#[inline(always)]
fn plain_dots(left: &[[i8; NIBBLE_STEP]], groups: &[CacheLine], out: &mut [[i32; NIBBLE_VECTORS]]) {
    for (sums, group) in out.iter_mut().zip(groups.chunks_exact(left.len().max(1))) {
        let mut totals = [0i32; NIBBLE_VECTORS];
        for (left, line) in left.iter().zip(group) {
            let left = left.map(i32::from);
            for (total, word) in totals.iter_mut().zip(line.0) {
                for at in 0..NIBBLE_STEP / 2 {
                    let (lower, upper) = (word >> (8 * at) & 15, word >> (8 * at + 4) & 15);
                    *total += left[at] * lower as i32;
                    *total += left[at + NIBBLE_STEP / 2] * upper as i32;
                }
            }
        }
        *sums = totals;
    }
}

/// Computes the products by the instruction `vpdpbusd`, once for the lower and once for the upper
/// elements of a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_dots(left: &[[i8; NIBBLE_STEP]], groups: &[CacheLine], out: &mut [[i32; NIBBLE_VECTORS]]) {
    use std::arch::x86_64::{
        _mm512_add_epi32, _mm512_and_si512, _mm512_dpbusd_epi32, _mm512_loadu_si512,
        _mm512_set1_epi32, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_storeu_si512,
    };
    let mask = _mm512_set1_epi32(LOWER as i32);
    for (sums, group) in out.iter_mut().zip(groups.chunks_exact(left.len().max(1))) {
        // Two sums, because each instruction waits for the one before it in the same sum.
        let (mut lowers, mut uppers) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (left, line) in left.iter().zip(group) {
            crate::prefetch::prefetch_line_read(std::ptr::from_ref(line).wrapping_add(AHEAD));
            let [a, b, c, d, e, f, g, h] = left.map(|x| x as u8);
            // SAFETY: a line has the 64 bytes that are read, and the load needs no alignment.
            let words = unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) };
            let lower = _mm512_and_si512(words, mask);
            let upper = _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask);
            let left = _mm512_set1_epi32(i32::from_ne_bytes([a, b, c, d]));
            lowers = _mm512_dpbusd_epi32(lowers, lower, left);
            let left = _mm512_set1_epi32(i32::from_ne_bytes([e, f, g, h]));
            uppers = _mm512_dpbusd_epi32(uppers, upper, left);
        }
        let total = _mm512_add_epi32(lowers, uppers);
        // SAFETY: `sums` has the 64 bytes that are written, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), total) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(seed: usize) -> u8 {
        (seed.wrapping_mul(0x9e37_79b9).wrapping_add(seed >> 3) >> 7) as u8
    }

    #[test]
    fn products_of_nibbles_are_the_definition() {
        for (elements, vectors) in [(0, 16), (8, 16), (24, 48), (64, 160), (1000, 32)] {
            let extreme = |i: usize| if i.is_multiple_of(3) { -128 } else { byte(i) as i8 };
            let left: Vec<i8> = (0..elements).map(extreme).collect();
            let element = |vector: usize, at: usize| match vector {
                0 => 15,
                _ => byte(vector * 1009 + at) % 16,
            };
            let lines = elements * vectors / (NIBBLE_STEP * NIBBLE_VECTORS);
            let mut groups = vec![CacheLine::ZERO; lines];
            for vector in 0..vectors {
                let (group, lane) = (vector / NIBBLE_VECTORS, vector % NIBBLE_VECTORS);
                for at in 0..elements {
                    let line = group * elements / NIBBLE_STEP + at / NIBBLE_STEP;
                    let shift = at % 4 * 8 + at % 8 / 4 * 4;
                    groups[line].0[lane] |= u32::from(element(vector, at)) << shift;
                }
            }
            let product = |vector: usize| -> i32 {
                (0..elements).map(|at| i32::from(left[at]) * i32::from(element(vector, at))).sum()
            };
            let expected: Vec<i32> = (0..vectors).map(product).collect();
            let mut out = vec![7; vectors];
            nibble_dots(&left, &groups, &mut out);
            assert_eq!(out, expected, "{elements} {vectors}");
            let mut plain = vec![[7; NIBBLE_VECTORS]; vectors / NIBBLE_VECTORS];
            plain_dots(left.as_chunks().0, &groups, &mut plain);
            if elements > 0 {
                assert_eq!(plain.as_flattened(), expected, "{elements} {vectors}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "groups.len()")]
    fn lengths_that_do_not_fit_are_a_panic() {
        nibble_dots(&[0; 8], &[CacheLine::ZERO; 2], &mut [0; 16]);
    }
}
