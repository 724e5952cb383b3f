//! The figures of segments: the rows of an evaluation that share a value of a feature.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use zillion_feature::{Batch, FeatureKey, FeatureKind, FeatureSpec, MixedHasher, RawType};
use zillion_nn::metrics;

use crate::error::Result;
use crate::job::Job;

/// A function that finds the texts of keys of a feature of strings, by the name of the feature.
pub(crate) type NameTexts<'a> =
    dyn FnMut(&str, &HashSet<FeatureKey>) -> Result<HashMap<FeatureKey, String>> + 'a;

/// The most segments of a feature that have figures of their own.
const MOST: usize = 16;

/// The figures of the rows with one value of a feature.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentReport {
    /// The name of the feature.
    pub feature: String,
    /// The value: an id, the number of a bucket from 0 on, or `missing`. A text that the data does
    /// not show is the hexadecimal key of its row. Absent for the rows of all other values.
    pub value: Option<String>,
    /// The number of rows.
    pub rows: u64,
    /// The number of rows whose label is 1.
    pub positives: u64,
    /// The area under the ROC curve; absent if all rows are of one class.
    pub auc: Option<f64>,
    /// The mean log loss of the rows.
    pub logloss: Option<f64>,
    /// The sum of the predicted probabilities divided by the number of positive rows.
    pub calibration: Option<f64>,
}

/// A feature whose values are segments.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    /// The sparse column of a batch.
    column: usize,
    raw: Option<RawType>,
    is_bucket: bool,
    missing: FeatureKey,
    keys: Vec<FeatureKey>,
}

/// The rows of one task, with the values of the features whose segments are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    columns: Vec<Column>,
    scores: Vec<f32>,
    labels: Vec<f32>,
    weights: Option<Vec<f32>>,
}

impl Segments {
    /// Creates the segments of a job's `eval.segments`.
    pub(crate) fn new(job: &Job) -> Self {
        let column = |name: &String| {
            let (column, feature) =
                job.schema.sparse().enumerate().find(|(_, feature)| feature.name == *name)?;
            let (raw, missing) = (raw_type(feature), FeatureKey::missing(name));
            let is_bucket = matches!(feature.kind, FeatureKind::Bucketized { .. });
            Some(Column { name: name.clone(), column, raw, is_bucket, missing, keys: Vec::new() })
        };
        Self { columns: job.eval.segments.iter().filter_map(column).collect(), ..Self::default() }
    }

    /// Adds the rows of a batch whose label is known. `scores`, `labels` and `weights` hold these
    /// rows alone.
    pub(crate) fn push(
        &mut self,
        batch: &Batch,
        known: Option<&[bool]>,
        (scores, labels, weights): (&[f32], &[f32], Option<&[f32]>),
    ) {
        if self.columns.is_empty() {
            return;
        }
        for column in &mut self.columns {
            let keys = crate::tasks::kept(&batch.sparse[column.column].keys, known);
            column.keys.extend_from_slice(&keys);
        }
        self.scores.extend_from_slice(scores);
        self.labels.extend_from_slice(labels);
        if let Some(weights) = weights {
            self.weights.get_or_insert_default().extend_from_slice(weights);
        }
    }

    /// Returns the figures of each feature's most frequent values, the most frequent one first, and
    /// of the rows with other values.
    ///
    /// `name_texts` finds the texts of the keys of a feature of strings.
    pub(crate) fn finish(self, name_texts: &mut NameTexts<'_>) -> Result<Vec<SegmentReport>> {
        let mut reports = Vec::new();
        for column in &self.columns {
            let mut rows: HashMap<FeatureKey, Vec<usize>, MixedHasher> = HashMap::default();
            for (row, &key) in column.keys.iter().enumerate() {
                rows.entry(key).or_default().push(row);
            }
            let mut values: Vec<(FeatureKey, Vec<usize>)> = rows.into_iter().collect();
            values.sort_unstable_by_key(|(key, rows)| (std::cmp::Reverse(rows.len()), key.0));
            let others = values.split_off(values.len().min(MOST));
            let mut texts = HashMap::new();
            if column.raw == Some(RawType::String) {
                let keys = values.iter().map(|(key, _)| *key);
                let keys = keys.filter(|&key| key != column.missing).collect();
                texts = name_texts(&column.name, &keys)?;
            }
            for (key, rows) in &values {
                let name = texts.remove(key).unwrap_or_else(|| column.format(*key));
                reports.push(self.report(column, Some(name), rows)?);
            }
            let mut others: Vec<usize> = others.into_iter().flat_map(|(_, rows)| rows).collect();
            others.sort_unstable();
            if !others.is_empty() {
                reports.push(self.report(column, None, &others)?);
            }
        }
        Ok(reports)
    }

    fn report(
        &self,
        column: &Column,
        value: Option<String>,
        rows: &[usize],
    ) -> Result<SegmentReport> {
        let take = |values: &[f32]| -> Vec<f32> { rows.iter().map(|&row| values[row]).collect() };
        let weights = self.weights.as_deref().map(take);
        let mut evaluation = metrics::Evaluation::new();
        let scores = take(&self.scores);
        let scores = metrics::Scores::Logits(&scores);
        evaluation.push(scores, &take(&self.labels), weights.as_deref(), None)?;
        let report = evaluation.finish()?;
        Ok(SegmentReport {
            feature: column.name.clone(),
            value,
            rows: report.rows,
            positives: report.positives,
            auc: report.auc,
            logloss: report.logloss,
            calibration: report.calibration,
        })
    }
}

impl Column {
    fn format(&self, key: FeatureKey) -> String {
        match self.raw {
            _ if key == self.missing => "missing".to_owned(),
            Some(RawType::I64) => (key.unmix() as i64).to_string(),
            Some(RawType::U64) => key.unmix().to_string(),
            None if self.is_bucket => key.unmix().to_string(),
            _ => format!("{:016x}", key.0),
        }
    }
}

/// Returns the type of the ids of a feature that has one id in each row.
fn raw_type(feature: &FeatureSpec) -> Option<RawType> {
    match feature.kind {
        FeatureKind::Id { raw, .. } => Some(raw),
        _ => None,
    }
}
