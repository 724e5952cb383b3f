//! The most recent predictions of a training run, for the AUC on the progress line.
//!
//! Each row is predicted before it is trained on. So in the first epoch, the AUC is that of unseen
//! data. In later epochs, it is a training AUC.

use zillion_feature::Batch;
use zillion_nn::metrics::auc;
use zillion_nn::zoo::Task;

use crate::job::Job;
use crate::tasks::{Truth, kept};

/// The number of predictions that are kept. They are enough for a stable AUC, and they can be
/// sorted a few times a second.
const KEPT: usize = 16_384;
/// The smallest number of predictions that are kept for each class of a label.
const KEPT_OF_CLASS: usize = 1024;

#[derive(Debug, Default)]
struct Recent {
    most: usize,
    logits: Vec<f32>,
    labels: Vec<f32>,
    next: usize,
}

impl Recent {
    fn push(&mut self, logits: &[f32], labels: &[f32]) {
        for (&logit, &label) in logits.iter().zip(labels) {
            if self.logits.len() < self.most {
                self.logits.push(logit);
                self.labels.push(label);
            } else {
                self.logits[self.next] = logit;
                self.labels[self.next] = label;
                self.next = (self.next + 1) % self.most;
            }
        }
    }

    fn auc(&self) -> Option<f64> {
        auc(&self.logits, &self.labels, None).ok().flatten()
    }
}

/// The most recent predictions of each task.
pub(crate) struct RecentTasks {
    tasks: Vec<(Task, Recent)>,
    /// The name of the label of classes, whose AUC is the mean of those of its classes.
    label: Option<String>,
}

impl RecentTasks {
    pub(crate) fn new(job: &Job) -> Self {
        let tasks = job.tasks();
        let label = job.class_label().map(|label| job.schema.labels[label].name.clone());
        // The classes of a label share the predictions that are kept and sorted.
        let most = match label {
            Some(_) => (KEPT / tasks.len()).max(KEPT_OF_CLASS),
            None => KEPT,
        };
        let recent = |task| (task, Recent { most, ..Recent::default() });
        Self { tasks: tasks.into_iter().map(recent).collect(), label }
    }

    pub(crate) fn push(&mut self, batch: &Batch, logits: &[&[f32]]) {
        for ((task, recent), logits) in self.tasks.iter_mut().zip(logits) {
            let truth = Truth::of(task.label, &batch.labels);
            let known = truth.known.as_deref();
            recent.push(&kept(logits, known), &kept(&truth.labels, known));
        }
    }

    /// Returns the name and the AUC of each task, in the order of the tasks, or those of the label
    /// of classes.
    pub(crate) fn aucs(&self) -> Vec<(String, Option<f64>)> {
        let aucs = self.tasks.iter().map(|(task, recent)| (task.name.clone(), recent.auc()));
        let Some(label) = &self.label else { return aucs.collect() };
        let known: Vec<f64> = aucs.filter_map(|(_, auc)| auc).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        vec![(label.clone(), (!known.is_empty()).then_some(mean))]
    }
}
