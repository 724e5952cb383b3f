//! Scores a data set and holds it against its labels, or hands the scores out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use zillion_device::Workers;
use zillion_embedding::RowSource;
use zillion_feature::{Batch, Cursor};
use zillion_nn::Params;
use zillion_reader::{BatchOrder, Dataset};
use zillion_registry::Scorer;

use crate::error::Result;
use crate::job::Job;
use crate::pipeline::Pipeline;
use crate::tasks::{Evaluations, TaskReport, as_map};

/// What evaluating a data set came to. Figures without a name are the first task's.
#[derive(Clone, Debug, Serialize)]
pub struct EvalReport {
    /// Area under the ROC curve; absent where one class is.
    pub auc: Option<f64>,
    /// AUC inside each group, weighted by its rows; absent without a group column.
    pub gauc: Option<f64>,
    /// Mean log loss.
    pub logloss: Option<f64>,
    /// Predicted over observed positives.
    pub calibration: Option<f64>,
    /// Rows: those that have the label, where there are several.
    pub rows: u64,
    /// Rows left out as bad.
    pub rejected_rows: u64,
    /// Rows labelled 1.
    pub positives: u64,
    /// The figures of each task, the first one too; empty where the model has only one.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    pub tasks: Vec<(String, TaskReport)>,
    /// Unique keys of batches, summed, that the tables did not have and answered with the default.
    pub missing_keys: u64,
    /// Of each side table, the rows whose key it does not have; absent where every row was found.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_side_rows: BTreeMap<String, u64>,
}

impl EvalReport {
    /// The figures of a task; without a name, of the first.
    pub(crate) fn task(&self, name: Option<&str>) -> TaskReport {
        let named = self.tasks.iter().find(|(task, _)| Some(task.as_str()) == name);
        named.map_or_else(
            || TaskReport {
                auc: self.auc,
                gauc: self.gauc,
                logloss: self.logloss,
                calibration: self.calibration,
                rows: self.rows,
                positives: self.positives,
            },
            |(_, report)| report.clone(),
        )
    }
}

/// Counts of rows by side table, in the schema's order, to those that are not 0, by name.
pub(crate) fn missing_side_rows(job: &Job, counts: &[u64]) -> BTreeMap<String, u64> {
    let sides = job.schema.sides.iter().zip(counts);
    sides.filter(|&(_, &n)| n > 0).map(|(side, &n)| (side.name.clone(), n)).collect()
}

/// Scores every row of `dataset` in file order and compares with its labels.
pub(crate) fn evaluate(
    job: &Job,
    dataset: &Dataset,
    scorer: &mut Scorer,
    source: &mut dyn RowSource,
    params: &Params,
    workers: &Arc<Workers>,
) -> Result<EvalReport> {
    let mut evaluations = Evaluations::new(job.tasks());
    let mut missing_sides = vec![0; job.schema.sides.len()];
    let scored = for_each_scored(job, dataset, scorer, source, params, workers, |b, logits, _| {
        evaluations.push(b, logits)?;
        add(&mut missing_sides, &b.side_missing);
        Ok(true)
    })?;
    let tasks = evaluations.finish()?;
    // A job has at least one label, and so a task.
    let (_, first) = tasks[0].clone();
    Ok(EvalReport {
        auc: first.auc,
        gauc: first.gauc,
        logloss: first.logloss,
        calibration: first.calibration,
        rows: first.rows,
        positives: first.positives,
        tasks: if tasks.len() > 1 { tasks } else { Vec::new() },
        rejected_rows: scored.rejected,
        missing_keys: scored.missing,
        missing_side_rows: missing_side_rows(job, &missing_sides),
    })
}

/// Adds counts to counts, one by one.
pub(crate) fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, &count)| *sum += count);
}

/// What scoring a data set came to.
pub(crate) struct Scored {
    /// Unique keys that were unknown, summed over batches.
    pub(crate) missing: u64,
    /// Rows left out as bad.
    pub(crate) rejected: u64,
    /// Of these, where in the order of rows those stand that no batch was behind.
    pub(crate) rejected_last: Vec<u64>,
}

/// Scores every row in file order until the sink says `false`. The sink also gets where in that order bad
/// rows were left out, from the batch before up to the end of this one.
pub(crate) fn for_each_scored(
    job: &Job,
    dataset: &Dataset,
    scorer: &mut Scorer,
    source: &mut dyn RowSource,
    params: &Params,
    workers: &Arc<Workers>,
    mut sink: impl FnMut(&Batch, &[&[f32]], &[u64]) -> Result<bool>,
) -> Result<Scored> {
    let order = BatchOrder {
        seed: 0,
        shuffle: false,
        batch_rows: job.train.batch_size.get(),
        drop_last: false,
    };
    let batches = dataset.batches(order, Cursor::default(), workers.clone())?;
    let mut pipeline = Pipeline::new(batches, Arc::new(job.schema.clone()), workers.clone());
    let (mut missing, mut rejected) = (0, 0);
    while let Some(planned) = pipeline.next()? {
        let scores = scorer.score(&planned.batch, &planned.plan, source, params)?;
        missing += scores.missing;
        rejected += planned.rejected.len() as u64;
        if !sink(&planned.batch, &scores.logits, &planned.rejected)? {
            break;
        }
    }
    let rejected_last = pipeline.ending.rejected;
    rejected += rejected_last.len() as u64;
    Ok(Scored { missing, rejected, rejected_last })
}
