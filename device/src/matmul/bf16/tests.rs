//! Tests of the products of bf16. The kernels are compared bit by bit with loops in the order of
//! their instruction, and these loops with f64.

use proptest::prelude::*;

use super::super::tests::values;
use super::super::{Epilogue, View};
use super::*;

fn rounded(value: f32) -> f32 {
    f32::from_bits(u32::from(round(value)) << 16)
}

/// The sets of this machine. On a machine without any, the tests of kernels have nothing to
/// compare.
fn sets() -> Vec<Instructions> {
    Instructions::list().collect()
}

/// A dimension: small ones, and those around the sides of tiles and blocks.
fn dimension(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![1usize..20, 14usize..70, Just(256), 1..most]
}

/// Returns the matrix of a view, element by element.
fn at(view: View<'_>, row: usize, column: usize) -> f32 {
    view.values[row * view.row_stride + column * view.column_stride]
}

/// Returns the largest error of a sum of `terms` products whose absolute values add up to `total`.
/// Each of the factors of a term was rounded by 2⁻⁹ of its value at most. The factors of the exact
/// sum are rounded too, so only the additions are left: each moves a partial sum by 2⁻²⁴ of its
/// value at most, and there are fewer than `terms + 64` of them on the way of a term. A number that
/// becomes zero moves a sum by less than 2⁻¹²⁶.
fn bound(terms: usize, total: f64) -> f64 {
    let additions = (terms + 64) as f64;
    total * additions * f64::exp2(-24.0) * 1.01 + additions * f64::exp2(-126.0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_number_is_rounded_to_the_nearest_one(value in any::<u32>()) {
        let value = f32::from_bits(value);
        let result = rounded(value);
        if value.is_nan() {
            prop_assert!(result.is_nan() && result.to_bits() & 0x0040_0000 != 0);
        } else if value.is_subnormal() {
            prop_assert_eq!(result.to_bits(), 0.0f32.copysign(value).to_bits());
        } else {
            let step = |by: u16| f32::from_bits(u32::from(round(value).wrapping_add(by)) << 16);
            let far = |other: f32| (f64::from(other) - f64::from(value)).abs();
            let own = far(result);
            // The next number after the largest one counts as that power of two, as in IEEE 754.
            let far = |other: f32| if other.is_infinite() { f64::exp2(128.0) - f64::from(value).abs() } else { far(other) };
            let own = if result.is_infinite() && value.is_finite() { far(result) } else { own };
            if value.is_finite() {
                for other in [step(1), step(u16::MAX)] {
                    let apart = far(other);
                    prop_assert!(own < apart || (own == apart && round(value).is_multiple_of(2)) || other.is_nan());
                }
            } else {
                prop_assert_eq!(result, value);
            }
        }
    }

    #[test]
    fn tiles_have_the_rounded_numbers_of_any_view(
        (m, n) in (dimension(90), dimension(90)),
        gap in 0usize..5,
        seed in any::<u64>(),
    ) {
        let stride = n + gap;
        let mut from = values(m * stride, seed);
        // Numbers of all magnitudes, NaN and infinity among them.
        for (index, value) in from.iter_mut().enumerate().step_by(7) {
            *value = f32::from_bits((seed as u32).wrapping_mul(2 * index as u32 + 1));
        }
        for view in [View::new(&from, m, n, stride), View::new(&from, m, n, stride).transposed()] {
            let (rows, columns) = (view.rows, view.columns);
            let mut left = vec![pack::Line([7; 32]); pack::left_lines(rows, columns)];
            pack::pack_left(view, &mut left);
            for row in 0..rows {
                for column in 0..columns.next_multiple_of(32) {
                    let expected = if column < columns { round(at(view, row, column)) } else { 0 };
                    let tile = (row / 32 * columns.div_ceil(32) + column / 32) * 2 + row / 16 % 2;
                    prop_assert_eq!(left[tile * 16 + row % 16].0[column % 32], expected);
                }
            }
            let mut panels = Panel::list(rows, columns);
            panels.iter_mut().for_each(|panel| panel.fill(view));
            prop_assert_eq!(
                panels.iter().map(|panel| size_of_val(panel.lines.as_slice())).sum::<usize>(),
                Panel::bytes(rows, columns)
            );
            for column in 0..columns {
                let panel = &panels[column / 32];
                for row in 0..rows.next_multiple_of(32) {
                    let expected = if row < rows { round(at(view, row, column)) } else { 0 };
                    let width = panel.columns.div_ceil(16);
                    let tile = row / 32 * width + column % 32 / 16;
                    let line = panel.lines[tile * 16 + row % 32 / 2];
                    prop_assert_eq!(line.0[column % 16 * 2 + row % 2], expected);
                }
            }
        }
    }

    #[test]
    fn linear_has_the_bits_of_its_definition(
        (m, n, k) in (dimension(300), dimension(90), dimension(600)),
        (x_gap, out_gap) in (0usize..5, 0usize..20),
        (turned, biased, relu, accumulate) in any::<(bool, bool, bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let x = values(m * (k + x_gap), seed);
        let (w, bias) = (values(k * n, seed ^ 1), values(n, seed ^ 2));
        let view = View::new(&x, m, k, k + x_gap);
        let weight = if turned { View::packed(&w, n, k).transposed() } else { View::packed(&w, k, n) };
        let mut panels = Panel::list(k, n);
        panels.iter_mut().for_each(|panel| panel.fill(weight));
        let stride = n + out_gap;
        let before = values(m * stride, seed ^ 3);
        for set in sets() {
            let epilogue = Epilogue { accumulate, bias: biased.then_some(&bias), relu };
            let mut out = before.clone();
            let mut scratch = Scratch::default();
            linear(set, view, &panels, epilogue, &mut out, stride, &mut scratch);
            for i in 0..m {
                for j in 0..stride {
                    let (got, old) = (out[i * stride + j], before[i * stride + j]);
                    if j >= n {
                        prop_assert_eq!(got.to_bits(), old.to_bits());
                        continue;
                    }
                    let pair = |p| (rounded(at(view, i, p)), rounded(at(weight, p, j)));
                    let mut sum = reference::sum(set.set(), (0..k).map(pair));
                    let terms = || (0..k).map(pair).map(|(x, w)| f64::from(x) * f64::from(w));
                    let far = (f64::from(sum) - terms().sum::<f64>()).abs();
                    prop_assert!(far <= bound(k, terms().map(f64::abs).sum()), "{far}");
                    if accumulate { sum += old; }
                    if biased { sum += bias[j]; }
                    if relu { sum = sum.max(0.0); }
                    prop_assert_eq!(got, sum, "{} at {}, {}", set, i, j);
                }
            }
        }
    }

    #[test]
    fn the_last_rows_of_a_weight_are_as_a_whole_weight_with_zeros_before(
        (m, n, k) in (dimension(70), dimension(90), dimension(300)),
        share in 0.0f64..1.0,
        seed in any::<u64>(),
    ) {
        let first = ((share * k as f64) as usize).min(k - 1);
        let (mut x, w) = (values(m * k, seed), values(k * n, seed ^ 1));
        x.chunks_exact_mut(k).for_each(|row| row[..first].fill(0.0));
        let mut panels = Panel::list(k, n);
        panels.iter_mut().for_each(|panel| panel.fill(View::packed(&w, k, n)));
        for set in sets() {
            let (mut whole, mut part) = (vec![0.0; m * n], vec![0.0; m * n]);
            let (epilogue, mut scratch) = (Epilogue::default(), Scratch::default());
            linear(set, View::packed(&x, m, k), &panels, epilogue, &mut whole, n, &mut scratch);
            let rest = View::new(&x[first..], m, k - first, k);
            linear_from(set, first, rest, &panels, epilogue, &mut part, n, &mut scratch);
            prop_assert_eq!(&whole, &part, "{} from {} of {}", set, first, k);
        }
    }

    #[test]
    fn outer_products_have_the_bits_of_their_definition(
        (m, n, rows) in (dimension(90), dimension(90), dimension(700)),
        (x_gap, g_gap, out_gap) in (0usize..5, 0usize..5, 0usize..20),
        accumulate in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (x, g) = (values(rows * (m + x_gap), seed), values(rows * (n + g_gap), seed ^ 1));
        let (left, right) = (View::new(&x, rows, m, m + x_gap), View::new(&g, rows, n, n + g_gap));
        let stride = n + out_gap;
        let before = values(m * stride, seed ^ 2);
        for set in sets() {
            let mut out = before.clone();
            outer_product(set, left, right, accumulate, &mut out, stride, &mut Scratch::default());
            for i in 0..m {
                for j in 0..stride {
                    let (got, old) = (out[i * stride + j], before[i * stride + j]);
                    if j >= n {
                        prop_assert_eq!(got.to_bits(), old.to_bits());
                        continue;
                    }
                    let mut expected = accumulate.then_some(old);
                    for begin in (0..rows).step_by(256) {
                        let pair = |p| (rounded(at(left, p, i)), rounded(at(right, p, j)));
                        let sum = reference::sum(set.set(), (begin..rows.min(begin + 256)).map(pair));
                        expected = Some(expected.map_or(sum, |before| before + sum));
                    }
                    prop_assert_eq!(Some(got), expected, "{} at {}, {}", set, i, j);
                }
            }
        }
    }
}

#[test]
fn all_numbers_are_rounded_alike_by_loops_and_instructions() {
    // Every upper half, with the lower halves around a tie.
    let lower = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let from: Vec<f32> = (0..=u16::MAX)
        .flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)))
        .collect();
    let mut to = vec![0; from.len()];
    round_all(&from, &mut to);
    let expected: Vec<u16> = from.iter().map(|&value| round(value)).collect();
    assert_eq!(to, expected);
    let view = View::packed(&from, from.len() / 32, 32);
    let mut left = vec![pack::Line::ZERO; pack::left_lines(view.rows, 32)];
    pack::pack_left(view, &mut left);
    assert!(left.iter().flat_map(|line| line.0).eq(expected));
}

#[test]
fn nan_and_infinity_reach_the_result_and_small_numbers_do_not() {
    for set in sets() {
        let (k, n) = (40, 5);
        let mut x = vec![1.0; 3 * k];
        x[7] = f32::NAN;
        x[k + 39] = f32::INFINITY;
        x[2 * k..].fill(f32::MIN_POSITIVE / 2.0);
        let mut panels = Panel::list(k, n);
        panels.iter_mut().for_each(|panel| panel.fill(View::packed(&vec![0.5; k * n], k, n)));
        let mut out = vec![7.0; 3 * n];
        let view = View::packed(&x, 3, k);
        let epilogue = Epilogue { relu: true, ..Epilogue::default() };
        linear(set, view, &panels, epilogue, &mut out, n, &mut Scratch::default());
        assert!(out[..n].iter().all(|value| value.is_nan()), "{set}: {out:?}");
        assert!(out[n..2 * n].iter().all(|&value| value == f32::INFINITY), "{set}: {out:?}");
        assert!(out[2 * n..].iter().all(|&value| value == 0.0), "{set}: {out:?}");
    }
}

#[test]
fn products_without_an_inner_dimension_are_zero() {
    for set in sets() {
        let (mut out, mut scratch) = (vec![7.0; 6], Scratch::default());
        let panels = Panel::list(0, 3);
        let bias = [1.0, 2.0, 3.0];
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        linear(set, View::packed(&[], 2, 0), &panels, epilogue, &mut out, 3, &mut scratch);
        assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        let (x, g) = (View::packed(&[], 0, 2), View::packed(&[], 0, 3));
        outer_product(set, x, g, false, &mut out, 3, &mut scratch);
        assert_eq!(out, [0.0; 6]);
        outer_product(set, View::packed(&[], 0, 0), g, false, &mut [], 3, &mut scratch);
    }
}

#[test]
fn the_plain_loops_have_the_bits_of_the_kernels() {
    for set in sets() {
        let (m, n, k) = (32, 30, 70);
        let (x, w) = (values(m * k, 1), values(k * n, 2));
        let mut panels = Panel::list(k, n);
        panels.iter_mut().for_each(|panel| panel.fill(View::packed(&w, k, n)));
        let mut left = vec![pack::Line::ZERO; pack::left_lines(m, k)];
        pack::pack_left(View::packed(&x, m, k), &mut left);
        let mut out = vec![0.0; m * n];
        let mut scratch = Scratch::default();
        let view = View::packed(&x, m, k);
        linear(set, view, &panels, Epilogue::default(), &mut out, n, &mut scratch);
        let mut sums = sums::Sums::ZERO;
        product::Kernel::Plain(set.set()).compute(3, &left, &panels[0].lines, 2, &mut sums);
        for i in 0..m {
            for j in 0..n {
                let plain = sums.0[(i / 16 * 2 + j / 16) * 16 + i % 16][j % 16];
                assert_eq!(out[i * n + j].to_bits(), plain.to_bits(), "{set} at {i}, {j}");
            }
        }
    }
}

#[test]
fn mistakes_of_a_caller_panic() {
    let Some(set) = Instructions::detect() else { return };
    let values = [0.0; 12];
    let refused = |x: View<'_>, panels: &[Panel], bias: Option<&[f32]>, length, stride| {
        let mut out = vec![0.0; length];
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        let call = || linear(set, x, panels, epilogue, &mut out, stride, &mut Scratch::default());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    let (rows, panels) = (View::packed(&values, 3, 4), Panel::list(4, 3));
    assert!(!refused(rows, &panels, None, 9, 3));
    assert!(refused(rows, &Panel::list(3, 3), None, 9, 3));
    assert!(refused(View::packed(&values[1..], 3, 4), &panels, None, 9, 3));
    assert!(refused(rows, &panels, None, 8, 3));
    assert!(refused(rows, &panels, None, 9, 2));
    assert!(refused(rows, &panels, Some(&[0.0; 2]), 9, 3));
    assert!(refused(rows, &Panel::list(4, 100)[1..], None, 300, 100));
    let fill = || Panel::list(5, 3)[0].fill(View::packed(&values, 4, 3));
    assert!(std::panic::catch_unwind(fill).is_err());
    let outer = |x: View<'_>, g: View<'_>, length: usize| {
        let mut out = vec![0.0; length];
        let call = || outer_product(set, x, g, false, &mut out, 3, &mut Scratch::default());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    let weight = View::packed(&values, 4, 3);
    assert!(!outer(weight, weight, 9));
    assert!(outer(weight, weight, 8));
    assert!(outer(rows, weight, 12));
}
