//! Products of numbers of type bf16 with sums of f32, by the matrix instructions of a processor.
//!
//! The operands are matrices of f32. They are rounded to bf16 when they are packed, and the sums,
//! the old values, the bias and the result are f32. A product is about five times faster than that
//! of f32 if the processor has AMX.
//!
//! # The value of an element
//! Factors are rounded to the nearest bf16, halves to even (see [`round()`]). The terms of a sum
//! are products of two factors, and each addition is fused with its product and rounded to f32.
//! The order of the additions is that of the instruction (see `reference`): AMX and AVX512-BF16
//! have different orders, so their bits differ in the last places. For one instruction set, the
//! bits of an element depend only on its row of the left operand and on its column of the right
//! operand. The tile, the other rows and the threads have no effect. Numbers below the smallest
//! normal f32 are zero, as factors and as sums.

#[cfg(target_arch = "x86_64")]
mod amx;
mod detect;
#[cfg(target_arch = "x86_64")]
mod dot;
mod pack;
mod product;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod reference;
mod round;
mod sums;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;

pub use detect::Instructions;
pub use pack::{Panel, Scratch};
pub use product::{linear, linear_from, outer_product};
pub use round::{round, round_all};
