//! The reports that a run makes while it goes on.

use std::time::Duration;

use zillion_feature::{Batch, Cursor, Schema};

use crate::evaluate::EvalReport;
use crate::fetch::Fetched;
use crate::publish::Published;

/// What an observer wants to see of each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Nodes of the training graph whose values are copied out.
    pub nodes: Vec<String>,
    /// Every step: loss, scores and the norms of the gradients.
    pub steps: bool,
}

/// One step, before and after.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// Steps done, this one included.
    pub step: u64,
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Position of the batch's first row in the order of the epoch.
    pub first_row: u64,
    /// Mean loss before the step.
    pub loss: f64,
    /// What rows mean.
    pub schema: &'a Schema,
    /// The rows.
    pub batch: &'a Batch,
    /// Log odds of the first label before the step, one a row.
    pub logits: &'a [f32],
    /// Norm of the gradient of the dense parameters, their regulariser included; 0 where
    /// [`Look::steps`] is not set.
    pub dense_norm: f64,
    /// Norm of the loss' gradient in each table, in the schema's order; empty where [`Look::steps`] is
    /// not set.
    pub table_norms: &'a [f64],
    /// Values before the step, in the order of [`Look::nodes`].
    pub fetched: &'a [Fetched<'a>],
}

/// Where training stands after a step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Steps done, over all epochs.
    pub step: u64,
    /// Position in the order of rows.
    pub cursor: Cursor,
    /// Rows of an epoch, those that are left out among them as in the position, where known.
    pub epoch_rows: Option<u64>,
    /// Mean loss since the last report.
    pub loss: f64,
    /// AUC of each task's most recent predictions, made before each batch was learned from.
    pub aucs: Vec<(String, Option<f64>)>,
    /// Rows trained a second since the last report.
    pub samples_per_second: f64,
    /// Time to the end of the epoch at this pace, where the number of rows is known.
    pub eta: Option<Duration>,
}

/// What an epoch came to.
#[derive(Clone, Debug)]
pub struct EpochReport {
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Mean training loss over the epoch's rows, each before it was learned from.
    pub mean_loss: f64,
    /// What the regularisers add to the loss, with the weights at the end of the epoch.
    pub regulariser: f64,
    /// The validation, where there is one.
    pub valid: Option<EvalReport>,
    /// Learning-rate multiplier of the epoch that follows.
    pub rate_scale: f32,
    /// Seconds that the epoch took, validation and checkpoint included.
    pub seconds: f64,
    /// Whether its weights are the best so far.
    pub is_best: bool,
}

/// A checkpoint that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointReport {
    /// Steps that were done.
    pub step: u64,
    /// Seconds from its moment until it was there. Training went on meanwhile, but for the end of an epoch or a run.
    pub seconds: f64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// An attempt to publish a version.
#[derive(Clone, Copy, Debug)]
pub struct PublishReport<'a> {
    /// The version; absent where the attempt failed, which ends no run.
    pub published: Option<&'a Published>,
    /// Seconds that it took.
    pub seconds: f64,
}
