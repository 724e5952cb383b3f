//! The row optimizers. Each update rule has one kernel.
//!
//! A kernel is a loop over one row. It is written once, and [`zillion_device::simd::vectorised`]
//! compiles it for several instruction sets. So the scalar and the SIMD version come from one
//! source and give the same bits. The scalars of a step (learning rate, bias corrections) are
//! computed once in `f64` and then rounded.

mod adagrad;
mod adam;
mod device_rule;
mod ftrl;
mod group_ftrl;
mod guard;
mod momentum;
mod rowwise_adagrad;
mod rule;
mod sgd;

use std::ops::{Add, AddAssign, Mul};

pub(crate) use crate::optimizer::adagrad::AdagradKernel;
pub(crate) use crate::optimizer::adam::AdamKernel;
pub(crate) use crate::optimizer::ftrl::FtrlKernel;
pub(crate) use crate::optimizer::group_ftrl::GroupFtrlKernel;
pub(crate) use crate::optimizer::guard::{Guard, Guarded};
pub(crate) use crate::optimizer::momentum::MomentumKernel;
pub(crate) use crate::optimizer::rowwise_adagrad::RowwiseAdagradKernel;
pub use crate::optimizer::rule::Rates;
pub(crate) use crate::optimizer::rule::Rule;
pub(crate) use crate::optimizer::sgd::SgdKernel;

/// Returns the `f64` of the shortest decimal that reads as this `f32`, which is the number in the
/// job file. For example, 0.999 as an `f32` is not exactly 0.999, and `1 - beta2` would have a
/// relative error a thousand times larger.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The terms that turn a raw gradient into the gradient that is applied: `(g + l2 * w) * scale`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shaping {
    pub(crate) l2: f32,
    pub(crate) scale: f32,
}

/// A function that computes the gradient for a rule from a raw gradient and the weight.
pub(crate) trait Gradient: Copy {
    fn of(self, raw: f32, weight: f32) -> f32;
}

impl Gradient for Shaping {
    #[inline(always)]
    fn of(self, raw: f32, weight: f32) -> f32 {
        (raw + self.l2 * weight) * self.scale
    }
}

/// An update rule for one segment of a row. `state` has [`OptimizerSpec::state_len`] floats.
pub(crate) trait RowKernel {
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient);
}

/// The rule of a segment, with its guard if it has one. In a table of one segment, [`with_kernel`]
/// matches on the kernel once for each push. In other tables it matches once for each row and
/// segment, and the branch always goes the same way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) rule: Rule,
    pub(crate) guard: Option<Guard>,
}

/// Evaluates `with_kernel!(kernel, k => expression)`. In the expression, `k` is the [`RowKernel`]
/// of the [`Kernel`]. The expression is compiled once for each kind of kernel, so a rule without a
/// guard has no code for a guard.
macro_rules! with_kernel {
    ($kernel:expr, $k:ident => $then:expr) => {{
        use $crate::optimizer::{Guarded, Rule};
        macro_rules! guarded {
            ($rule:expr) => {
                match $kernel.guard {
                    None => {
                        let $k = $rule;
                        $then
                    }
                    Some(guard) => {
                        let $k = &Guarded { rule: *$rule, guard };
                        $then
                    }
                }
            };
        }
        match &$kernel.rule {
            Rule::Sgd(rule) => guarded!(rule),
            Rule::Momentum(rule) => guarded!(rule),
            Rule::Adagrad(rule) => guarded!(rule),
            Rule::RowwiseAdagrad(rule) => guarded!(rule),
            Rule::Adam(rule) => guarded!(rule),
            Rule::Ftrl(rule) => guarded!(rule),
            Rule::GroupFtrl(rule) => guarded!(rule),
        }
    }};
}
pub(crate) use with_kernel;

/// The number of independent partial sums of a sum. Eight `f64` fill the widest vector register of
/// present machines. The number is fixed, so that sums have the same bits on all machines.
pub(crate) const LANES: usize = 8;

/// Returns the sum of `f(i)^2` over `0..n`. The terms go to eight partial sums, which are added in
/// a fixed tree. In `f64`, a sum over many rows does not lose its small terms.
#[inline(always)]
pub(crate) fn sum_of_squares<T>(n: usize, f: impl Fn(usize) -> f32) -> T
where
    T: From<f32> + Copy + Default + Add<Output = T> + Mul<Output = T> + AddAssign,
{
    let mut lanes = [T::default(); LANES];
    let whole = n - n % LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let x = T::from(f(base + lane));
            *sum += x * x;
        }
    }
    // The loop uses lane numbers that the compiler knows, so that the lanes stay in registers.
    if whole < n {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            if whole + lane < n {
                let x = T::from(f(whole + lane));
                *sum += x * x;
            }
        }
    }
    sum_lanes(lanes)
}

/// Returns the sum of the eight partial sums, added in a fixed tree.
#[inline(always)]
fn sum_lanes<T: Add<Output = T>>([a, b, c, d, e, f, g, h]: [T; LANES]) -> T {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Returns the sum of `f(a, b)^2` over two rows of equal length. The order and the bits are those
/// of [`sum_of_squares`] in `f32`. Arrays of a known length need no bounds checks and stay in
/// registers.
#[inline(always)]
pub(crate) fn sum_of_squares_of(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((sum, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            let x = f(a, b);
            *sum += x * x;
        }
    }
    if !a_rest.is_empty() {
        for ((sum, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
            let x = f(a, b);
            *sum += x * x;
        }
    }
    sum_lanes(lanes)
}

#[cfg(test)]
mod tests;
