//! The transposition of sixteen by sixteen floats in registers, for panels of transposed weights.

use std::arch::x86_64::*;

use super::scratch::LINE;

/// Transposes a block. For each `p < 16` and `j < 16`, it sets `to[p * to_step + j]` to `from[j *
/// from_step + p]`.
///
/// # Safety
///
/// The machine must have AVX-512 F. All elements that are read must be readable, and all elements
/// that are written must be writable. `to` must not overlap `from`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
    // SAFETY: each load reads the sixteen elements of one `j`, each store writes those of one `p`;
    // both are promised by the caller.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); LINE];
        for (j, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_ps(from.add(j * from_step));
        }
        // The first step works in blocks of four by four inside each quarter of a register. Of the
        // rows 4g..4g+4, quarter q of `fours[4g + c]` contains column 4q + c.
        let mut fours = [_mm512_setzero_ps(); LINE];
        for g in (0..LINE).step_by(4) {
            let low01 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[g], rows[g + 1]));
            let high01 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[g], rows[g + 1]));
            let low23 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[g + 2], rows[g + 3]));
            let high23 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[g + 2], rows[g + 3]));
            fours[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
            fours[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
            fours[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
            fours[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
        }
        // The second step exchanges the quarters. Column 4q + c consists of quarter q of the four
        // registers for c.
        for c in 0..4 {
            let (a, b, d, e) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
            let even_ab = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let odd_ab = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let even_de = _mm512_shuffle_f32x4::<0b10_00_10_00>(d, e);
            let odd_de = _mm512_shuffle_f32x4::<0b11_01_11_01>(d, e);
            let store = |q: usize, value: __m512| {
                _mm512_storeu_ps(to.add((4 * q + c) * to_step), value);
            };
            store(0, _mm512_shuffle_f32x4::<0b10_00_10_00>(even_ab, even_de));
            store(1, _mm512_shuffle_f32x4::<0b10_00_10_00>(odd_ab, odd_de));
            store(2, _mm512_shuffle_f32x4::<0b11_01_11_01>(even_ab, even_de));
            store(3, _mm512_shuffle_f32x4::<0b11_01_11_01>(odd_ab, odd_de));
        }
    }
}
