//! Parity rows: rows that a version carries together with the scores that they must have.
//!
//! Checksums say that bytes are those that were published; they cannot say that this program, on this
//! machine, makes of them what the trainer made. So a version carries some raw rows and the trainer's log
//! odds for them, and a load that does not reproduce them is refused, whatever the hashes say.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use zillion_device::simd;
use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues};
use zillion_registry::VersionId;
use zillion_rows::layer::Pace;

use crate::error::{Error, Result};

/// How far a score may be off on a machine with other instructions than the trainer's, relative to its size
/// and at least to 1. Where the instructions are the same, so are the bits.
const TOLERANCE: f32 = 1e-5;

/// Raw rows and their log odds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityRows {
    /// Number of rows.
    pub rows: usize,
    /// The inputs.
    pub columns: Vec<ParityColumn>,
    /// Log odds by task, in the graph's order.
    pub logits: Vec<Vec<f32>>,
    /// The instructions that they were computed with.
    pub computed_with: String,
}

/// One input of the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityColumn {
    /// Its name.
    pub name: String,
    /// Its values, row after row.
    pub values: Vec<ParityValue>,
    /// How many of them each row has; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Vec<usize>>,
}

/// A raw value that can be written down: [`RawValue`] with the kinds of numbers kept apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityValue {
    /// There is none.
    Missing,
    /// A whole number.
    Int(i64),
    /// A whole number beyond `i64`.
    Uint(u64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(String),
}

impl ParityRows {
    /// Rows with their scores: log odds by task and row, each row scored in a batch of its own, so that whoever
    /// replays them can do it in small pieces.
    pub fn new(rows: usize, columns: &RawColumns<'_>, logits: Vec<Vec<f32>>) -> Self {
        let columns = columns.iter().map(|(name, column)| ParityColumn {
            name: name.to_string(),
            values: values_of(&column.values),
            lengths: column.lengths.clone(),
        });
        Self { rows, columns: columns.collect(), logits, computed_with: instructions() }
    }

    /// The file's bytes.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self)
            .expect("parity rows are plain data, and their numbers come from data that was finite")
    }

    /// Reads what [`ParityRows::to_json`] wrote.
    ///
    /// # Errors
    /// Bytes that are no such file.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes)
            .map_err(|e| Error::Refused(format!("the version's parity rows cannot be read: {e}")))
    }

    /// Each row as a request of its own has it.
    ///
    /// # Errors
    /// Columns that do not have the values of so many rows.
    fn requests(&self) -> Result<Vec<RawColumns<'_>>> {
        let mut requests = vec![RawColumns::new(); self.rows];
        for column in &self.columns {
            let mut values = column.values.iter();
            for (row, request) in requests.iter_mut().enumerate() {
                let length = match &column.lengths {
                    None => 1,
                    Some(lengths) => lengths.get(row).copied().unwrap_or_default(),
                };
                let own: Vec<RawValue<'_>> =
                    values.by_ref().take(length).map(ParityValue::raw).collect();
                if own.len() < length {
                    return Err(Error::Refused(format!(
                        "the version's parity row {row} lacks values: input `{}`",
                        column.name
                    )));
                }
                let raw = RawColumn {
                    values: RawValues::Any(own),
                    lengths: column.lengths.as_ref().map(|_| vec![length]),
                    is_shared: false,
                };
                request.insert(Cow::Borrowed(column.name.as_str()), raw);
            }
        }
        Ok(requests)
    }

    /// Scores the rows and compares. One at a time, as [`ParityRows::new`] wants them scored too: between two of
    /// them others have the processor.
    ///
    /// # Errors
    /// The first row whose score is not the trainer's.
    pub fn replay(
        &self,
        version: VersionId,
        tasks: &[String],
        mut score: impl FnMut(&RawColumns<'_>) -> Result<Vec<Vec<f32>>>,
        pace: &mut dyn Pace,
    ) -> Result<()> {
        let have = tasks.len();
        let want = self.logits.len();
        if have != want {
            return Err(Error::Refused(format!(
                "version {version} has parity rows for {want} scores and makes {have}; it is not loaded"
            )));
        }
        let tolerance = if self.computed_with == instructions() { 0.0 } else { TOLERANCE };
        let requests = self.requests()?;
        pace.piece();
        for (row, request) in requests.iter().enumerate() {
            let scores = score(request)?;
            for ((label, found), wanted) in tasks.iter().zip(&scores).zip(&self.logits) {
                let found = found.first().copied().unwrap_or(f32::NAN);
                let wanted = wanted.get(row).copied().unwrap_or(f32::NAN);
                let close = (found - wanted).abs() <= tolerance * wanted.abs().max(1.0);
                if !close {
                    let label = label.clone();
                    return Err(Error::Parity { version, label, row, found, wanted });
                }
            }
            pace.piece();
        }
        Ok(())
    }
}

impl ParityValue {
    fn raw(&self) -> RawValue<'_> {
        match self {
            Self::Missing => RawValue::Missing,
            Self::Int(x) => RawValue::Int(*x),
            Self::Uint(x) => RawValue::Uint(*x),
            Self::Float(x) => RawValue::Float(*x),
            Self::Bool(flag) => RawValue::Bool(*flag),
            Self::Text(text) => RawValue::Text(Cow::Borrowed(text)),
        }
    }
}

/// What this machine computes with.
fn instructions() -> String {
    format!("{}-{:?}", std::env::consts::ARCH, simd::level()).to_lowercase()
}

fn values_of(values: &RawValues<'_>) -> Vec<ParityValue> {
    let of = |value: &RawValue<'_>| match value {
        RawValue::Missing => ParityValue::Missing,
        RawValue::Int(x) => ParityValue::Int(*x),
        RawValue::Uint(x) => ParityValue::Uint(*x),
        // JSON has no infinities; what is not finite is refused before it is scored.
        RawValue::Float(x) if !x.is_finite() => ParityValue::Missing,
        RawValue::Float(x) => ParityValue::Float(*x),
        RawValue::Bool(flag) => ParityValue::Bool(*flag),
        RawValue::Text(text) => ParityValue::Text(text.to_string()),
    };
    match values {
        RawValues::Ints(values) => values.iter().map(|&x| ParityValue::Int(x)).collect(),
        RawValues::Uints(values) => values.iter().map(|&x| ParityValue::Uint(x)).collect(),
        RawValues::Floats(values) => values.iter().map(|&x| of(&RawValue::Float(x))).collect(),
        RawValues::Any(values) => values.iter().map(of).collect(),
    }
}
