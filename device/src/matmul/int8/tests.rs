//! Tests of the products of 8-bit integers: against the definition, element by element, and for
//! every instruction set bit for bit.

use proptest::prelude::*;

use super::super::tests::values;
use super::*;

/// Quantises some values by the definition, and returns their integers and their scale.
fn quantised(values: &[f32]) -> (Vec<i64>, f32) {
    if values.iter().any(|value| !value.is_finite()) {
        return (vec![0; values.len()], f32::NAN);
    }
    let magnitude = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    if magnitude < SMALLEST {
        return (vec![0; values.len()], 0.0);
    }
    let integer = |value: &f32| (value * (127.0 / magnitude)).round_ties_even() as i64;
    (values.iter().map(integer).collect(), magnitude / 127.0)
}

/// Computes the product by the definition. The old values are in `out`, without gaps.
fn define(x: &[f32], w: &[f32], (k, n): (usize, usize), to: Epilogue<'_>, out: &mut [f32]) {
    let column = |j: usize| (0..k).map(|p| w[p * n + j]).collect::<Vec<f32>>();
    let columns: Vec<_> = (0..n).map(|j| quantised(&column(j))).collect();
    for (i, out) in out.chunks_mut(n).enumerate() {
        let (row, row_scale) = quantised(&x[i * k..][..k]);
        for (j, (value, (column, scale))) in out.iter_mut().zip(&columns).enumerate() {
            let sum: i64 = row.iter().zip(column).map(|(left, right)| left * right).sum();
            let product = sum as f32 * row_scale * scale;
            let sum = if to.accumulate { *value + product } else { product };
            let sum = to.bias.map_or(sum, |bias| sum + bias[j]);
            *value = if to.relu && sum < 0.0 { 0.0 } else { sum };
        }
    }
}

/// Returns the bits of values, with one representation of NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    let bits = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    values.iter().map(bits).collect()
}

/// Puts an extreme value into one row: huge, tiny, zero, not finite.
fn spoil(values: &mut [f32], columns: usize, kind: u8) {
    if values.is_empty() || columns == 0 {
        return;
    }
    let row = values.len() / columns / 2 * columns;
    match kind {
        0 => values[row] = f32::MAX,
        1 => values[row..row + columns].fill(0.0),
        2 => values[row..row + columns].fill(-1e-35),
        3 => values[row + columns - 1] = f32::NAN,
        4 => values[row] = f32::NEG_INFINITY,
        5 => values[row..row + columns].fill(-1.0),
        _ => {}
    }
}

fn dimension() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), 2usize..20, 20usize..100]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_has_the_bits_of_the_definition(
        (m, n, k) in (dimension(), dimension(), prop_oneof![dimension(), 100usize..500]),
        gap in 0usize..3,
        (accumulate, relu, with_bias, turned) in any::<(bool, bool, bool, bool)>(),
        (spoilt_x, spoilt_w) in (0u8..10, 0u8..14),
        seed in any::<u64>(),
    ) {
        let (mut x, mut w) = (values(m * k, seed), values(k * n, seed ^ 1));
        spoil(&mut x, k, spoilt_x);
        spoil(&mut w, n, spoilt_w);
        let bias = with_bias.then(|| values(n, seed ^ 2));
        let to = Epilogue { accumulate, bias: bias.as_deref(), relu };
        let old = values(m * n, seed ^ 3);
        let mut expected = old.clone();
        if n > 0 {
            define(&x, &w, (k, n), to, &mut expected);
        }
        let w_turned: Vec<f32> = (0..k * n).map(|at| w[at % k * n + at / k]).collect();
        let view = if turned {
            View::packed(&w_turned, n, k).transposed()
        } else {
            View::packed(&w, k, n)
        };
        let weight = Int8Weight::pack(view).expect("a small weight");
        prop_assert_eq!(weight.shape(), (k, n));
        let mut rows = Int8Rows::default();
        rows.quantize(View::packed(&x, m, k));
        let stride = n + gap;
        for wanted in Level::ALL {
            let mut out = vec![f32::INFINITY; m * stride];
            for i in 0..m {
                out[i * stride..][..n].copy_from_slice(&old[i * n..][..n]);
            }
            linear_int8_at(wanted, &rows, &weight, to, &mut out, stride);
            for i in 0..m {
                let (got, gap) = out[i * stride..][..stride].split_at(n);
                prop_assert_eq!(bits(got), bits(&expected[i * n..][..n]), "{:?} row {}", wanted, i);
                prop_assert!(gap.iter().all(|&value| value == f32::INFINITY));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_last_columns_have_the_product_of_rows_that_begin_with_zeros(
        (m, n, k) in (1usize..20, 1usize..80, 2usize..300),
        cut in 0.0f64..1.0,
        (relu, with_bias) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let first = (k as f64 * cut) as usize;
        let (mut x, w) = (values(m * k, seed), values(k * n, seed ^ 1));
        x.chunks_mut(k).for_each(|row| row[..first].fill(0.0));
        let bias = with_bias.then(|| values(n, seed ^ 2));
        let to = Epilogue { accumulate: false, bias: bias.as_deref(), relu };
        let weight = Int8Weight::pack(View::packed(&w, k, n)).expect("a small weight");
        let mut rows = Int8Rows::default();
        rows.quantize(View::packed(&x, m, k));
        let mut expected = vec![f32::NAN; m * n];
        linear_int8(&rows, &weight, to, &mut expected, n);
        rows.quantize_from(first, View::new(&x[first..], m, k - first, k));
        for wanted in Level::ALL {
            let mut out = vec![f32::NAN; m * n];
            linear_int8_at(wanted, &rows, &weight, to, &mut out, n);
            prop_assert_eq!(bits(&out), bits(&expected), "{:?}", wanted);
        }
    }
}

#[test]
fn the_product_is_near_the_product_of_floats() {
    let (m, n, k) = (33, 70, 429);
    let (x, w) = (values(m * k, 5), values(k * n, 6));
    let weight = Int8Weight::pack(View::packed(&w, k, n)).expect("a small weight");
    let mut rows = Int8Rows::default();
    rows.quantize(View::packed(&x, m, k));
    let mut out = vec![f32::NAN; m * n];
    linear_int8(&rows, &weight, Epilogue::default(), &mut out, n);
    let mut exact = vec![0.0; m * n];
    super::super::nn(m, n, k, &x, &w, 0.0, &mut exact);
    // Each factor is off by at most half of 1/127, and the errors of 429 terms partly cancel.
    let worst = out.iter().zip(&exact).map(|(got, exact)| (got - exact).abs());
    let worst = worst.fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 0.3, "{worst}");
}

#[test]
fn not_finite_values_give_nan_in_their_row_or_column_only() {
    let (m, n, k) = (8, 20, 7);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut x, mut w) = (values(m * k, 7), values(k * n, 8));
        x[3 * k + 2] = value;
        w[4 * n + 5] = value;
        let weight = Int8Weight::pack(View::packed(&w, k, n)).expect("a small weight");
        let mut rows = Int8Rows::default();
        rows.quantize(View::packed(&x, m, k));
        let mut out = vec![0.0; m * n];
        let to = Epilogue { relu: true, ..Epilogue::default() };
        linear_int8(&rows, &weight, to, &mut out, n);
        for (at, value) in out.iter().enumerate() {
            assert_eq!(value.is_nan(), at / n == 3 || at % n == 5, "element {at}: {value}");
        }
    }
}

#[test]
fn the_largest_sums_are_exact_and_a_larger_weight_is_refused() {
    let (x, w) = (vec![1.0f32; INT8_INNER + 1], vec![-1.0f32; INT8_INNER + 1]);
    assert!(Int8Weight::pack(View::packed(&w, INT8_INNER + 1, 1)).is_none());
    let weight = Int8Weight::pack(View::packed(&w, INT8_INNER, 1)).expect("the largest weight");
    let mut rows = Int8Rows::default();
    rows.quantize(View::packed(&x, 1, INT8_INNER));
    let scale = 1.0f32 / 127.0;
    let expected = (-127.0 * 127.0 * INT8_INNER as f64) as f32 * scale * scale;
    for wanted in Level::ALL {
        let mut out = [f32::NAN];
        linear_int8_at(wanted, &rows, &weight, Epilogue::default(), &mut out, 1);
        assert_eq!(out[0].to_bits(), expected.to_bits(), "{wanted:?}");
    }
}
