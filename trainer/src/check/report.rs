//! The report of a check.

use serde::Serialize;
use zillion_reader::Estimate;

use crate::job::is_zero;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The job cannot run.
    Error,
    /// The job can run, but would fail later: memory or disk run out, or nothing can be learned.
    Stop,
    /// The job can run, but not as well as it could.
    Warning,
    /// The finding is worth knowing and needs no action.
    Note,
}

/// A problem or a note about the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The key of the job, or `machine`.
    pub about: String,
    /// The finding and its remedy.
    pub text: String,
}

/// The findings and figures of a check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// The figures of the training data; absent if the data cannot be opened.
    pub data: Option<DataCheck>,
    /// The figures of the tables.
    pub tables: Vec<TableCheck>,
    /// The memory of the job; absent if the model cannot be built.
    pub memory: Option<MemoryCheck>,
}

/// The figures of the training data.
#[derive(Clone, Debug, Serialize)]
pub struct DataCheck {
    /// The number of rows; absent if the files do not give it.
    pub rows: Option<u64>,
    /// Whether the number is exact.
    pub rows_are_exact: bool,
    /// The number of rows in the sample.
    pub sampled: u64,
    /// The number of bad rows that were left out of the sample.
    pub rejected: u64,
    /// The number of places of the data from which the rows of the sample come.
    pub places: u64,
    /// Whether the places are spread over all rows of the data. Otherwise, the sample is the
    /// beginning of the data.
    pub is_spread: bool,
    /// The figures of the features.
    pub features: Vec<FeatureCheck>,
    /// The figures of the labels.
    pub labels: Vec<LabelCheck>,
}

/// The figures of one feature in the sample.
#[derive(Clone, Debug, Serialize)]
pub struct FeatureCheck {
    /// The name of the feature.
    pub name: String,
    /// The kind of the feature.
    pub kind: &'static str,
    /// The share of rows without a value.
    pub missing_share: f64,
    /// The number of distinct ids in the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// The mean length of the lists, for a feature with lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values_per_row: Option<f64>,
    /// The smallest, the mean and the largest value of a numeric feature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<[f64; 3]>,
}

/// The figures of one label in the sample.
#[derive(Clone, Debug, Serialize)]
pub struct LabelCheck {
    /// The name of the label.
    pub name: String,
    /// The share of ones among the rows that have the label.
    pub base_rate: Option<f64>,
    /// The number of rows that have the label.
    pub rows: u64,
}

/// The estimated size of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableCheck {
    /// The name of the table.
    pub name: String,
    /// The number of distinct ids in the sample.
    pub sampled: u64,
    /// The estimated number of ids that will not occur often enough to be admitted.
    #[serde(skip_serializing_if = "is_zero")]
    pub candidates: u64,
    /// The lower bound of the number of rows after one epoch. If ids must be admitted, the number
    /// is that after the last epoch.
    pub rows_low: u64,
    /// The estimated number of rows that the table has at the same time.
    pub rows: u64,
    /// The upper bound of the number of rows that the table has at the same time.
    pub rows_high: u64,
    /// The memory of a row in bytes, including its place in the index.
    pub bytes_per_row: u64,
    /// The estimated memory of the table, in bytes.
    pub bytes: u64,
    /// The upper bound of the memory of the table, in bytes.
    pub bytes_high: u64,
    /// The number of rows in memory, for a table of `run.spill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_rows: Option<u64>,
    /// The upper bound of the size of the files with the other rows, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub spill_bytes: u64,
    /// The estimated size of the table in one checkpoint, in bytes.
    pub checkpoint_bytes: u64,
}

/// The memory that a job will take, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryCheck {
    /// The estimated memory of the tables.
    pub tables: u64,
    /// The upper bound of the memory of the tables.
    pub tables_high: u64,
    /// The memory of the buffers of a training step and of scoring.
    pub arenas: u64,
    /// The memory of the decoded rows that wait to be shuffled and batched.
    pub windows: u64,
    /// The memory of the dense parameters with their gradients and optimizer state.
    pub dense: u64,
    /// The memory that is free on this machine.
    pub available: Option<u64>,
    /// The memory that the machine has.
    pub total: Option<u64>,
}

impl CheckReport {
    /// Makes the report of a job that could not be read, with one error.
    pub fn of_error(about: &str, error: impl ToString) -> Self {
        let finding =
            Finding { severity: Severity::Error, about: about.to_owned(), text: error.to_string() };
        Self { findings: vec![finding], data: None, tables: Vec::new(), memory: None }
    }

    /// Returns the worst severity of the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).min()
    }
}

impl TableCheck {
    pub(super) fn set_rows(&mut self, estimate: Estimate) {
        self.rows_low = estimate.low.round() as u64;
        self.rows = estimate.value.round() as u64;
        self.rows_high = estimate.high.ceil() as u64;
    }
}

#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn error(&mut self, about: &str, text: impl Into<String>) {
        self.push(Severity::Error, about, text.into());
    }

    pub(super) fn stop(&mut self, about: &str, text: impl Into<String>) {
        self.push(Severity::Stop, about, text.into());
    }

    pub(super) fn warning(&mut self, about: &str, text: impl Into<String>) {
        self.push(Severity::Warning, about, text.into());
    }

    pub(super) fn note(&mut self, about: &str, text: impl Into<String>) {
        self.push(Severity::Note, about, text.into());
    }

    fn push(&mut self, severity: Severity, about: &str, text: String) {
        let finding = Finding { severity, about: about.to_owned(), text };
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    /// Returns the findings from the worst to the least severe. Findings of equal severity stay in
    /// the order in which they were found.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|f| f.severity);
        self.0
    }
}
