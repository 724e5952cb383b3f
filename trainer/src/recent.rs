//! The most recent predictions of a training run, for the AUC on the progress line.
//!
//! Each row is predicted before it is learned from, so this is an honest figure of unseen data in
//! the first epoch; later it is a training AUC.

use zillion_nn::metrics::auc;

/// Predictions kept: enough for a figure that does not jump, cheap enough to rank a few times a second.
const KEPT: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Recent {
    logits: Vec<f32>,
    labels: Vec<f32>,
    next: usize,
}

impl Recent {
    pub(crate) fn push(&mut self, logits: &[f32], labels: &[f32]) {
        for (&logit, &label) in logits.iter().zip(labels) {
            if self.logits.len() < KEPT {
                self.logits.push(logit);
                self.labels.push(label);
            } else {
                self.logits[self.next] = logit;
                self.labels[self.next] = label;
                self.next = (self.next + 1) % KEPT;
            }
        }
    }

    pub(crate) fn auc(&self) -> Option<f64> {
        auc(&self.logits, &self.labels, None).ok().flatten()
    }
}
