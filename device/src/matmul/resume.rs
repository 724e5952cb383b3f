//! Products that go on from a state in the middle of the inner dimension.
//!
//! In a request for one user and many candidates, the first columns of the left operand are the
//! same in all rows. [`begin`] multiplies these columns once, and
//! [`linear_from`](super::linear_from) goes on with the other columns of each row. The definition
//! of a product (see [`product`](super::product)) makes this exact: an element is a sum of blocks,
//! and each block is one chain of fused multiplications and additions in ascending order. So the
//! state after some columns is the sum of the complete blocks and the chain of the block that is
//! not complete, and the bits are those of the whole product.

use super::View;
use super::product::{BLOCK, Epilogue, Right, linear_at};
use crate::simd::{Level, level};

/// Returns whether [`begin`] and [`linear_from`](super::linear_from) give the same bits as
/// [`linear`](super::linear) on this machine. On a machine without our kernels, they do not.
pub fn can_resume() -> bool {
    level() != Level::Scalar
}

/// Multiplies the single row `x` by the first `x.columns` rows of `w`, and writes the state of the
/// product to `sums` and `chain`. `w` may have more rows, which
/// [`linear_from`](super::linear_from) reads.
///
/// # Panics
///
/// Panics if `x` does not have exactly one row, if `w` has fewer rows than `x` has columns, if a
/// matrix does not fit its slice, if the columns of `w` are not contiguous, or if `sums` or `chain`
/// do not have one value for each column of `w`.
pub fn begin(x: View<'_>, w: View<'_>, sums: &mut [f32], chain: &mut [f32]) {
    begin_at(level(), x, w, sums, chain);
}

/// Computes [`begin`] with the kernels of a level. If the machine's level is lower, its kernels are
/// used. This function is for tests.
///
/// # Panics
///
/// Panics for the same reasons as [`begin`].
pub fn begin_at(wanted: Level, x: View<'_>, w: View<'_>, sums: &mut [f32], chain: &mut [f32]) {
    assert!(x.rows == 1 && x.columns <= w.rows, "one row, and a row of the weight for each column");
    assert!(sums.len() == w.columns && chain.len() == w.columns, "one state for each column");
    let whole = x.columns / BLOCK * BLOCK;
    let part = |from: usize, to: usize, out: &mut [f32]| {
        let left = View {
            values: x.values.get(from * x.column_stride..).unwrap_or_default(),
            columns: to - from,
            ..x
        };
        let right = View {
            values: w.values.get(from * w.row_stride..).unwrap_or_default(),
            rows: to - from,
            ..w
        };
        linear_at(wanted, left, Right::Plain(right), Epilogue::default(), out, w.columns);
    };
    part(0, whole, sums);
    part(whole, x.columns, chain);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::values;
    use super::super::{Begun, Panel, linear_at, linear_from, linear_from_at};
    use super::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_resumed_product_has_the_bits_of_the_whole_one(
            (m, n) in (1usize..70, 1usize..120),
            k in prop_oneof![2usize..40, 40usize..520, Just(1024), 513usize..1600],
            cut in prop_oneof![Just(0.0f64), Just(1.0), 0.0f64..1.0],
            on_block in any::<bool>(),
            (x_gap, out_gap) in (0usize..5, 0usize..20),
            (biased, relu) in any::<(bool, bool)>(),
            seed in any::<u64>(),
        ) {
            let cut = 1 + ((k - 2) as f64 * cut) as usize;
            let cut = if on_block && k > BLOCK { (cut / BLOCK * BLOCK).max(BLOCK) } else { cut };
            let (w, bias) = (values(k * n, seed), values(n, seed ^ 1));
            let stride = k + x_gap;
            let mut x = values(m * stride, seed ^ 2);
            for row in 1..m {
                x.copy_within(..cut, row * stride);
            }
            let weight = View::packed(&w, k, n);
            let epilogue = Epilogue { bias: biased.then_some(&bias), relu, ..Epilogue::default() };
            for wanted in Level::ALL.into_iter().filter(|&wanted| wanted <= level()) {
                let mut whole = vec![f32::NAN; m * (n + out_gap)];
                let all = View::new(&x, m, k, stride);
                linear_at(wanted, all, Right::Plain(weight), epilogue, &mut whole, n + out_gap);
                let (mut sums, mut chain) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                begin_at(wanted, View::new(&x, 1, cut, stride), weight, &mut sums, &mut chain);
                let begun = Begun { columns: cut, sums: &sums, chain: &chain };
                let rest = View::new(&x[cut..], m, k - cut, stride);
                let mut panels = Panel::list_at(wanted, k, n);
                panels.iter_mut().for_each(|panel| panel.fill(weight));
                for right in [Right::Plain(weight), Right::Packed(&panels)] {
                    let mut out = vec![f32::NAN; m * (n + out_gap)];
                    linear_from_at(wanted, begun, rest, right, epilogue, &mut out, n + out_gap);
                    prop_assert_eq!(bits(&out), bits(&whole));
                }
            }
        }
    }

    #[test]
    fn states_that_do_not_fit_panic() {
        let (x, w) = ([1.0; 4], [1.0; 12]);
        let weight = View::packed(&w, 4, 3);
        let refuses = |work: &dyn Fn()| {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        };
        let from = |columns: usize, state: &[f32], accumulate: bool| {
            let begun = Begun { columns, sums: state, chain: state };
            let rest = View::new(&x[..4 - columns], 1, 4 - columns, 4);
            let epilogue = Epilogue { accumulate, ..Epilogue::default() };
            linear_from(begun, rest, Right::Plain(weight), epilogue, &mut [0.0; 3], 3);
        };
        from(2, &[0.0; 3], false);
        refuses(&|| from(2, &[0.0; 2], false));
        refuses(&|| from(2, &[0.0; 3], true));
        refuses(&|| from(4, &[0.0; 3], false));
        refuses(&|| from(0, &[0.0; 3], false));
        refuses(&|| begin(View::packed(&x, 2, 2), weight, &mut [0.0; 3], &mut [0.0; 3]));
        refuses(&|| begin(View::packed(&x, 1, 4), weight, &mut [0.0; 2], &mut [0.0; 3]));
    }
}
