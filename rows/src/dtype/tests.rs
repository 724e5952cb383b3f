//! Tests that compare the conversions with the definitions of the types, for every bit pattern and
//! on every instruction set.

use proptest::prelude::*;
use zillion_device::simd::{Level, vectorised_at};
use zillion_feature::random::mix64;

use super::*;

/// Returns the value of a 16-bit pattern by the definition of IEEE 754, in a type whose significand
/// has `significand` stored bits.
fn defined(half: u16, significand: i32) -> f64 {
    let exponent_bits = 15 - significand;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(half & 0x7fff) >> significand;
    let fraction = f64::from(half & ((1 << significand) - 1)) / f64::from(1 << significand);
    if exponent == (1 << exponent_bits) - 1 {
        return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let (whole, exponent) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
    sign * (whole + fraction) * 2f64.powi(exponent - bias)
}

/// Returns the finite number of the type that is nearest to `x`, found by a search in the sorted
/// list of all numbers.
fn nearest_defined(x: f64, finite: &[(f64, u16)]) -> u16 {
    let above = finite.partition_point(|&(y, _)| y < x);
    if above == finite.len() {
        return finite[above - 1].1;
    }
    let (below, above) = (finite[above.saturating_sub(1)], finite[above]);
    match ((x - below.0).abs()).total_cmp(&(above.0 - x).abs()) {
        std::cmp::Ordering::Less => below.1,
        std::cmp::Ordering::Greater => above.1,
        std::cmp::Ordering::Equal => {
            if below.1 & 1 == 0 {
                below.1
            } else {
                above.1
            }
        }
    }
}

fn check_type<H: Half>(significand: i32) {
    let mut finite = Vec::new();
    for half in 0..=u16::MAX {
        let (wide, wanted) = (H::widen(half), defined(half, significand));
        if wanted.is_nan() {
            assert!(wide.is_nan() && H::widen(H::nearest(wide)).is_nan(), "{half:#06x}");
            assert!(H::widen(H::stochastic(wide, u32::MAX)).is_nan(), "{half:#06x}");
            continue;
        }
        assert_eq!(f64::from(wide), wanted, "{half:#06x}");
        assert_eq!(wide.is_sign_negative(), half >> 15 == 1, "{half:#06x}");
        if wanted.is_infinite() {
            let largest = if wanted > 0.0 { H::MAX } else { -H::MAX };
            assert_eq!(H::widen(H::nearest(wide)), largest);
            assert_eq!(H::widen(H::stochastic(wide, u32::MAX)), largest);
            continue;
        }
        // A number that the type can hold keeps its bits.
        assert_eq!(H::nearest(wide), half, "{half:#06x}");
        for random in [0, 1, 0x8000_0000, mix32(u32::from(half)), u32::MAX] {
            assert_eq!(H::stochastic(wide, random), half, "{half:#06x} by {random:#x}");
        }
        if half >> 15 == 0 {
            finite.push((wanted, half));
        }
    }
    assert_eq!(finite.last().unwrap().0, f64::from(H::MAX));
    let check = |x: f32| {
        let wanted = nearest_defined(f64::from(x), &finite);
        assert_eq!(H::nearest(x), wanted, "{x:e}");
        assert_eq!(H::nearest(-x), wanted | 0x8000, "{x:e}");
        // The smallest and the largest random bits give the numbers on both sides of `x`, or `x`
        // itself if the type can hold it.
        let (down, up) = (H::stochastic(x, 0), H::stochastic(x, u32::MAX));
        assert!(f64::from(H::widen(down)) <= f64::from(x.min(H::MAX)), "{x:e}");
        assert!(up == down || up == down + 1, "{x:e}: {down:#x} and {up:#x}");
        assert!(down == wanted || up == wanted, "{x:e}");
        assert_eq!(H::stochastic(-x, 7), H::stochastic(x, 7) | 0x8000, "{x:e}");
    };
    for pair in finite.windows(2) {
        // The middle of two neighbours is a number of f32, unless it is below the smallest number
        // of f32.
        let middle = ((pair[0].0 + pair[1].0) / 2.0) as f32;
        [middle, middle.next_up(), middle.next_down().max(0.0)].into_iter().for_each(check);
    }
    for i in 0..200_000u64 {
        let bits = mix64(i) as u32 & 0x7fff_ffff;
        if f32::from_bits(bits).is_finite() {
            check(f32::from_bits(bits));
        }
    }
}

#[test]
fn every_f16_is_what_the_standard_says() {
    check_type::<F16>(10);
}

#[test]
fn every_bf16_is_the_upper_half_of_an_f32() {
    check_type::<Bf16>(7);
}

/// Returns the share of random values with which `x` is rounded up. The upper `bits` bits of the
/// random values take every value once, and the lower bits are zero.
fn share_up<H: Half>(x: f32, bits: u32) -> f64 {
    let below = H::stochastic(x, 0);
    let ups = (0..1u32 << bits).filter(|&top| H::stochastic(x, top << (32 - bits)) != below);
    ups.count() as f64 / f64::from(1u32 << bits)
}

#[test]
fn the_share_that_goes_up_is_the_distance_that_is_left() {
    for i in 0..200u64 {
        let unit = (mix64(i) >> 40) as f32 / 16_777_216.0;
        for (x, step) in [(1.0 + unit, 2f64.powi(-10)), (-0.25 - 0.25 * unit, 2f64.powi(-12))] {
            let left = (f64::from(x.abs()) / step).fract();
            assert_eq!(share_up::<F16>(x, 13), left, "{x} in f16");
        }
        let x = 3.0 - unit;
        let left = (f64::from(x) / 2f64.powi(-6)).fract();
        assert_eq!(share_up::<Bf16>(x, 16), left, "{x} in bf16");
        // Below the normal numbers of f16, steps are 2⁻²⁴, so a few random bits are enough.
        let x = unit * 5e-5;
        let left = (f64::from(x) * 2f64.powi(24)).fract();
        assert!((share_up::<F16>(x, 12) - left).abs() <= 2f64.powi(-12), "{x:e} in f16");
    }
    // A number far below the smallest step of f16 still has a chance to be rounded up.
    assert!((share_up::<F16>(2f32.powi(-30), 12) - 2f64.powi(-6)).abs() <= 2f64.powi(-12));
    assert_eq!(F16::stochastic(1e-30, u32::MAX >> 1), 0);
}

#[test]
fn a_sum_of_steps_below_the_last_place_is_right_on_average() {
    // With rounding to the nearest number, none of these steps would change the weight.
    let (steps, step, rows) = (2_000u64, 2e-4f32, 2_000u64);
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let start = 1.5f32;
        let step = if dtype == Dtype::F16 { step } else { step * 4.0 };
        let mut stuck = [start + step];
        dtype.round_nearest(&mut stuck);
        assert_eq!(stuck, [start], "{dtype:?}");
        let ends = (0..rows).map(|key| {
            let mut w = start;
            (0..steps).for_each(|t| w = dtype.round_pushed(9, key, t, 3, w + step));
            f64::from(w)
        });
        let ends: Vec<f64> = ends.collect();
        let mean = ends.iter().sum::<f64>() / rows as f64;
        let variance = ends.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / rows as f64;
        let sigma = (variance / rows as f64).sqrt();
        let wanted = f64::from(start) + steps as f64 * f64::from(step);
        assert!((mean - wanted).abs() < 4.0 * sigma, "{dtype:?}: {mean} and {wanted}, σ {sigma}");
        // The steps are independent, so this is the variance of a sum of two-valued variables.
        let place = if dtype == Dtype::F16 { 2f64.powi(-9) } else { 2f64.powi(-6) };
        assert!(variance < steps as f64 * f64::from(step) * place * 1.2, "{dtype:?}: {variance}");
    }
}

#[test]
fn random_bits_are_uniform_and_belong_to_key_step_and_unit() {
    let table = Rounding::new(5);
    let mut ones = [0u32; 32];
    let draws = 1u32 << 16;
    for i in 0..draws {
        let (step, key, unit) = (u64::from(i & 7), u64::from(i >> 7), (i >> 3) & 15);
        let bits = table.step(step).row(key).unit(unit);
        ones.iter_mut().enumerate().for_each(|(bit, n)| *n += (bits >> bit) & 1);
    }
    let sigma = f64::from(draws).sqrt() / 2.0;
    for (bit, &n) in ones.iter().enumerate() {
        let off = (f64::from(n) - f64::from(draws) / 2.0).abs();
        assert!(off < 4.5 * sigma, "bit {bit}: {n}");
    }
    let bits = |seed, step, key, unit| Rounding::new(seed).step(step).row(key).unit(unit);
    let first = bits(1, 2, 3, 4);
    let others = [bits(2, 2, 3, 4), bits(1, 3, 3, 4), bits(1, 2, 4, 4), bits(1, 2, 3, 5)];
    assert!(others.iter().all(|&other| other != first));
}

#[test]
fn bounds_move_inward_to_numbers_of_the_type() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for (low, high) in [(-0.1f32, 0.3), (0.1, 0.7), (-3.3, -1.7), (-1e-9, 1e-9), (0.0, 1e5)] {
            let inner = dtype.inward(Bounds { low, high });
            assert!(low <= inner.low && inner.high <= high && inner.low <= inner.high, "{inner:?}");
            let mut same = [inner.low, inner.high];
            dtype.round_nearest(&mut same);
            assert_eq!(same, [inner.low, inner.high]);
        }
        let none = dtype.inward(Bounds { low: 1.0001, high: 1.0002 });
        assert!(none.low > none.high);
    }
    let none = Dtype::F16.inward(Bounds { low: 1e5, high: 1e6 });
    assert!(none.low > none.high);
    let all = Bounds { low: -0.1, high: 0.3 };
    assert_eq!(Dtype::F32.inward(all), all);
}

proptest! {
    #[test]
    fn every_instruction_set_gives_the_same_bits(
        row in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..70),
        seed in any::<u64>(),
    ) {
        fn all<H: Half>(row: &[f32], rounding: RowRounding, level: Level) -> Vec<u32> {
            let (mut a, mut b) = (vec![0; row.len()], vec![0; row.len()]);
            let mut wide = vec![0.0; row.len()];
            let beyond = vectorised_at(
                level,
                #[inline(always)]
                || {
                    nearest::<H>(row, &mut a);
                    widen::<H>(&a, &mut wide);
                    stochastic::<H>(row, rounding, &mut b)
                },
            );
            let halves = a.into_iter().chain(b).map(u32::from);
            halves.chain(wide.into_iter().map(f32::to_bits)).chain([beyond]).collect()
        }
        let rounding = Rounding::new(seed).step(3).row(seed ^ 9);
        for level in [Level::Avx2, Level::Avx512] {
            prop_assert_eq!(
                all::<F16>(&row, rounding, level),
                all::<F16>(&row, rounding, Level::Scalar)
            );
            prop_assert_eq!(
                all::<Bf16>(&row, rounding, level),
                all::<Bf16>(&row, rounding, Level::Scalar)
            );
        }
    }
}

/// Checks the random bits of rounding against fixed values, because every resumed run of a table
/// with 16-bit weights depends on these bits.
#[test]
fn golden_vectors_pin_the_rounding() {
    let row = Rounding::new(42).step(7).row(0x0123_4567_89ab_cdef);
    let bits = [0, 1, 15].map(|unit| row.unit(unit));
    assert_eq!(bits, GOLDEN, "{bits:#010x?}");
}

const GOLDEN: [u32; 3] = [0x2d2e_71fa, 0x01c1_f0fc, 0x9496_e3b9];
