//! The reports that a run makes while it trains.

use std::time::Duration;

use zillion_feature::{Batch, Cursor, Schema};
use zillion_nn::optim::PlateauMetric;

use crate::evaluate::EvalReport;
use crate::fetch::Fetched;
use crate::publish::Published;

/// The values of each step that an observer requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectOptions {
    /// The names of the nodes of the training graph whose values are copied.
    pub nodes: Vec<String>,
    /// Whether the norms of the gradients are computed in every step.
    pub steps: bool,
}

/// The requested values of one step.
#[derive(Clone, Copy, Debug)]
pub struct InspectedStep<'a> {
    /// The number of steps done, including this one.
    pub step: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The position of the batch's first row in the order of the epoch.
    pub first_row: u64,
    /// The mean loss before the step.
    pub loss: f64,
    /// The schema of the rows.
    pub schema: &'a Schema,
    /// The rows of the batch.
    pub batch: &'a Batch,
    /// The log odds of the first label before the step, one for each row.
    pub logits: &'a [f32],
    /// The scores of each task before the step. Those of the first task are the log odds above.
    pub scores: &'a [&'a [f32]],
    /// The norm of the gradient of the dense parameters, including their regulariser; 0 if
    /// [`InspectOptions::steps`] is not set.
    pub dense_norm: f64,
    /// The norm of the loss gradient of each table's rows, in the schema's order; empty if
    /// [`InspectOptions::steps`] is not set.
    pub table_norms: &'a [f64],
    /// The values of the requested nodes before the step, in the order of
    /// [`InspectOptions::nodes`].
    pub fetched: &'a [Fetched<'a>],
}

/// The progress of a training after a step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The number of steps done, over all epochs.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The number of rows in an epoch, including rows that are left out; absent if it is not known.
    pub epoch_rows: Option<u64>,
    /// The mean loss since the last report.
    pub loss: f64,
    /// The AUC of the most recent predictions of each task. Each prediction was made before its
    /// batch was trained on.
    pub aucs: Vec<(String, Option<f64>)>,
    /// The number of rows per second that were trained on since the last report.
    pub samples_per_second: f64,
    /// The estimated time to the end of the epoch at this speed; absent if the number of rows is
    /// not known.
    pub eta: Option<Duration>,
}

/// The outcome of an epoch.
#[derive(Clone, Debug)]
pub struct EpochReport {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The mean training loss of the epoch's rows. Each loss was computed before its batch was
    /// trained on.
    pub mean_loss: f64,
    /// The loss of the regularisers, with the weights at the end of the epoch.
    pub regulariser: f64,
    /// The figures of the validation; absent if there is none.
    pub valid: Option<EvalReport>,
    /// The metric that `train.plateau` watches and its value in the validation; absent without
    /// either of the two.
    pub watched: Option<(PlateauMetric, f64)>,
    /// The learning-rate multiplier of the next epoch.
    pub rate_scale: f32,
    /// The duration of the epoch in seconds, including validation and checkpoint.
    pub seconds: f64,
    /// Whether the weights after this epoch are the best so far.
    pub is_best: bool,
}

/// The report of a checkpoint that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointReport {
    /// The number of steps done when the checkpoint began.
    pub step: u64,
    /// The duration of writing the checkpoint, in seconds. Training continued during this time,
    /// except at the end of an epoch or a run.
    pub seconds: f64,
    /// The size of the checkpoint's files, in bytes.
    pub bytes: u64,
}

/// The report of an attempt to publish a version.
#[derive(Clone, Copy, Debug)]
pub struct PublishReport<'a> {
    /// The version that was published; absent if the attempt failed. A failed attempt does not end
    /// the run.
    pub published: Option<&'a Published>,
    /// The duration of the attempt, in seconds.
    pub seconds: f64,
}
