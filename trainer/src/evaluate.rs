//! Evaluation: computes the scores of a data set, and compares them with its labels or passes them
//! to a function.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use zillion_device::Workers;
use zillion_feature::{Batch, Cursor, FeatureKey};
use zillion_nn::Params;
use zillion_nn::metrics::{CalibrationBucket, Cutoffs, NumberReport, RankingFigure};
use zillion_nn::optim::PlateauMetric;
use zillion_reader::{BatchOrder, Dataset};
use zillion_rows::RowSource;
use zillion_scorer::Scorer;

use crate::error::{Error, Result};
use crate::frequencies::Frequencies;
use crate::job::{Job, is_zero};
use crate::pipeline::{AheadOptions, Pipeline, Planned};
use crate::retrieval::{Candidates, Towers};
use crate::segments::SegmentReport;
use crate::tasks::{Evaluations, Figures, TaskReport, as_map, figures_as_map};
use crate::unseen::{UnseenCounter, UnseenIds};

/// The figures of an evaluated data set. All figures outside of `tasks` belong to the first task,
/// or to the label of classes, whose classes are the tasks.
#[derive(Clone, Debug, Serialize)]
pub struct EvalReport {
    /// The area under the ROC curve; absent if all rows are of one class.
    pub auc: Option<f64>,
    /// The share of rows whose class has the largest probability; absent unless the label has
    /// classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The area under the precision-recall curve; absent if no row is positive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pr_auc: Option<f64>,
    /// The mean AUC of the groups, weighted by their numbers of rows; absent without a group
    /// column.
    pub gauc: Option<f64>,
    /// The mean log loss of the rows.
    pub logloss: Option<f64>,
    /// The sum of the predictions divided by the sum of the labels.
    pub calibration: Option<f64>,
    /// The mean prediction and the mean label of each tenth of the rows, by ascending prediction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calibration_table: Vec<CalibrationBucket>,
    /// The number of rows that have the label. With several labels, a row may lack some of them.
    pub rows: u64,
    /// The number of bad rows that were left out.
    pub rejected_rows: u64,
    /// The number of rows whose label is 1, or above 0 if it is a number.
    pub positives: u64,
    /// The figures `ndcg@k` and `recall@k`. They rank the rows inside each group or, for retrieval,
    /// all candidates.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "figures_as_map")]
    pub ranking: Vec<RankingFigure>,
    /// The figures of a baseline, which ranks the candidates by their frequencies in the training
    /// data.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "figures_as_map")]
    pub popularity: Vec<RankingFigure>,
    /// The number of candidates that are ranked for each row.
    #[serde(skip_serializing_if = "is_zero")]
    pub candidates: u64,
    /// The number of rows whose item is not a candidate and cannot be retrieved.
    #[serde(skip_serializing_if = "is_zero")]
    pub unknown_items: u64,
    /// The errors of predicted numbers; absent if the label is 0 or 1.
    #[serde(flatten)]
    pub numbers: Option<NumberReport>,
    /// The figures of segments, if the job asks for some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentReport>,
    /// The figures of every task, including the first one; empty if the model has only one task.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    pub tasks: Vec<(String, TaskReport)>,
    /// The number of unique keys that have no row and are read as unknown, summed over all batches.
    pub missing_keys: u64,
    /// The features with ids that have no row. Empty if every id has a row, or if the source of the
    /// rows does not tell which ids have one (tables on servers).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenIds>,
    /// The number of rows whose key is missing in a side table, for each side table with missing
    /// keys. Empty if no key is missing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_side_rows: BTreeMap<String, u64>,
}

impl EvalReport {
    /// Returns the value of the metric that a schedule follows.
    pub(crate) fn metric_value(&self, metric: PlateauMetric, task: Option<&str>) -> Option<f64> {
        let mut task = self.task(task);
        if self.candidates > 0 {
            // Retrieval ranks the rows themselves for every choice of tasks.
            task.ranking.clone_from(&self.ranking);
        }
        task.metric_value(metric)
    }

    /// Returns the figures of the first task.
    pub fn first_task(&self) -> TaskReport {
        self.task(None)
    }

    /// Returns the figures of the named task, or of the first task if `name` is `None`.
    pub(crate) fn task(&self, name: Option<&str>) -> TaskReport {
        let named = self.tasks.iter().find(|(task, _)| Some(task.as_str()) == name);
        named.map_or_else(
            || TaskReport {
                auc: self.auc,
                accuracy: self.accuracy,
                pr_auc: self.pr_auc,
                gauc: self.gauc,
                logloss: self.logloss,
                calibration: self.calibration,
                rows: self.rows,
                positives: self.positives,
                ranking: self.ranking.clone(),
                numbers: self.numbers,
                segments: self.segments.clone(),
                calibration_table: self.calibration_table.clone(),
            },
            |(_, report)| report.clone(),
        )
    }
}

/// Returns the counts by the name of the side table, without counts of 0. `counts` are in the order
/// of the schema's side tables.
pub(crate) fn missing_side_rows(job: &Job, counts: &[u64]) -> BTreeMap<String, u64> {
    let sides = job.schema.sides.iter().zip(counts);
    sides.filter(|&(_, &n)| n > 0).map(|(side, &n)| (side.name.clone(), n)).collect()
}

/// The model, the rows and the settings that an evaluation needs.
pub(crate) struct Judge<'a> {
    pub(crate) job: &'a Job,
    pub(crate) scorer: &'a mut Scorer,
    /// The two towers; `None` if the job does not ask for retrieval.
    pub(crate) towers: Option<&'a mut Towers>,
    pub(crate) frequencies: &'a Frequencies,
    pub(crate) source: &'a mut dyn RowSource,
    pub(crate) params: &'a Params,
    pub(crate) workers: &'a Arc<Workers>,
    /// The flag that ends the evaluation with an error; `None` if nothing ends it.
    pub(crate) stop: Option<&'a AtomicBool>,
}

impl Judge<'_> {
    /// Scores every row of `dataset` in file order, and compares the scores with the labels or the
    /// items.
    pub(crate) fn evaluate(self, dataset: &Dataset) -> Result<EvalReport> {
        let Self { job, scorer, mut towers, frequencies, source, params, workers, stop } = self;
        let ranks = if towers.is_some() { Cutoffs::default() } else { job.eval.cutoffs() };
        let mut evaluations = Evaluations::new(job, &ranks);
        let mut candidates = match &mut towers {
            Some(towers) => Some(towers.candidates(job, dataset, frequencies, source, params)?),
            None => None,
        };
        let mut missing_sides = vec![0; job.schema.sides.len()];
        let (mut missing_keys, mut rows, mut rejected_rows) = (0, 0, 0);
        let mut unseen = UnseenCounter::new(&job.schema);
        let mut pipeline = pipeline(job, dataset, workers)?;
        while let Some(Planned { batch, plan, rejected, .. }) = pipeline.next()? {
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(Error::EvaluationStopped);
            }
            rejected_rows += rejected.len() as u64;
            let missing_before = missing_keys;
            if !job.schema.labels.is_empty() {
                let scores = scorer.score(&batch, &plan, source, params)?;
                missing_keys += scores.missing;
                evaluations.push(&batch, &scores.outputs)?;
            }
            if let (Some(towers), Some(candidates)) = (&mut towers, &mut candidates) {
                let missing = towers.push(&batch, &plan, candidates, source, params, workers)?;
                if job.schema.labels.is_empty() {
                    missing_keys += missing;
                }
            }
            unseen.add(&batch, &plan, missing_keys - missing_before, source);
            rows += batch.rows as u64;
            add(&mut missing_sides, &batch.side_missing);
        }
        rejected_rows += pipeline.ending.rejected.len() as u64;
        let mut name_texts = |feature: &str, keys: &HashSet<FeatureKey>| {
            let feature = job.schema.features.iter().find(|known| known.name == feature);
            // The column of a feature of a side table is not a column of the data.
            match feature.filter(|feature| feature.side.is_none()) {
                Some(feature) => Ok(zillion_reader::texts(dataset, feature, keys, workers)?),
                None => Ok(HashMap::new()),
            }
        };
        let Figures { first, tasks } = evaluations.finish(&mut name_texts)?;
        let retrieval = candidates.map(Candidates::finish);
        let first = first.unwrap_or_else(|| {
            let positives = retrieval.as_ref().map_or(0, |r| r.rows);
            TaskReport { rows, positives, ..TaskReport::default() }
        });
        let ranking = retrieval.as_ref().map_or(first.ranking, |r| r.figures.clone());
        Ok(EvalReport {
            auc: first.auc,
            accuracy: first.accuracy,
            pr_auc: first.pr_auc,
            gauc: first.gauc,
            logloss: first.logloss,
            calibration: first.calibration,
            calibration_table: first.calibration_table,
            rows: first.rows,
            positives: first.positives,
            ranking,
            candidates: retrieval.as_ref().map_or(0, |r| r.candidates),
            unknown_items: retrieval.as_ref().map_or(0, |r| r.unknown),
            numbers: first.numbers,
            segments: first.segments,
            popularity: retrieval.map_or_else(Vec::new, |r| r.popularity),
            tasks: if tasks.len() > 1 { tasks } else { Vec::new() },
            rejected_rows,
            missing_keys,
            unseen: unseen.finish(),
            missing_side_rows: missing_side_rows(job, &missing_sides),
        })
    }
}

/// Adds each count to the sum at the same index.
pub(crate) fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, &count)| *sum += count);
}

/// The counts of a data set that was scored.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The number of unique keys without a row, summed over batches.
    pub missing: u64,
    /// The features with ids that have no row.
    pub unseen: Vec<UnseenIds>,
    /// The number of bad rows that were left out.
    pub rejected: u64,
    /// The positions of the bad rows after the last row that was scored.
    pub rejected_last: Vec<u64>,
}

/// Scores every row in file order until `sink` returns `false`. For each batch, `sink` gets the
/// batch, its scores, and the positions of the bad rows. These are the bad rows after the end of
/// the previous batch and before the end of this batch.
pub(crate) fn for_each_scored(
    job: &Job,
    dataset: &Dataset,
    scorer: &mut Scorer,
    source: &mut dyn RowSource,
    params: &Params,
    workers: &Arc<Workers>,
    mut sink: impl FnMut(&Batch, &[&[f32]], &[u64]) -> Result<bool>,
) -> Result<Predicted> {
    let mut pipeline = pipeline(job, dataset, workers)?;
    let (mut missing, mut rejected) = (0, 0);
    let mut unseen = UnseenCounter::new(&job.schema);
    while let Some(planned) = pipeline.next()? {
        let scores = scorer.score(&planned.batch, &planned.plan, source, params)?;
        missing += scores.missing;
        unseen.add(&planned.batch, &planned.plan, scores.missing, source);
        rejected += planned.rejected.len() as u64;
        if !sink(&planned.batch, &scores.outputs, &planned.rejected)? {
            break;
        }
    }
    let rejected_last = pipeline.ending.rejected;
    rejected += rejected_last.len() as u64;
    Ok(Predicted { missing, unseen: unseen.finish(), rejected, rejected_last })
}

/// Makes a pipeline over the rows of a data set in file order.
pub(crate) fn pipeline(job: &Job, dataset: &Dataset, workers: &Arc<Workers>) -> Result<Pipeline> {
    let order = BatchOrder {
        seed: 0,
        shuffle: false,
        batch_rows: job.train.batch_size.get(),
        drop_last: false,
    };
    let batches = dataset.batches(order, Cursor::default(), workers.clone())?;
    let with = AheadOptions::of_job(job, workers);
    Ok(Pipeline::new(batches, Arc::new(job.schema.clone()), with))
}
