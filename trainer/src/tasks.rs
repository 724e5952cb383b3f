//! The tasks of a model: their labels in a batch, and their figures.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use zillion_feature::{Batch, LabelColumn};
use zillion_nn::metrics::{CalibrationBucket, Cutoffs, Evaluation, RankingFigure, Report, Scores};
use zillion_nn::zoo::{self, Task, TaskLabel};

use crate::error::Result;
use crate::job::Job;

impl Job {
    /// Returns the tasks that the model scores, in the order of its outputs. A report that has the
    /// figures of only one task describes the first task.
    pub fn tasks(&self) -> Vec<Task> {
        let labels: Vec<&str> = self.schema.labels.iter().map(|l| l.name.as_str()).collect();
        zoo::tasks(&self.model, &labels)
    }
}

/// The figures of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskReport {
    /// The area under the ROC curve; absent if all rows are of one class.
    pub auc: Option<f64>,
    /// The mean AUC of the groups, weighted by their numbers of rows; absent without a group
    /// column.
    pub gauc: Option<f64>,
    /// The mean log loss of the rows.
    pub logloss: Option<f64>,
    /// The sum of the predicted probabilities divided by the number of positive rows.
    pub calibration: Option<f64>,
    /// The number of evaluated rows, which are the rows that have the label of the task.
    pub rows: u64,
    /// The number of rows whose label is 1.
    pub positives: u64,
    /// The figures `ndcg@k` and `recall@k` inside each group, if the job asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "figures_as_map")]
    pub ranking: Vec<RankingFigure>,
    /// The mean prediction and the mean label of each tenth of the rows, by ascending prediction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calibration_table: Vec<CalibrationBucket>,
}

impl TaskReport {
    fn new(report: &Report) -> Self {
        Self {
            auc: report.auc,
            gauc: report.gauc.and_then(|g| g.value),
            logloss: report.logloss,
            calibration: report.calibration,
            rows: report.rows,
            positives: report.positives,
            ranking: report.ranking.clone(),
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

/// The evaluations of all tasks.
pub(crate) struct Evaluations {
    tasks: Vec<Task>,
    evaluations: Vec<Evaluation>,
}

impl Evaluations {
    pub(crate) fn new(tasks: Vec<Task>, cutoffs: &Cutoffs) -> Self {
        let evaluations = tasks.iter().map(|_| Evaluation::with_cutoffs(cutoffs.clone())).collect();
        Self { tasks, evaluations }
    }

    /// Adds a batch with the log odds of each task.
    pub(crate) fn push(&mut self, batch: &Batch, logits: &[&[f32]]) -> Result<()> {
        for ((task, evaluation), logits) in self.tasks.iter().zip(&mut self.evaluations).zip(logits)
        {
            let truth = Truth::of(task.label, &batch.labels);
            let known = truth.known.as_deref();
            let weight = batch.weight.as_deref().map(|w| kept(w, known));
            let group = batch.group.as_deref().map(|g| kept(g, known));
            let (logits, labels) = (kept(logits, known), kept(&truth.labels, known));
            let scores = Scores::Logits(&logits);
            evaluation.push(scores, &labels, weight.as_deref(), group.as_deref())?;
        }
        Ok(())
    }

    /// Returns the name and the figures of each task, in order.
    pub(crate) fn finish(self) -> Result<Vec<(String, TaskReport)>> {
        let named = self.tasks.into_iter().zip(self.evaluations);
        let reports =
            named.map(|(task, evaluation)| Ok((task.name, TaskReport::new(&evaluation.finish()?))));
        reports.collect()
    }
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
