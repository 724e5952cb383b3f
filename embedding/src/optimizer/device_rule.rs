//! The rules of a step in the form that the kernels of a GPU read.

use zillion_device::gpu::kernels::RowRule;

use crate::optimizer::{FtrlKernel, GroupFtrlKernel, Guard, Kernel, Rule};

impl Kernel {
    /// Returns the numbers of the rule and of its guard. The places of the segment in a row are
    /// left to the caller.
    pub(crate) fn on_device(&self) -> RowRule {
        let guarded = u32::from(self.guard.is_some());
        let (norm, value, low, high) = match self.guard {
            Some(Guard { norm, value, bounds }) => (norm, value, bounds.low, bounds.high),
            None => (f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY),
        };
        let guard = RowRule {
            guarded,
            clip_norm: norm,
            clip_value: value,
            low,
            high,
            ..RowRule::default()
        };
        match self.rule {
            Rule::Sgd(rule) => RowRule { kind: RowRule::SGD, lr: rule.lr, ..guard },
            Rule::Momentum(rule) => RowRule {
                kind: RowRule::MOMENTUM,
                lr: rule.lr,
                a: rule.momentum,
                b: if rule.nesterov { 1.0 } else { 0.0 },
                ..guard
            },
            Rule::Adagrad(rule) => {
                RowRule { kind: RowRule::ADAGRAD, lr: rule.lr, eps: rule.eps, ..guard }
            }
            Rule::RowwiseAdagrad(rule) => {
                RowRule { kind: RowRule::ROWWISE_ADAGRAD, lr: rule.lr, eps: rule.eps, ..guard }
            }
            Rule::Adam(rule) => RowRule {
                kind: RowRule::ADAM,
                lr: rule.step_size,
                eps: rule.eps,
                a: rule.beta2,
                b: rule.one_minus_beta1,
                c: rule.one_minus_beta2,
                d: rule.correction2_sqrt,
                ..guard
            },
            Rule::Ftrl(rule) => RowRule { kind: RowRule::FTRL, ..ftrl(rule, guard) },
            Rule::GroupFtrl(GroupFtrlKernel { ftrl: rule, l21 }) => {
                RowRule { kind: RowRule::GROUP_FTRL, l21, ..ftrl(rule, guard) }
            }
        }
    }
}

fn ftrl(FtrlKernel { inverse_alpha, beta, l1, l2 }: FtrlKernel, base: RowRule) -> RowRule {
    RowRule { a: inverse_alpha, b: beta, c: l1, d: l2, ..base }
}
