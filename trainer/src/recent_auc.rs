//! The most recent predictions of a training run, for the AUC on the progress line.
//!
//! Each row is predicted before it is trained on. So in the first epoch, the AUC is that of unseen
//! data. In later epochs, it is a training AUC.

use zillion_feature::Batch;
use zillion_nn::metrics::auc;
use zillion_nn::zoo::Task;

use crate::tasks::{Truth, kept};

/// The number of predictions that are kept. They are enough for a stable AUC, and they can be
/// sorted a few times a second.
const KEPT: usize = 16_384;

#[derive(Debug, Default)]
struct Recent {
    logits: Vec<f32>,
    labels: Vec<f32>,
    next: usize,
}

impl Recent {
    fn push(&mut self, logits: &[f32], labels: &[f32]) {
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

    fn auc(&self) -> Option<f64> {
        auc(&self.logits, &self.labels, None).ok().flatten()
    }
}

/// The most recent predictions of each task.
pub(crate) struct RecentTasks(Vec<(Task, Recent)>);

impl RecentTasks {
    pub(crate) fn new(tasks: Vec<Task>) -> Self {
        Self(tasks.into_iter().map(|task| (task, Recent::default())).collect())
    }

    pub(crate) fn push(&mut self, batch: &Batch, logits: &[&[f32]]) {
        for ((task, recent), logits) in self.0.iter_mut().zip(logits) {
            let truth = Truth::of(task.label, &batch.labels);
            let known = truth.known.as_deref();
            recent.push(&kept(logits, known), &kept(&truth.labels, known));
        }
    }

    /// Returns the name and the AUC of each task, in the order of the tasks.
    pub(crate) fn aucs(&self) -> Vec<(String, Option<f64>)> {
        self.0.iter().map(|(task, recent)| (task.name.clone(), recent.auc())).collect()
    }
}
