//! Tests of our kernels. They are compared with f64 within a tolerance. They are also compared bit
//! for bit with the scalar reference, with other divisions of the work, and with other instruction
//! sets.

use proptest::prelude::*;

use super::*;
use crate::simd::{Level, level};

/// Returns deterministic values in [-1, 1].
pub(super) fn values(length: usize, seed: u64) -> Vec<f32> {
    (0..length as u64)
        .map(|i| {
            let mixed = (i ^ (seed << 32)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Returns the levels that this machine can run, the scalar reference first.
fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|&wanted| wanted <= level())
}

fn packed(level: Level, view: View<'_>) -> Vec<Panel> {
    let mut panels = Panel::list_at(level, view.rows, view.columns);
    panels.iter_mut().for_each(|panel| panel.fill(view));
    panels
}

/// Makes a matrix inside a larger one. Its rows are `columns + gap` floats apart, and the floats
/// between them are NaN.
fn spaced(rows: usize, columns: usize, gap: usize, seed: u64) -> Vec<f32> {
    let stride = columns + gap;
    let mut all = values(if rows == 0 { 0 } else { (rows - 1) * stride + columns }, seed);
    for (place, value) in all.iter_mut().enumerate() {
        if stride > 0 && place % stride >= columns {
            *value = f32::NAN;
        }
    }
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Draws a number of rows or columns, which is at most a few tiles.
fn outer_dimension() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), 2usize..20, 20usize..120]
}

fn inner_dimension() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), 2usize..40, 40usize..300, Just(512), 513usize..1100]
}

/// Checks that `out` equals the product by its definition, and that the gaps between its rows are
/// unchanged.
fn check(
    out: &[f32],
    before: &[f32],
    (n, stride): (usize, usize),
    inner: usize,
    element: impl Fn(usize, usize) -> f64,
) -> Result<(), TestCaseError> {
    for (place, (&got, old)) in out.iter().zip(before).enumerate() {
        if n == 0 || place % stride >= n {
            prop_assert_eq!(got.to_bits(), old.to_bits());
            continue;
        }
        let expected = element(place / stride, place % stride);
        // The rounding error is at most half a unit of a sum, and a sum is at most slightly above
        // `inner`.
        let tolerance = 1e-6 * (inner as f64 + 2.0);
        prop_assert!((f64::from(got) - expected).abs() <= tolerance, "{place}: {got} {expected}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_matches_its_definition_on_every_level(
        (m, n, k) in (outer_dimension(), outer_dimension(), inner_dimension()),
        (x_gap, w_gap, out_gap) in (0usize..5, 0usize..5, 0usize..20),
        (accumulate, biased, relu, is_transposed) in any::<(bool, bool, bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let x = spaced(m, k, x_gap, seed);
        // The weight is used directly, or as the transposed view of a transposed matrix.
        let w = if is_transposed { spaced(n, k, w_gap, seed ^ 1) } else { spaced(k, n, w_gap, seed ^ 1) };
        let bias = values(n, seed ^ 2);
        let mut before = values(if m == 0 { 0 } else { (m - 1) * (n + out_gap) + n }, seed ^ 3);
        if !accumulate {
            // These elements are not read, so a NaN there is harmless.
            before.iter_mut().step_by(3).for_each(|value| *value = f32::NAN);
        }
        let rows = View::new(&x, m, k, k + x_gap);
        let weight = if is_transposed {
            View::new(&w, n, k, k + w_gap).transposed()
        } else {
            View::new(&w, k, n, n + w_gap)
        };
        let epilogue = Epilogue { accumulate, bias: biased.then_some(&bias), relu };
        let mut results = Vec::new();
        let near = |out: &[f32]| {
            check(out, &before, (n, n + out_gap), k, |i, j| {
                let weight = |p: usize| w[p * weight.row_stride + j * weight.column_stride];
                let terms = (0..k).map(|p| f64::from(x[i * (k + x_gap) + p]) * f64::from(weight(p)));
                let old = if accumulate { f64::from(before[i * (n + out_gap) + j]) } else { 0.0 };
                let sum = old + terms.sum::<f64>() + if biased { f64::from(bias[j]) } else { 0.0 };
                if relu { sum.max(0.0) } else { sum }
            })
        };
        for level in levels() {
            let panels = packed(level, weight);
            let plain = (!is_transposed).then_some(Right::Plain(weight));
            for right in [Right::Packed(&panels)].into_iter().chain(plain) {
                let mut out = before.clone();
                linear_at(level, rows, right, epilogue, &mut out, n + out_gap);
                results.push((level, bits(&out)));
                near(&out)?;
                // On a machine without kernels, the result is close but has other bits.
                out.copy_from_slice(&before);
                fallback::linear(rows, right, epilogue, &mut out, n + out_gap);
                near(&out)?;
            }
        }
        for pair in results.windows(2) {
            prop_assert!(pair[0].1 == pair[1].1, "{:?} and {:?} differ", pair[0].0, pair[1].0);
        }
    }

    #[test]
    fn the_outer_product_matches_its_definition_on_every_level(
        (m, n, rows) in (outer_dimension(), outer_dimension(), inner_dimension()),
        (x_gap, g_gap, out_gap) in (0usize..5, 0usize..5, 0usize..20),
        accumulate in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (x, g) = (spaced(rows, m, x_gap, seed), spaced(rows, n, g_gap, seed ^ 1));
        let stride = n + out_gap;
        let mut before = values(if m == 0 { 0 } else { (m - 1) * stride + n }, seed ^ 3);
        if !accumulate {
            before.iter_mut().step_by(3).for_each(|value| *value = f32::NAN);
        }
        let (left, right) = (View::new(&x, rows, m, m + x_gap), View::new(&g, rows, n, n + g_gap));
        let (mut first, mut scratch) = (None, Scratch::default());
        for level in levels() {
            let mut out = before.clone();
            outer_product_at(level, left, right, accumulate, &mut out, stride, &mut scratch);
            check(&out, &before, (n, stride), rows, |i, j| {
                let pair = |p: usize| (x[p * (m + x_gap) + i], g[p * (n + g_gap) + j]);
                let terms = (0..rows).map(pair).map(|(x, g)| f64::from(x) * f64::from(g));
                terms.sum::<f64>() + if accumulate { f64::from(before[i * stride + j]) } else { 0.0 }
            })?;
            let out = bits(&out);
            prop_assert!(first.get_or_insert_with(|| out.clone()) == &out, "{level:?} differs");
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_any_tile(
        (m, n, k) in (1usize..40, 2usize..120, 1usize..600),
        (row, seed) in any::<(prop::sample::Index, u64)>(),
    ) {
        let (x, w) = (values(m * k, seed), values(k * n, seed ^ 1));
        let right = Right::Plain(View::packed(&w, k, n));
        let mut all = vec![0.0; m * n];
        linear(View::packed(&x, m, k), right, Epilogue::default(), &mut all, n);
        let row = row.index(m);
        let mut alone = vec![0.0; n];
        let one = View::packed(&x[row * k..][..k], 1, k);
        linear(one, right, Epilogue::default(), &mut alone, n);
        prop_assert_eq!(bits(&alone), bits(&all[row * n..][..n]));
    }
}

#[test]
fn relu_passes_nan_and_keeps_the_sign_of_zero() {
    let x = [f32::NAN, 1.0, -1.0, f32::INFINITY];
    let w: Vec<f32> = (0..19).map(|j| if j % 2 == 0 { 1.0 } else { -0.0 }).collect();
    for level in levels() {
        let mut out = vec![7.0; 4 * 19];
        let right = Right::Plain(View::packed(&w, 1, 19));
        let epilogue = Epilogue { relu: true, ..Epilogue::default() };
        linear_at(level, View::packed(&x, 4, 1), right, epilogue, &mut out, 19);
        assert!(out[..19].iter().all(|value| value.is_nan()), "{level:?}");
        assert!(out[19..38].iter().step_by(2).all(|&value| value == 1.0), "{level:?}");
        assert!(out[38..57].iter().all(|&value| value == 0.0), "{level:?}");
        assert!(out[57..].iter().step_by(2).all(|&value| value == f32::INFINITY), "{level:?}");
        assert!(out[58..].iter().step_by(2).all(|value| value.is_nan()), "{level:?}");
    }
}

#[test]
fn mistakes_of_a_caller_panic() {
    let (x, w) = ([0.0; 12], [0.0; 12]);
    let refused =
        |x: View<'_>, w: Right<'_>, bias: Option<&[f32]>, length: usize, stride: usize| {
            let mut out = vec![0.0; length];
            let epilogue = Epilogue { bias, ..Epilogue::default() };
            let call = || linear(x, w, epilogue, &mut out, stride);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
        };
    let (rows, weight) = (View::packed(&x, 3, 4), View::packed(&w, 4, 3));
    assert!(!refused(rows, Right::Plain(weight), None, 9, 3));
    assert!(refused(rows, Right::Plain(View::packed(&w, 3, 4)), None, 12, 4));
    assert!(refused(rows, Right::Plain(View::packed(&w[1..], 4, 3)), None, 9, 3));
    assert!(refused(View::packed(&x[1..], 3, 4), Right::Plain(weight), None, 9, 3));
    assert!(refused(rows, Right::Plain(View::packed(&w, 3, 4).transposed()), None, 9, 3));
    assert!(refused(rows, Right::Plain(weight), None, 8, 3));
    assert!(refused(rows, Right::Plain(weight), None, 9, 2));
    assert!(refused(rows, Right::Plain(weight), Some(&[0.0; 2]), 9, 3));
    let panels = Panel::list(4, 100);
    assert!(refused(rows, Right::Packed(&panels[1..]), None, 300, 100));
    assert!(
        std::panic::catch_unwind(|| Panel::list(5, 3)[0].fill(View::packed(&w, 4, 3))).is_err()
    );
    let outer = |x: View<'_>, g: View<'_>, length: usize| {
        let mut out = vec![0.0; length];
        let call = || outer_product(x, g, false, &mut out, 3, &mut Scratch::default());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!outer(weight, weight, 9));
    assert!(outer(weight, weight, 8));
    assert!(outer(rows, weight, 12));
    assert!(outer(weight, View::packed(&w, 3, 4).transposed(), 9));
}
