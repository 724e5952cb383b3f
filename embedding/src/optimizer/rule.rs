//! The rule of one segment in one step. It combines the settings of an optimizer with the scalars
//! of the step.

use zillion_feature::Step;
use zillion_rows::OptimizerSpec;

use crate::optimizer::{
    AdagradKernel, AdamKernel, FtrlKernel, GroupFtrlKernel, MomentumKernel, RowwiseAdagradKernel,
    SgdKernel, decimal,
};

/// The rule of one segment in one step, with all scalars computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Sgd(SgdKernel),
    Momentum(MomentumKernel),
    Adagrad(AdagradKernel),
    RowwiseAdagrad(RowwiseAdagradKernel),
    Adam(AdamKernel),
    Ftrl(FtrlKernel),
    GroupFtrl(GroupFtrlKernel),
}

impl Rule {
    /// Returns the rule of `optimizer` in one step.
    pub(crate) fn new(optimizer: &OptimizerSpec, step: Step, rates: Rates) -> Self {
        let rate = decimal(optimizer.lr()) * decimal(rates.scale);
        match *optimizer {
            OptimizerSpec::Sgd { .. } => Self::Sgd(SgdKernel { lr: rate as f32 }),
            OptimizerSpec::Momentum { momentum, nesterov, .. } => {
                Self::Momentum(MomentumKernel { lr: rate as f32, momentum, nesterov })
            }
            OptimizerSpec::Adagrad { eps, .. } => {
                Self::Adagrad(AdagradKernel { lr: rate as f32, eps })
            }
            OptimizerSpec::RowwiseAdagrad { eps, .. } => {
                Self::RowwiseAdagrad(RowwiseAdagradKernel { lr: rate as f32, eps })
            }
            OptimizerSpec::Adam { beta1, beta2, eps, .. } => {
                Self::Adam(AdamKernel::new(rate, beta1, beta2, eps, step))
            }
            OptimizerSpec::Ftrl { beta, l1, l2, l21, .. } => {
                let ftrl = FtrlKernel { inverse_alpha: (1.0 / rate) as f32, beta, l1, l2 };
                if l21 == 0.0 {
                    Self::Ftrl(ftrl)
                } else {
                    Self::GroupFtrl(GroupFtrlKernel { ftrl, l21 })
                }
            }
        }
    }
}

/// The factors of the learning rates in one step, given by the job's schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The factor by which every optimizer's learning rate is multiplied.
    pub scale: f32,
}

impl Default for Rates {
    fn default() -> Self {
        Self { scale: 1.0 }
    }
}
