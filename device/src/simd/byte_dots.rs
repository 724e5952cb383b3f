//! Inner products of a vector of bytes with many vectors of bytes, for a first look at all vectors.
//!
//! The vectors lie in groups of [`BYTE_VECTORS`]. A group has [`BYTE_STEP`] elements of each vector
//! one behind the other, then the next elements of each, and so on. So one register of 512 bits
//! has elements of sixteen vectors, and no sum goes across a register. The elements of the vectors
//! have no sign, as the instruction `vpdpbusd` needs it; a caller adds an offset, and subtracts it
//! from the products.
//!
//! All sums are of integers and are exact, so that every instruction set gives the same numbers.

use super::vectorised;

/// The number of vectors of a group.
pub const BYTE_VECTORS: usize = 16;

/// The number of elements of a vector that lie together.
pub const BYTE_STEP: usize = 4;

/// The number of bytes of a group that lie together.
const STEP_BYTES: usize = BYTE_VECTORS * BYTE_STEP;

/// The largest number of elements whose products fit the sums: `65,536 × 255 × 128` is below 2³¹.
pub const MOST_BYTE_ELEMENTS: usize = 65_536;

/// Computes the inner product of `left` and each vector of `groups`, whose layout the module
/// describes. `out` has an element for each vector.
///
/// # Panics
/// Panics if the length of `left` is no multiple of [`BYTE_STEP`] or is above
/// [`MOST_BYTE_ELEMENTS`], or if the lengths of `groups` and `out` do not fit.
pub fn byte_dots(left: &[i8], groups: &[u8], out: &mut [i32]) {
    assert!(left.len().is_multiple_of(BYTE_STEP) && left.len() <= MOST_BYTE_ELEMENTS);
    assert!(out.len().is_multiple_of(BYTE_VECTORS) && groups.len() == left.len() * out.len());
    if left.is_empty() {
        return out.fill(0);
    }
    let (left, _) = left.as_chunks::<BYTE_STEP>();
    let (groups, _) = groups.as_chunks::<STEP_BYTES>();
    let (out, _) = out.as_chunks_mut::<BYTE_VECTORS>();
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

/// Computes the products by plain loops.
#[inline(always)]
fn plain_dots(
    left: &[[i8; BYTE_STEP]],
    groups: &[[u8; STEP_BYTES]],
    out: &mut [[i32; BYTE_VECTORS]],
) {
    for (sums, group) in out.iter_mut().zip(groups.chunks_exact(left.len().max(1))) {
        let mut totals = [0i32; BYTE_VECTORS];
        for (left, step) in left.iter().zip(group) {
            let left = left.map(i32::from);
            for (total, bytes) in totals.iter_mut().zip(step.as_chunks::<BYTE_STEP>().0) {
                for (left, byte) in left.iter().zip(bytes) {
                    *total += left * i32::from(*byte);
                }
            }
        }
        *sums = totals;
    }
}

/// Computes the products by the instruction `vpdpbusd`, two groups at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_dots(
    left: &[[i8; BYTE_STEP]],
    groups: &[[u8; STEP_BYTES]],
    out: &mut [[i32; BYTE_VECTORS]],
) {
    use std::arch::x86_64::{
        _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi32,
        _mm512_setzero_si512, _mm512_storeu_si512,
    };
    for (sums, group) in out.iter_mut().zip(groups.chunks_exact(left.len().max(1))) {
        // Two sums, because each instruction waits for the one before it in the same sum.
        let (mut even, mut odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        let mut is_odd = false;
        for (left, step) in left.iter().zip(group) {
            let left = _mm512_set1_epi32(i32::from_ne_bytes(left.map(|x| x as u8)));
            // SAFETY: `step` has the 64 bytes that are read, and the load needs no alignment.
            let step = unsafe { _mm512_loadu_si512(step.as_ptr().cast()) };
            if is_odd {
                odd = _mm512_dpbusd_epi32(odd, step, left);
            } else {
                even = _mm512_dpbusd_epi32(even, step, left);
            }
            is_odd = !is_odd;
        }
        // SAFETY: `sums` has the 64 bytes that are written, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(even, odd)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(seed: usize) -> u8 {
        (seed.wrapping_mul(0x9e37_79b9).wrapping_add(seed >> 3) >> 7) as u8
    }

    #[test]
    fn products_of_bytes_are_the_definition() {
        for (elements, vectors) in [(0, 16), (4, 16), (12, 48), (64, 160), (1000, 32)] {
            let extreme = |i: usize| if i.is_multiple_of(3) { -128 } else { byte(i) as i8 };
            let left: Vec<i8> = (0..elements).map(extreme).collect();
            let element = |vector: usize, at: usize| match vector {
                0 => 255,
                _ => byte(vector * 1009 + at),
            };
            let mut groups = vec![0u8; elements * vectors];
            for vector in 0..vectors {
                let (group, lane) = (vector / BYTE_VECTORS, vector % BYTE_VECTORS);
                for at in 0..elements {
                    let step = group * elements / BYTE_STEP + at / BYTE_STEP;
                    let place = step * STEP_BYTES + lane * BYTE_STEP + at % BYTE_STEP;
                    groups[place] = element(vector, at);
                }
            }
            let product = |vector: usize| -> i32 {
                (0..elements).map(|at| i32::from(left[at]) * i32::from(element(vector, at))).sum()
            };
            let expected: Vec<i32> = (0..vectors).map(product).collect();
            let mut out = vec![7; vectors];
            byte_dots(&left, &groups, &mut out);
            assert_eq!(out, expected, "{elements} {vectors}");
            let mut plain = vec![[7; BYTE_VECTORS]; vectors / BYTE_VECTORS];
            plain_dots(left.as_chunks().0, groups.as_chunks().0, &mut plain);
            if elements > 0 {
                assert_eq!(plain.as_flattened(), expected, "{elements} {vectors}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "groups.len()")]
    fn lengths_that_do_not_fit_are_a_panic() {
        byte_dots(&[0; 4], &[0; 60], &mut [0; 16]);
    }
}
