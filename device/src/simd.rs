//! One source for every instruction set: a plain loop, compiled again for what the machine has.
//!
//! [`vectorised`] runs a closure inside a function that carries `#[target_feature]`; LLVM inlines
//! the closure there and autovectorises its loops with the wide registers. The scalar twin is the
//! same source, and because Rust neither contracts `a * b + c` to a fused operation nor reorders
//! sums, the two agree bit for bit: the result of a training run does not depend on the instruction
//! set.
//!
//! # How to write a kernel
//!
//! * Write `#[inline(always)]` on the closure, always: a closure is called from one frame per
//!   level, so LLVM may decide against inlining a large one, and it would then run with baseline
//!   registers, silently. With the attribute it is compiled once for each level.
//! * Every function that the closure calls in its loops must be `#[inline(always)]` too, for the
//!   same reason. Those of [`math`] are.
//! * Where a loop reads and writes several slices, let the closure call an `#[inline(always)]`
//!   function that takes them as arguments: arguments are known not to alias, captured slices are
//!   not.
//! * Sums over floats are not vectorised by LLVM, since that would reorder them: use [`dot`],
//!   [`sum`] and [`sum_of_squares`], whose order is fixed and wide.
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
mod reduce;

pub use lanes::equal_lanes;
pub use reduce::{dot, sum, sum_of_squares};

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
    /// All levels, lowest first, for tests and benches.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];
}

/// Returns the highest level of this machine. The call is cheap: the standard library caches what
/// it detects, so that this is one load and a few bit tests.
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

/// Runs `f`, compiled for the widest registers of this machine. See the module for how to write
/// `f`.
#[inline(always)]
pub fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    run(level(), f)
}

/// Runs `f`, compiled for `wanted` or for what the machine has, whichever is lower: for tests that
/// compare levels and benches that time them.
#[inline(always)]
pub fn vectorised_at<R>(wanted: Level, f: impl FnOnce() -> R) -> R {
    run(wanted.min(level()), f)
}

/// Runs `f` at `allowed`, which must not be above [`level`]; both callers ensure it.
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

/// Calls `f` in a frame in which LLVM may use 512-bit registers.
///
/// # Safety
///
/// The machine must have the features named here.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls `f` in a frame in which LLVM may use 256-bit registers.
///
/// # Safety
///
/// The machine must have the features named here.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}
