//! Permutation feature importance: the amount by which a metric gets worse if the values of one
//! feature are exchanged between rows.
//!
//! The method is that of Breiman (2001, "Random Forests", section 10), for any model (Fisher, Rudin
//! and Dominici 2019, "All Models are Wrong, but Many are Useful"). A permuted feature has the same
//! values as before, but tells nothing about its row. The model is not trained again, so two
//! features that tell the same share their importance.
//!
//! The rows are held in memory, and their number is bounded. A permutation moves values between all
//! of them, also between batches.

mod held_rows;
mod inputs;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;
use zillion_device::Workers;
use zillion_feature::{Batch, Crosses, LookupPlan, PlanScratch, random};
use zillion_nn::Params;
use zillion_nn::optim::PlateauMetric;
use zillion_reader::Dataset;
use zillion_rows::RowSource;
use zillion_scorer::Scorer;

use crate::error::{Error, Result};
use crate::evaluate;
use crate::job::Job;
use crate::tasks::{Evaluations, TaskReport};
use held_rows::HeldRows;
use inputs::Input;

/// The metrics of which the first one that a label has is taken, if none is chosen.
const METRICS: [PlateauMetric; 3] =
    [PlateauMetric::Auc, PlateauMetric::Rmse, PlateauMetric::Logloss];

/// The number of spreads that a mean must exceed, so that it stands out from the noise of the
/// permutations.
const MOST_SPREADS: f64 = 2.0;

/// The settings of a measurement of importance.
#[derive(Clone, Copy, Debug)]
pub struct ImportanceOptions {
    /// The largest number of rows that are evaluated: the first ones of the data.
    pub rows: usize,
    /// The number of permutations of each feature.
    pub repeat: NonZeroU32,
    /// The seed of the permutations.
    pub seed: u64,
    /// The metric, or `None` for the AUC, or the root mean squared error where the label is a
    /// number.
    pub metric: Option<PlateauMetric>,
}

/// The importance of the features of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportanceReport {
    /// The number of evaluated rows.
    pub rows: u64,
    /// Whether the data has more rows.
    pub has_more_rows: bool,
    /// The number of permutations of each feature.
    pub repeat: u32,
    /// The seed of the permutations.
    pub seed: u64,
    /// The importance for each task that has the metric over these rows.
    pub tasks: Vec<TaskImportance>,
    /// The tasks without the metric over these rows, as those whose label has only one value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks_without_metric: Vec<String>,
}

/// The importance of the features for one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskImportance {
    /// The name of the task.
    pub task: String,
    /// The name of the metric.
    pub metric: String,
    /// Whether a smaller value of the metric is better.
    pub lower_is_better: bool,
    /// The value of the metric over the rows as they are.
    pub value: f64,
    /// The features, the most important one first.
    pub features: Vec<FeatureImportance>,
}

/// The importance of a feature for one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureImportance {
    /// The name of the feature, or the names of the features that read the same column.
    pub feature: String,
    /// Whether the feature is a cross. A cross is permuted alone, and follows its members if they
    /// are permuted.
    pub is_cross: bool,
    /// The mean amount by which the metric gets worse. A value below 0 means that it gets better.
    pub importance: f64,
    /// The standard deviation of the amount over the permutations; absent for one permutation.
    pub spread: Option<f64>,
    /// Whether the importance is above 0 and stands out from the spread of the permutations.
    pub has_effect: bool,
}

/// The model and the rows of its tables.
pub(crate) struct Measured<'a> {
    pub(crate) job: &'a Job,
    pub(crate) scorer: &'a mut Scorer,
    pub(crate) source: &'a mut dyn RowSource,
    pub(crate) params: &'a Params,
    pub(crate) workers: &'a Arc<Workers>,
}

impl Measured<'_> {
    /// Measures the importance of each feature over the first rows of a data set. `progress` gets
    /// the number of evaluations that are done and the number of all.
    pub(crate) fn measure(
        mut self,
        dataset: &Dataset,
        options: &ImportanceOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ImportanceReport> {
        if self.job.schema.labels.is_empty() {
            return Err(Error::Unsupported(
                "the importance of features is measured against labels, and this job has none; \
                 add a section `[labels.NAME]`"
                    .to_owned(),
            ));
        }
        let job = with_metric(self.job, options.metric);
        let rows = HeldRows::read(evaluate::pipeline(&job, dataset, self.workers)?, options.rows)?;
        let inputs = inputs::list_inputs(&job.schema);
        let repeat = options.repeat.get();
        let evaluations = 1 + inputs.len() * repeat as usize;
        let base = self.evaluate(&job, &rows, |at| Ok(rows.batches()[at].clone()))?;
        progress(1, evaluations);
        let metrics: Vec<Option<(PlateauMetric, f64)>> =
            base.iter().map(|(_, report)| choose_metric(report, options.metric)).collect();
        if metrics.iter().all(Option::is_none) {
            return Err(refuse_metric(options.metric, rows.count()));
        }
        let crosses = Crosses::of(&job.schema);
        // The worsening of each task, for each input and each permutation of it.
        let mut worse: Vec<Vec<Vec<f64>>> = Vec::with_capacity(inputs.len());
        for (at, input) in inputs.iter().enumerate() {
            let mut of_input = vec![Vec::with_capacity(repeat as usize); base.len()];
            for round in 0..repeat {
                let seed = random::text_seed(options.seed, &input.name);
                let seed = random::combine(seed, u64::from(round));
                let order = random::permutation(seed, rows.count_u32());
                let permuted =
                    self.evaluate(&job, &rows, |at| rows.permute(at, input, &order, &crosses))?;
                for ((of_task, metric), (_, report)) in
                    of_input.iter_mut().zip(&metrics).zip(&permuted)
                {
                    of_task.extend(metric.map(|(metric, value)| {
                        let now = report.metric_value(metric).unwrap_or(f64::NAN);
                        if metric.lower_is_better() { now - value } else { value - now }
                    }));
                }
                progress(2 + at * repeat as usize + round as usize, evaluations);
            }
            worse.push(of_input);
        }
        let mut report = ImportanceReport {
            rows: u64::from(rows.count_u32()),
            has_more_rows: rows.has_more(),
            repeat,
            seed: options.seed,
            tasks: Vec::new(),
            tasks_without_metric: Vec::new(),
        };
        for (task, ((name, _), metric)) in base.into_iter().zip(metrics).enumerate() {
            let Some((metric, value)) = metric else {
                report.tasks_without_metric.push(name);
                continue;
            };
            let of = |(input, worse): (&Input, &Vec<Vec<f64>>)| summarise(input, &worse[task]);
            let mut features: Vec<FeatureImportance> =
                inputs.iter().zip(&worse).map(of).collect::<Result<_>>()?;
            features.sort_by(|a, b| {
                b.importance.total_cmp(&a.importance).then_with(|| a.feature.cmp(&b.feature))
            });
            let (metric, lower_is_better) = (metric.to_string(), metric.lower_is_better());
            report.tasks.push(TaskImportance {
                task: name,
                metric,
                lower_is_better,
                value,
                features,
            });
        }
        Ok(report)
    }

    /// Scores all rows and returns the figures of each task. `make` returns a batch of the rows.
    fn evaluate(
        &mut self,
        job: &Job,
        rows: &HeldRows,
        mut make: impl FnMut(usize) -> Result<Batch>,
    ) -> Result<Vec<(String, TaskReport)>> {
        let mut evaluations = Evaluations::new(job, &job.eval.cutoffs());
        let mut scratch = PlanScratch::default();
        for at in 0..rows.batches().len() {
            let batch = make(at)?;
            let plan = LookupPlan::build(&batch, &job.schema, &mut scratch);
            let scores = self.scorer.score(&batch, &plan, self.source, self.params)?;
            evaluations.push(&batch, &scores.outputs)?;
        }
        Ok(evaluations.finish(&mut |_, _| Ok(HashMap::new()))?.tasks)
    }
}

/// Returns the job with what the metric needs, and without figures that are not used.
fn with_metric(job: &Job, metric: Option<PlateauMetric>) -> Job {
    let mut job = job.clone();
    job.eval.segments.clear();
    match metric {
        Some(PlateauMetric::Ndcg(k)) => job.eval.ndcg_at = vec![k],
        Some(PlateauMetric::Recall(k)) => job.eval.recall_at = vec![k],
        _ => {}
    }
    job
}

/// Returns the metric of a task and its value, if the task has it.
fn choose_metric(
    report: &TaskReport,
    wanted: Option<PlateauMetric>,
) -> Option<(PlateauMetric, f64)> {
    let value = |metric: PlateauMetric| {
        Some((metric, report.metric_value(metric).filter(|value| value.is_finite())?))
    };
    match wanted {
        Some(metric) => value(metric),
        None => METRICS.into_iter().find_map(value),
    }
}

fn refuse_metric(metric: Option<PlateauMetric>, rows: usize) -> Error {
    let metric = metric.map_or_else(|| "auc".to_owned(), |metric| metric.to_string());
    Error::Unsupported(format!(
        "no label has the metric `{metric}` over the first {rows} rows; evaluate more rows with \
         both values of a label, or choose a metric that `zillion eval` prints for them"
    ))
}

/// Returns the mean and the spread of the amounts by which a metric got worse.
fn summarise(input: &Input, worse: &[f64]) -> Result<FeatureImportance> {
    let count = worse.len() as f64;
    let importance = worse.iter().sum::<f64>() / count;
    if !importance.is_finite() {
        return Err(Error::Unsupported(format!(
            "the metric is not a finite number after the values of `{}` were exchanged; choose \
             another metric",
            input.name
        )));
    }
    let squares: f64 = worse.iter().map(|value| (value - importance).powi(2)).sum();
    let spread = (worse.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    let has_effect = importance > MOST_SPREADS * spread.unwrap_or(0.0);
    Ok(FeatureImportance {
        feature: input.name.clone(),
        is_cross: input.is_cross,
        importance,
        spread,
        has_effect,
    })
}

#[cfg(test)]
mod tests;
