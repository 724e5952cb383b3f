//! The order of the additions of each instruction, as plain loops. Tests compare the kernels with
//! these loops bit by bit. They also stand for the kernels in a build for other processors.

use super::detect::Set;
use super::pack::BLOCK;

/// Returns the sum of the products of pairs of factors, which are numbers of bf16.
///
/// AMX divides the terms into blocks of [`BLOCK`]. In a block, the terms with even and those with
/// odd places have a chain each, in ascending order, which begins at zero. The sum of both chains
/// is added to the sum of the blocks before. AVX512-BF16 has one chain of pairs of terms, and in a
/// pair the second term is first.
pub(super) fn sum(set: Set, pairs: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut pairs = pairs.peekable();
    let mut sum = 0.0f32;
    while pairs.peek().is_some() {
        match set {
            Set::Amx => {
                let (mut even, mut odd) = (0.0, 0.0);
                for place in 0..BLOCK {
                    let (x, y) = pairs.next().unwrap_or_default();
                    let chain = if place % 2 == 0 { &mut even } else { &mut odd };
                    *chain = fused(x, y, *chain);
                }
                sum = flush(sum + flush(even + odd));
            }
            Set::Avx512 => {
                let (first, second) =
                    (pairs.next().unwrap_or_default(), pairs.next().unwrap_or_default());
                sum = fused(second.0, second.1, sum);
                sum = fused(first.0, first.1, sum);
            }
        }
    }
    sum
}

/// Computes `x * y + z` with one rounding.
fn fused(x: f32, y: f32, z: f32) -> f32 {
    flush(x.mul_add(y, z))
}

/// Returns zero for a number below the smallest normal one.
fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}
