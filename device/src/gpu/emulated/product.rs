//! A stand-in for the library of products: plain sums in ascending or in descending order, with
//! operands rounded as the library rounds them.

use crate::gpu::memory::Memory;
use crate::gpu::product::{Element, Epilogue, Precision, Product};

/// Computes a product whose ranges are live and large enough.
pub(super) fn multiply(product: &Product, is_descending: bool) {
    let round = |value: f32| match product.precision {
        Precision::F32 | Precision::Bf16 => value,
        Precision::Tf32 => round_tf32(value),
    };
    let input = product.precision.element();
    let read = |memory: Memory, index: usize| round(read_element(memory, input, index));
    for row in 0..product.m {
        for column in 0..product.n {
            let mut sum = 0.0f32;
            for index in 0..product.k {
                let term = if is_descending { product.k - 1 - index } else { index };
                let a = match product.transpose_a {
                    true => term * product.lda + row,
                    false => row * product.lda + term,
                };
                let b = match product.transpose_b {
                    true => column * product.ldb + term,
                    false => term * product.ldb + column,
                };
                sum = read(product.a, a).mul_add(read(product.b, b), sum);
            }
            let place = row * product.ldc + column;
            if product.accumulate {
                sum += read_element(product.c, product.output, place);
            }
            if product.epilogue != Epilogue::None {
                sum += read_element(product.bias, product.output, column);
            }
            // A NaN stays, as in our own relu.
            if product.epilogue == Epilogue::BiasRelu && sum < 0.0 {
                sum = 0.0;
            }
            write_element(product.c, product.output, place, sum);
        }
    }
}

/// Rounds to 10 bits of fraction, ties to even.
fn round_tf32(value: f32) -> f32 {
    round_bits(value, 13)
}

/// Rounds to bf16, ties to even.
fn round_bf16(value: f32) -> u16 {
    (round_bits(value, 16).to_bits() >> 16) as u16
}

fn round_bits(value: f32, bits: u32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let raw = value.to_bits();
    let half = (1u32 << (bits - 1)) - 1 + (raw >> bits & 1);
    f32::from_bits((raw + half) & !((1 << bits) - 1))
}

fn read_element(memory: Memory, element: Element, index: usize) -> f32 {
    let place = memory.address() as usize + index * element.bytes();
    match element {
        // SAFETY: the check of the product says that the index lies in the live range, whose
        // address is a multiple of 16.
        Element::F32 => unsafe { (place as *const f32).read() },
        // SAFETY: as above.
        Element::Bf16 => f32::from_bits(u32::from(unsafe { (place as *const u16).read() }) << 16),
    }
}

fn write_element(memory: Memory, element: Element, index: usize, value: f32) {
    let place = memory.address() as usize + index * element.bytes();
    match element {
        // SAFETY: as in `read_element`.
        Element::F32 => unsafe { (place as *mut f32).write(value) },
        // SAFETY: as in `read_element`.
        Element::Bf16 => unsafe { (place as *mut u16).write(round_bf16(value)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_to_the_nearest_and_ties_to_even() {
        let step = 2f32.powi(-10);
        assert_eq!(round_tf32(1.0 + step * 0.49), 1.0);
        assert_eq!(round_tf32(1.0 + step * 0.5), 1.0);
        assert_eq!(round_tf32(1.0 + step * 1.5), 1.0 + step * 2.0);
        assert_eq!(round_tf32(-1.0 - step * 0.51), -1.0 - step);
        assert_eq!(round_bf16(1.0 + 2f32.powi(-8)), 0x3f80);
        assert_eq!(round_bf16(1.0 + 2f32.powi(-8) * 1.01), 0x3f81);
        assert!(round_tf32(f32::NAN).is_nan());
        assert_eq!(round_tf32(f32::INFINITY), f32::INFINITY);
    }
}
