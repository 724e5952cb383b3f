//! The reports that a run makes while it goes on.

use std::time::Duration;

use zillion_feature::{Batch, Cursor, Schema};

use crate::evaluate::EvalReport;
use crate::fetch::Fetched;
use crate::publish::Published;

/// The values that an observer wants to see of each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The nodes of the training graph whose values are copied out.
    pub nodes: Vec<String>,
    /// Whether every step is shown: its loss, scores and the norms of its gradients.
    pub steps: bool,
}

/// One step, with values from before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// The number of steps done, this one included.
    pub step: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The position of the batch's first row in the order of the epoch.
    pub first_row: u64,
    /// The mean loss before the step.
    pub loss: f64,
    /// The meaning of the rows.
    pub schema: &'a Schema,
    /// The rows of the batch.
    pub batch: &'a Batch,
    /// The log odds of the first label before the step, one for each row.
    pub logits: &'a [f32],
    /// The norm of the gradient of the dense parameters, their regulariser included; 0 where
    /// [`Look::steps`] is not set.
    pub dense_norm: f64,
    /// The norm of the loss' gradient in each table, in the schema's order; empty where
    /// [`Look::steps`] is not set.
    pub table_norms: &'a [f64],
    /// The values before the step, in the order of [`Look::nodes`].
    pub fetched: &'a [Fetched<'a>],
}

/// The progress of a training after a step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The number of steps done, over all epochs.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The rows of an epoch, rows that are left out included, where known.
    pub epoch_rows: Option<u64>,
    /// The mean loss since the last report.
    pub loss: f64,
    /// The AUC of each task's most recent predictions, made before each batch was learned from.
    pub aucs: Vec<(String, Option<f64>)>,
    /// The rows trained a second since the last report.
    pub samples_per_second: f64,
    /// The time to the end of the epoch at this speed, where the number of rows is known.
    pub eta: Option<Duration>,
}

/// The outcome of an epoch.
#[derive(Clone, Debug)]
pub struct EpochReport {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The mean training loss over the epoch's rows, each before it was learned from.
    pub mean_loss: f64,
    /// The loss that the regularisers add, with the weights at the end of the epoch.
    pub regulariser: f64,
    /// The validation, where there is one.
    pub valid: Option<EvalReport>,
    /// The learning-rate multiplier of the epoch that follows.
    pub rate_scale: f32,
    /// The seconds that the epoch took, validation and checkpoint included.
    pub seconds: f64,
    /// Whether the weights are the best so far.
    pub is_best: bool,
}

/// A checkpoint that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointReport {
    /// The number of steps done.
    pub step: u64,
    /// The seconds from its beginning to its end. Training went on meanwhile, except at the end of
    /// an epoch or a run.
    pub seconds: f64,
    /// The bytes of its files.
    pub bytes: u64,
}

/// An attempt to publish a version.
#[derive(Clone, Copy, Debug)]
pub struct PublishReport<'a> {
    /// The version; absent where the attempt failed, which ends no run.
    pub published: Option<&'a Published>,
    /// The seconds that the attempt took.
    pub seconds: f64,
}
