//! One source for all instruction sets: a plain loop is compiled once for each level of the
//! machine.
//!
//! [`vectorised`] runs a closure inside a function with `#[target_feature]`. LLVM inlines the
//! closure into this function, and vectorises its loops with the wide registers. The scalar version
//! has the same source. Rust does not fuse `a * b + c` and does not reorder sums, so all versions
//! give the same bits. The results of training therefore do not depend on the instruction set.
//!
//! # How to write a kernel
//!
//! * Always write `#[inline(always)]` on the closure. One function per level calls the closure, so
//!   LLVM might not inline a large closure, which would then run with baseline registers. With the
//!   attribute, the closure is compiled once for each level.
//! * Every function that the closure calls in its loops must also be `#[inline(always)]`, for the
//!   same reason. The functions of [`math`] are.
//! * If a loop reads and writes several slices, let the closure call an `#[inline(always)]`
//!   function that takes them as arguments: LLVM knows that arguments do not alias, but not that
//!   captured slices do not.
//! * LLVM does not vectorise sums of floats, because this would reorder them: use [`dot`], [`sum`]
//!   and [`sum_of_squares`], which have a fixed order of several lanes.
//!
//! ```
//! use zillion_device::simd::vectorised;
//!
//! fn step(weights: &mut [f32], gradients: &[f32], rate: f32) {
//!     vectorised(
//!         #[inline(always)]
//!         || {
//!             for (weight, gradient) in weights.iter_mut().zip(gradients) {
//!                 *weight -= rate * gradient;
//!             }
//!         },
//!     )
//! }
//!
//! let mut weights = [1.0; 20];
//! step(&mut weights, &[2.0; 20], 0.25);
//! assert_eq!(weights, [0.5; 20]);
//! ```

mod lanes;
pub mod math;
mod nibble_dots;
mod reduce;

pub use lanes::{equal_bytes, equal_lanes};
pub use nibble_dots::{MOST_NIBBLES, NIBBLE_STEP, NIBBLE_VECTORS, nibble_dots};
pub use reduce::{dot, scaled_dots, sum, sum_of_squares};

/// The instruction sets that a kernel may use, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The instructions that every machine of the architecture has (SSE2, NEON).
    Scalar,
    /// The 256-bit registers of AVX2.
    Avx2,
    /// The 512-bit registers with masks of AVX-512 (the F, BW, CD, DQ and VL parts).
    Avx512,
}

impl Level {
    /// All levels in ascending order, for tests and benchmarks.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];
}

/// Returns the highest level of this machine. The call is cheap: the standard library caches the
/// detected features, so that a call is one load and a few bit tests.
#[inline]
pub fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Scalar
}

/// Runs `f`, compiled for the widest registers of this machine. The module describes how to write
/// `f`.
#[inline(always)]
pub fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    run(level(), f)
}

/// Runs `f`, compiled for the lower of two levels: `wanted` and the level of this machine. It is
/// for benchmarks and for tests that compare levels.
#[inline(always)]
pub fn vectorised_at<R>(wanted: Level, f: impl FnOnce() -> R) -> R {
    run(wanted.min(level()), f)
}

/// Runs `f` at the level `allowed`, which must not be above [`level`]. Both callers ensure this.
#[inline(always)]
fn run<R>(allowed: Level, f: impl FnOnce() -> R) -> R {
    match allowed {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `allowed` is at most `level()`, which returns Avx512 only where this machine has
        // every feature named on `avx512`.
        Level::Avx512 => unsafe { avx512(f) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, for the two features named on `avx2`.
        Level::Avx2 => unsafe { avx2(f) },
        _ => f(),
    }
}

/// Calls `f` in a function in which LLVM may use 512-bit registers.
///
/// # Safety
///
/// The machine must have the features in the attribute of this function.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls `f` in a function in which LLVM may use 256-bit registers.
///
/// # Safety
///
/// The machine must have the features in the attribute of this function.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}
