//! The search for a word among eight words, and for a byte among sixteen. An index uses them to
//! search a cache line.

/// Returns a mask in which bit `i` is set if `words[i] == word`.
#[inline(always)]
pub fn equal_lanes(words: &[u32; 8], word: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64. The two loads of 16 bytes lie inside the 32 bytes of `words`
    // and need no alignment.
    unsafe {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16,
            _mm_packs_epi32, _mm_set1_epi32, _mm_setzero_si128,
        };
        let start: *const __m128i = words.as_ptr().cast();
        let wanted = _mm_set1_epi32(word as i32);
        let low = _mm_cmpeq_epi32(_mm_loadu_si128(start), wanted);
        let high = _mm_cmpeq_epi32(_mm_loadu_si128(start.add(1)), wanted);
        let bytes = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
        _mm_movemask_epi8(bytes) as u32
    }
    #[cfg(not(target_arch = "x86_64"))]
    equal_lanes_scalar(words, word)
}

/// Computes the mask by its definition.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn equal_lanes_scalar(words: &[u32; 8], word: u32) -> u32 {
    words.iter().enumerate().map(|(lane, &w)| u32::from(w == word) << lane).sum()
}

/// Returns a mask in which bit `i` is set if `bytes[i] == byte`.
#[inline(always)]
pub fn equal_bytes(bytes: &[u8; 16], byte: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64. The load of 16 bytes lies inside `bytes` and needs no
    // alignment.
    unsafe {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        let found = _mm_loadu_si128(bytes.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_set1_epi8(byte as i8))) as u32
    }
    #[cfg(not(target_arch = "x86_64"))]
    equal_bytes_scalar(bytes, byte)
}

/// Computes the mask by its definition.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn equal_bytes_scalar(bytes: &[u8; 16], byte: u8) -> u32 {
    bytes.iter().enumerate().map(|(lane, &b)| u32::from(b == byte) << lane).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_as_by_the_definition() {
        let bytes = [0, 1, 255, 1, 128, 7, 0, 1, 127, 254, 255, 0, 9, 9, 128, 255];
        for byte in 0..=255 {
            assert_eq!(equal_bytes(&bytes, byte), equal_bytes_scalar(&bytes, byte), "{byte}");
        }
        assert_eq!(equal_bytes(&[9; 16], 9), 0xffff);
    }

    #[test]
    fn lanes_are_compared_as_by_the_definition() {
        let words = [0, 1, u32::MAX, 1, 0x8000_0000, 7, 0, 1];
        for word in [0, 1, 2, 7, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0x1_0001] {
            assert_eq!(equal_lanes(&words, word), equal_lanes_scalar(&words, word), "{word:x}");
        }
        assert_eq!(equal_lanes(&[9; 8], 9), 0xff);
    }
}
