//! Row optimizers: one vocabulary for job files, one kernel a rule.
//!
//! A kernel is a plain loop over one row. It is written once and compiled for several instruction
//! sets by [`zillion_device::simd::vectorised`], so that the scalar and the SIMD twin are one
//! source and their results are the same bits. Scalars of a step (learning rate, bias corrections)
//! are computed once, in `f64`, and rounded once.

mod adagrad;
mod adam;
mod ftrl;
mod group_ftrl;
mod guard;
mod momentum;
mod rowwise_adagrad;
mod rule;
mod sgd;

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

/// The shortest decimal that reads as this `f32`: the number that the job wrote. 0.999f32 is not
/// 0.999, and `1 - beta2` would carry that error a thousandfold.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The shaping of a raw gradient into the one that is applied: `(g + l2 * w) * scale`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shaping {
    pub(crate) l2: f32,
    pub(crate) scale: f32,
}

/// A function from a raw gradient and its weight to the gradient that the rule applies.
pub(crate) trait Gradient: Copy {
    fn of(self, raw: f32, weight: f32) -> f32;
}

impl Gradient for Shaping {
    #[inline(always)]
    fn of(self, raw: f32, weight: f32) -> f32 {
        (raw + self.l2 * weight) * self.scale
    }
}

/// One rule on one row segment. `state` has [`OptimizerSpec::state_len`] floats.
pub(crate) trait RowKernel {
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient);
}

/// A segment's rule with what guards it. Matched by [`with_kernel`]: once a push in tables of one
/// segment, else once a row, which goes the same way every time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) rule: Rule,
    pub(crate) guard: Option<Guard>,
}

/// `with_kernel!(kernel, k => expression)`: the expression with `k` as the one [`RowKernel`] that a
/// [`Kernel`] is. It is compiled once for each, so that a rule without a guard knows of none.
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

/// A number of independent sums that fills the widest vector register of the machines we know;
/// fixed, so that sums are the same bits on all of them.
pub(crate) const LANES: usize = 8;

/// The sum of `f(i)^2` over `0..n`, in eight lanes and a fixed tree.
#[inline(always)]
pub(crate) fn sum_of_squares_f32(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = n - n % LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let x = f(base + lane);
            *sum += x * x;
        }
    }
    // Lanes by numbers that the compiler knows, so that they stay in registers.
    if whole < n {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            if whole + lane < n {
                let x = f(whole + lane);
                *sum += x * x;
            }
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The sum of `f(a, b)^2` over two rows of one length, in the order of [`sum_of_squares_f32`] and
/// to the same bits: arrays of a known length need no bounds and stay in registers.
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
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The same in `f64`, where a sum over many rows must not lose the small ones.
#[inline(always)]
pub(crate) fn sum_of_squares_f64(n: usize, f: impl Fn(usize) -> f32) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let whole = n - n % LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let x = f64::from(f(base + lane));
            *sum += x * x;
        }
    }
    // Lanes by numbers that the compiler knows, so that they stay in registers.
    if whole < n {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            if whole + lane < n {
                let x = f64::from(f(whole + lane));
                *sum += x * x;
            }
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
mod tests;
