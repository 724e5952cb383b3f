//! The outcome of a pruning at the end of an epoch: the zeros, and the AUC before and after.

use std::fmt;

use zillion_embedding::Pruned;

/// The zeros of the pruned tables, and the AUC of the validation data around the pruning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PruningCost {
    /// The counts of the weights of the pruned tables.
    pub(crate) pruned: Pruned,
    /// The AUC before the pruning; `None` if it was not measured.
    pub(crate) whole: Option<f64>,
}

impl PruningCost {
    /// Describes the pruning. `after` is the AUC after it.
    pub(crate) fn describe(&self, after: Option<f64>) -> impl fmt::Display {
        let Self { pruned: Pruned { weights, zeros }, whole } = *self;
        let share = zeros as f64 / weights.max(1) as f64 * 100.0;
        let mut text =
            format!("pruned tables: {zeros} of {weights} weights of rows are zero ({share:.1} %)");
        if let (Some(whole), Some(after)) = (whole, after) {
            text += &format!(
                "; validation auc {whole:.6} before the pruning of this epoch, {after:.6} after \
                 ({:+.6})",
                after - whole
            );
        }
        text
    }
}
