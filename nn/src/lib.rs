//! The dense model: graph IR, autodiff, executor, zoo, losses, optimizers, metrics.
