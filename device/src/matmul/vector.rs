//! The vector operations of a register tile, implemented for each instruction set.

use std::arch::x86_64::*;

/// A register of floats. All operations are `unsafe`, because the machine must have the
/// instructions and the calling function must be compiled for them. Some operations also take
/// pointers.
pub(super) trait Vector: Copy {
    /// The number of floats in a register.
    const LANES: usize;

    /// The type of a mask, which selects the first lanes of a register.
    type Mask: Copy;

    /// Returns the mask of the first `lanes` lanes. `lanes` is at most the number of lanes.
    ///
    /// # Safety
    ///
    /// The machine must have the instructions.
    unsafe fn mask(lanes: usize) -> Self::Mask;

    /// Returns zeros in all lanes.
    ///
    /// # Safety
    ///
    /// The machine must have the instructions.
    unsafe fn zero() -> Self;

    /// Loads a whole register of floats, with any alignment.
    ///
    /// # Safety
    ///
    /// These floats must be readable.
    unsafe fn load(from: *const f32) -> Self;

    /// Loads the lanes of the mask, and sets the other lanes to zero. The memory of the other lanes
    /// is not read.
    ///
    /// # Safety
    ///
    /// The floats of the mask must be readable.
    unsafe fn load_part(from: *const f32, mask: Self::Mask) -> Self;

    /// Loads one float into every lane.
    ///
    /// # Safety
    ///
    /// The float must be readable.
    unsafe fn splat(from: *const f32) -> Self;

    /// Computes `a * b + c`, rounded once.
    ///
    /// # Safety
    ///
    /// The machine must have the instructions.
    unsafe fn mul_add(a: Self, b: Self, c: Self) -> Self;

    /// Computes `a + b` in each lane.
    ///
    /// # Safety
    ///
    /// The machine must have the instructions.
    unsafe fn add(a: Self, b: Self) -> Self;

    /// Returns zero for each lane below zero, and all other lanes unchanged. A NaN and a negative
    /// zero stay unchanged.
    ///
    /// # Safety
    ///
    /// The machine must have the instructions.
    unsafe fn relu(self) -> Self;

    /// Stores all lanes, with any alignment.
    ///
    /// # Safety
    ///
    /// These floats must be writable.
    unsafe fn store(self, to: *mut f32);

    /// Stores the lanes of the mask. No other memory is written.
    ///
    /// # Safety
    ///
    /// The floats of the mask must be writable.
    unsafe fn store_part(self, to: *mut f32, mask: Self::Mask);
}

// SAFETY (of every block here): an intrinsic requires its instruction set, which the callers of the
// trait promise, and a valid pointer, whose promise is passed on in the same words.
impl Vector for __m512 {
    const LANES: usize = 16;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __mmask16 {
        if lanes >= 16 { u16::MAX } else { (1u16 << lanes) - 1 }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen readable floats are the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, mask: __mmask16) -> Self {
        // SAFETY: the floats of the mask are readable by the caller's promise; others are not
        // touched.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: one readable float is the caller's promise.
        unsafe { _mm512_set1_ps(*from) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: Self, b: Self) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // Of two values that do not compare as greater, the instruction returns the second. SAFETY:
        // the instruction set is the caller's promise.
        unsafe { _mm512_max_ps(_mm512_setzero_ps(), self) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen writable floats are the caller's promise.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, mask: __mmask16) {
        // SAFETY: the floats of the mask are writable by the caller's promise; others are not
        // touched.
        unsafe { _mm512_mask_storeu_ps(to, mask, self) }
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __m256i {
        // SAFETY: the instruction set is the caller's promise.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes.min(8) as i32), lane)
        }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: eight readable floats are the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, mask: __m256i) -> Self {
        // SAFETY: the floats of the mask are readable by the caller's promise; others are not
        // touched.
        unsafe { _mm256_maskload_ps(from, mask) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: one readable float is the caller's promise.
        unsafe { _mm256_set1_ps(*from) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: Self, b: Self) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // Of two values that do not compare as greater, the instruction returns the second. SAFETY:
        // the instruction set is the caller's promise.
        unsafe { _mm256_max_ps(_mm256_setzero_ps(), self) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: eight writable floats are the caller's promise.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, mask: __m256i) {
        // SAFETY: the floats of the mask are writable by the caller's promise; others are not
        // touched.
        unsafe { _mm256_maskstore_ps(to, mask, self) }
    }
}
