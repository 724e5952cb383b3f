//! The optimizers of rows that random tests draw from.

use zillion_rows::OptimizerSpec;

/// Returns an optimizer of each kind, and of each form of a kind.
pub fn row_optimizers() -> Vec<OptimizerSpec> {
    let ftrl = |l21| OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21 };
    let momentum =
        |nesterov| OptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov, scope: None };
    vec![
        OptimizerSpec::Sgd { lr: 0.1 },
        momentum(false),
        momentum(true),
        OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 },
        OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 },
        OptimizerSpec::adam(0.01),
        ftrl(0.0),
        ftrl(0.05),
    ]
}
