//! The tasks of a model: their labels in a batch, and their figures.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use zillion_feature::{Batch, LabelColumn, LabelKind};
use zillion_nn::metrics::{
    CalibrationBucket, ClassEvaluation, ClassFigures, ClassReport, Cutoffs, Evaluation,
    NumberEvaluation, NumberReport, RankingFigure, Report, Scores,
};
use zillion_nn::optim::PlateauMetric;
use zillion_nn::zoo::{self, Task, TaskLabel};

use crate::error::Result;
use crate::job::Job;
use crate::segments::{NameTexts, SegmentReport, Segments};

impl Job {
    /// Returns the tasks that the model scores, in the order of its outputs. A report that has the
    /// figures of only one task describes the first task, or the label of classes, whose classes
    /// are the tasks.
    pub fn tasks(&self) -> Vec<Task> {
        if let Some(label) = self.class_label() {
            return Task::of_classes(label, &self.schema.labels[label].task_names());
        }
        let labels: Vec<&str> = self.schema.labels.iter().map(|l| l.name.as_str()).collect();
        zoo::tasks(&self.model, &labels)
    }

    /// Returns the index of the label of classes, if the job has one. Such a label is the only one.
    pub(crate) fn class_label(&self) -> Option<usize> {
        self.schema.labels.iter().position(|label| label.kind == LabelKind::Class)
    }
}

/// The figures of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskReport {
    /// The area under the ROC curve; absent if all rows are of one class. For a label of classes,
    /// it is the mean of the classes, each against all others.
    pub auc: Option<f64>,
    /// The share of rows whose class has the largest probability; absent unless the label has
    /// classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The mean AUC of the groups, weighted by their numbers of rows; absent without a group
    /// column.
    pub gauc: Option<f64>,
    /// The area under the precision-recall curve; absent if no row is positive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pr_auc: Option<f64>,
    /// The mean log loss of the rows.
    pub logloss: Option<f64>,
    /// The sum of the predictions divided by the sum of the labels.
    pub calibration: Option<f64>,
    /// The number of evaluated rows, which are the rows that have the label of the task.
    pub rows: u64,
    /// The number of rows whose label is 1, or above 0 if it is a number.
    pub positives: u64,
    /// The figures `ndcg@k` and `recall@k` inside each group, if the job asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "figures_as_map")]
    pub ranking: Vec<RankingFigure>,
    /// The errors of predicted numbers; absent if the label is 0 or 1.
    #[serde(flatten)]
    pub numbers: Option<NumberReport>,
    /// The figures of segments, if the job asks for some and the label is 0 or 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentReport>,
    /// The mean prediction and the mean label of each tenth of the rows, by ascending prediction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calibration_table: Vec<CalibrationBucket>,
}

impl TaskReport {
    /// Returns the value of a metric, if the task has it.
    pub fn metric_value(&self, metric: PlateauMetric) -> Option<f64> {
        match metric {
            PlateauMetric::Auc => self.auc,
            PlateauMetric::Gauc => self.gauc,
            PlateauMetric::PrAuc => self.pr_auc,
            PlateauMetric::Logloss => self.logloss,
            PlateauMetric::Accuracy => self.accuracy,
            PlateauMetric::Rmse => self.numbers.map(|numbers| numbers.rmse),
            PlateauMetric::Mae => self.numbers.map(|numbers| numbers.mae),
            PlateauMetric::Ndcg(_) | PlateauMetric::Recall(_) => {
                let name = metric.to_string();
                self.ranking.iter().find(|figure| figure.name == name)?.value
            }
        }
    }

    fn new(report: &Report) -> Self {
        Self {
            auc: report.auc,
            accuracy: None,
            pr_auc: report.pr_auc,
            gauc: report.gauc.and_then(|g| g.value),
            logloss: report.logloss,
            calibration: report.calibration,
            rows: report.rows,
            positives: report.positives,
            ranking: report.ranking.clone(),
            numbers: None,
            segments: Vec::new(),
            calibration_table: report.calibration_table.clone(),
        }
    }
}

/// Serializes ranking figures as a map from name to value.
pub(crate) fn figures_as_map<S: Serializer>(
    figures: &[RankingFigure],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for figure in figures {
        map.serialize_entry(&figure.name, &figure.value)?;
    }
    map.end()
}

/// Serializes one value for each task as a map from name to value, in the order of the tasks.
pub(crate) fn as_map<T: Serialize, S: Serializer>(
    tasks: &[(String, T)],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(tasks.len()))?;
    for (name, value) in tasks {
        map.serialize_entry(name, value)?;
    }
    map.end()
}

/// The labels of a task in a batch, and the flags of the rows that have a label. The flags are
/// `None` if all rows have a label.
pub(crate) struct Truth<'a> {
    pub(crate) labels: Cow<'a, [f32]>,
    pub(crate) known: Option<Cow<'a, [bool]>>,
}

impl<'a> Truth<'a> {
    pub(crate) fn of(label: TaskLabel, columns: &'a [LabelColumn]) -> Self {
        match label {
            TaskLabel::Own { label } => {
                let column = &columns[label];
                let known = column.mask.as_deref().map(Cow::Borrowed);
                Self { labels: Cow::Borrowed(&column.values), known }
            }
            TaskLabel::Both { first, second } => {
                let (first, second) = (&columns[first], &columns[second]);
                let rows = 0..first.values.len();
                let happened = |row| is_one(first, row) && is_one(second, row);
                let known = |row| has(first, row) && (first.values[row] == 0.0 || has(second, row));
                Self {
                    labels: rows.clone().map(|row| f32::from(u8::from(happened(row)))).collect(),
                    known: Some(rows.map(known).collect()),
                }
            }
            TaskLabel::Given { first, second } => {
                let (first, second) = (&columns[first], &columns[second]);
                let known = |row| is_one(first, row) && has(second, row);
                Self {
                    labels: Cow::Borrowed(&second.values),
                    known: Some((0..second.values.len()).map(known).collect()),
                }
            }
            TaskLabel::Class { label, class } => {
                let column = &columns[label];
                let is_class = |&value: &f32| f32::from(u8::from(value == class as f32));
                Self {
                    labels: column.values.iter().map(is_class).collect(),
                    known: column.mask.as_deref().map(Cow::Borrowed),
                }
            }
        }
    }
}

fn has(column: &LabelColumn, row: usize) -> bool {
    column.mask.as_ref().is_none_or(|mask| mask[row])
}

fn is_one(column: &LabelColumn, row: usize) -> bool {
    has(column, row) && column.values[row] == 1.0
}

/// Returns the values of the rows whose label is known.
pub(crate) fn kept<'a, T: Copy>(values: &'a [T], known: Option<&[bool]>) -> Cow<'a, [T]> {
    match known {
        None => Cow::Borrowed(values),
        Some(known) => values.iter().zip(known).filter(|(_, k)| **k).map(|(&v, _)| v).collect(),
    }
}

/// The evaluation of a task: of probabilities, or of numbers.
enum TaskEvaluation {
    Binary(Box<(Evaluation, Segments)>),
    Numbers { kind: LabelKind, evaluation: NumberEvaluation, positives: u64 },
}

impl TaskEvaluation {
    fn new(job: &Job, task: &Task, cutoffs: &Cutoffs) -> Self {
        let label = job.schema.labels.get(task.label.of());
        match label.map(|label| label.kind).unwrap_or_default() {
            LabelKind::Binary => Self::Binary(Box::new((
                Evaluation::with_cutoffs(cutoffs.clone()),
                Segments::new(job),
            ))),
            kind => Self::Numbers {
                kind,
                evaluation: NumberEvaluation::new(kind == LabelKind::Count),
                positives: 0,
            },
        }
    }

    fn push(&mut self, batch: &Batch, truth: &Truth<'_>, scores: &[f32]) -> Result<()> {
        let known = truth.known.as_deref();
        let weights = batch.weight.as_deref().map(|w| kept(w, known));
        let weights = weights.as_deref();
        let (scores, labels) = (kept(scores, known), kept(&truth.labels, known));
        match self {
            Self::Binary(evaluations) => {
                let (evaluation, segments) = evaluations.as_mut();
                let group = batch.group.as_deref().map(|g| kept(g, known));
                evaluation.push(Scores::Logits(&scores), &labels, weights, group.as_deref())?;
                segments.push(batch, known, (&scores, &labels, weights));
            }
            Self::Numbers { kind, evaluation, positives } => {
                let predictions: Vec<f64> =
                    scores.iter().map(|&score| kind.predict_exactly(score)).collect();
                evaluation.push(&predictions, &labels, weights)?;
                *positives += labels.iter().filter(|&&label| label > 0.0).count() as u64;
            }
        }
        Ok(())
    }

    fn finish(self, name_texts: &mut NameTexts<'_>) -> Result<TaskReport> {
        match self {
            Self::Binary(evaluations) => {
                let (evaluation, segments) = *evaluations;
                let segments = segments.finish(name_texts)?;
                Ok(TaskReport { segments, ..TaskReport::new(&evaluation.finish()?) })
            }
            Self::Numbers { evaluation, positives, .. } => {
                let numbers = evaluation.finish();
                let calibration = numbers.map(|n| n.mean_prediction / n.mean_label);
                Ok(TaskReport {
                    calibration: calibration.filter(|ratio| ratio.is_finite()),
                    rows: evaluation.rows(),
                    positives,
                    numbers,
                    ..TaskReport::default()
                })
            }
        }
    }
}

/// The evaluations of all tasks.
pub(crate) struct Evaluations {
    tasks: Vec<Task>,
    evaluations: Vec<TaskEvaluation>,
    /// The label of classes, whose classes are the tasks, instead of an evaluation of each task.
    classes: Option<(TaskLabel, ClassEvaluation)>,
}

/// The figures of an evaluation.
pub(crate) struct Figures {
    /// The figures of the first task or of the label of classes; `None` without labels.
    pub(crate) first: Option<TaskReport>,
    /// The name and the figures of each task, in order.
    pub(crate) tasks: Vec<(String, TaskReport)>,
}

impl Evaluations {
    pub(crate) fn new(job: &Job, cutoffs: &Cutoffs) -> Self {
        let tasks = job.tasks();
        if let Some(label) = job.class_label() {
            let classes = (TaskLabel::Own { label }, ClassEvaluation::new(tasks.len()));
            return Self { tasks, evaluations: Vec::new(), classes: Some(classes) };
        }
        let evaluations =
            tasks.iter().map(|task| TaskEvaluation::new(job, task, cutoffs)).collect();
        Self { tasks, evaluations, classes: None }
    }

    /// Adds a batch with the scores of each task.
    pub(crate) fn push(&mut self, batch: &Batch, scores: &[&[f32]]) -> Result<()> {
        if let Some((label, classes)) = &mut self.classes {
            let truth = Truth::of(*label, &batch.labels);
            let known = truth.known.as_deref();
            let weights = batch.weight.as_deref().map(|weights| kept(weights, known));
            let scores: Vec<Cow<'_, [f32]>> =
                scores.iter().map(|scores| kept(scores, known)).collect();
            let scores: Vec<&[f32]> = scores.iter().map(AsRef::as_ref).collect();
            classes.push(&scores, &kept(&truth.labels, known), weights.as_deref())?;
            return Ok(());
        }
        for ((task, evaluation), scores) in self.tasks.iter().zip(&mut self.evaluations).zip(scores)
        {
            evaluation.push(batch, &Truth::of(task.label, &batch.labels), scores)?;
        }
        Ok(())
    }

    /// Returns the figures of all pushed rows.
    pub(crate) fn finish(self, name_texts: &mut NameTexts<'_>) -> Result<Figures> {
        if let Some((_, classes)) = self.classes {
            return Ok(report_classes(self.tasks, &classes.finish()?));
        }
        let named = self.tasks.into_iter().zip(self.evaluations);
        let report = |(task, evaluation): (Task, TaskEvaluation)| {
            Ok((task.name, evaluation.finish(name_texts)?))
        };
        let tasks: Vec<(String, TaskReport)> = named.map(report).collect::<Result<_>>()?;
        Ok(Figures { first: tasks.first().map(|(_, task)| task.clone()), tasks })
    }
}

/// Returns the figures of a label of classes, and those of each class against all others.
fn report_classes(tasks: Vec<Task>, report: &ClassReport) -> Figures {
    let first = TaskReport {
        auc: report.auc,
        accuracy: report.accuracy,
        logloss: report.logloss,
        rows: report.rows,
        // Each row has one class.
        positives: report.classes.iter().map(|class| class.positives).sum(),
        ..TaskReport::default()
    };
    let of_class = |(task, class): (Task, &ClassFigures)| {
        let figures = TaskReport {
            auc: class.auc,
            pr_auc: class.pr_auc,
            logloss: class.logloss,
            calibration: class.calibration,
            rows: report.rows,
            positives: class.positives,
            ..TaskReport::default()
        };
        (task.name, figures)
    };
    let tasks = tasks.into_iter().zip(&report.classes).map(of_class).collect();
    Figures { first: Some(first), tasks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(values: &[Option<f32>]) -> LabelColumn {
        LabelColumn {
            values: values.iter().map(|v| v.unwrap_or(0.0)).collect(),
            mask: Some(values.iter().map(Option::is_some).collect()),
        }
    }

    fn known(label: TaskLabel, columns: &[LabelColumn]) -> Vec<Option<f32>> {
        let truth = Truth::of(label, columns);
        let mask = truth.known.as_deref().map_or(vec![true; truth.labels.len()], <[bool]>::to_vec);
        truth.labels.iter().zip(mask).map(|(&y, known)| known.then_some(y)).collect()
    }

    #[test]
    fn a_row_counts_where_its_label_is_known() {
        let (no, yes) = (Some(0.0), Some(1.0));
        let click = column(&[no, no, no, yes, yes, yes, None, None]);
        let buy = column(&[no, yes, None, no, yes, None, no, yes]);
        let columns = [click, buy];
        let (first, second) = (0, 1);
        assert_eq!(
            known(TaskLabel::Class { label: 1, class: 0 }, &columns),
            [yes, no, None, yes, no, None, yes, no]
        );
        assert_eq!(
            known(TaskLabel::Own { label: 1 }, &columns),
            [no, yes, None, no, yes, None, no, yes]
        );
        assert_eq!(
            known(TaskLabel::Both { first, second }, &columns),
            [no, no, no, no, yes, None, None, None]
        );
        assert_eq!(
            known(TaskLabel::Given { first, second }, &columns),
            [None, None, None, no, yes, None, None, None]
        );
    }
}
