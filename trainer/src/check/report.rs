//! What a check found.

use serde::Serialize;
use zillion_reader::Estimate;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The job cannot run.
    Error,
    /// It can, but it would end badly: memory or disk run out, nothing can be learned.
    Stop,
    /// It can, but not as well as it could.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing worth saying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The key of the job, or `machine`.
    pub about: String,
    /// What is so, and what to do.
    pub text: String,
}

/// Everything a check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// The training data; absent where it cannot be opened.
    pub data: Option<DataCheck>,
    /// One a table.
    pub tables: Vec<TableCheck>,
    /// What the job will take; absent where the model cannot be built.
    pub memory: Option<MemoryCheck>,
}

/// The training data.
#[derive(Clone, Debug, Serialize)]
pub struct DataCheck {
    /// Rows; absent where the files do not say it.
    pub rows: Option<u64>,
    /// Whether the number is exact.
    pub rows_are_exact: bool,
    /// Rows that were looked at.
    pub sampled: u64,
    /// Rows beside them that were left out as bad.
    pub rejected: u64,
    /// One a feature.
    pub features: Vec<FeatureCheck>,
    /// One a label.
    pub labels: Vec<LabelCheck>,
}

/// A feature in the sample.
#[derive(Clone, Debug, Serialize)]
pub struct FeatureCheck {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// Share of rows without a value.
    pub missing_share: f64,
    /// Distinct ids in the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// Values a row, of features with any number of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values_per_row: Option<f64>,
    /// Smallest, mean and largest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<[f64; 3]>,
}

/// A label in the sample.
#[derive(Clone, Debug, Serialize)]
pub struct LabelCheck {
    /// Its name.
    pub name: String,
    /// Share of ones among the rows that have it.
    pub base_rate: Option<f64>,
    /// Rows that have it.
    pub rows: u64,
}

/// What a table will take.
#[derive(Clone, Debug, Serialize)]
pub struct TableCheck {
    /// Its name.
    pub name: String,
    /// Distinct ids in the sample.
    pub sampled: u64,
    /// Ids that will not have come often enough to be admitted, by the estimate.
    #[serde(skip_serializing_if = "is_zero")]
    pub candidates: u64,
    /// Rows after an epoch (where ids must be admitted, after the last one): lower bound, estimate, upper bound.
    pub rows_low: u64,
    /// The estimate.
    pub rows: u64,
    /// The upper bound.
    pub rows_high: u64,
    /// Memory of a row, index included.
    pub bytes_per_row: u64,
    /// Memory by the estimate.
    pub bytes: u64,
    /// Memory by the upper bound.
    pub bytes_high: u64,
    /// Rows that are in memory, of a table of `run.spill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_rows: Option<u64>,
    /// Disk that the files of the others may take, by the upper bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub spill_bytes: u64,
    /// Disk of one checkpoint by the estimate.
    pub checkpoint_bytes: u64,
}

/// What a job will take in memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryCheck {
    /// Tables, by the estimate.
    pub tables: u64,
    /// Tables, by the upper bound.
    pub tables_high: u64,
    /// Buffers of a training step and of scoring.
    pub arenas: u64,
    /// Decoded rows that wait to be shuffled and batched.
    pub windows: u64,
    /// Dense parameters with gradients and optimizer state.
    pub dense: u64,
    /// What could still be taken on this machine.
    pub available: Option<u64>,
    /// What the machine has.
    pub total: Option<u64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl CheckReport {
    /// A report of a job that could not even be read.
    pub fn of_error(about: &str, error: impl ToString) -> Self {
        let finding =
            Finding { severity: Severity::Error, about: about.to_owned(), text: error.to_string() };
        Self { findings: vec![finding], data: None, tables: Vec::new(), memory: None }
    }

    /// The worst of the findings.
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

    /// The worst first, in the order found.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|f| f.severity);
        self.0
    }
}
