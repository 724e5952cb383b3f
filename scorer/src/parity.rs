//! The parity rows of a version: raw rows with the scores that a server must compute for them.
//!
//! Checksums prove that the bytes of a version did not change. They cannot prove that this program,
//! on this machine, computes the same scores as the trainer. So a version holds some raw rows with
//! the log odds that the trainer has computed. If a machine computes other scores for them, it does
//! not load the version, even if all checksums are right.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use zillion_device::simd;
use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues};
use zillion_nn::DenseType;
use zillion_registry::VersionId;
use zillion_rows::layer::Throttle;

use crate::error::{Error, Result};

/// The largest allowed difference between a score and the trainer's score, if the instruction set
/// of the machine is not the one of the trainer. The difference is divided by the absolute value of
/// the score, or by 1 if the absolute value is smaller. If the instruction sets are equal, the bits
/// of the scores must be equal.
const TOLERANCE: f32 = 1e-5;

/// The largest allowed difference of a row, if the products of dense layers are computed in bf16
/// or in 8-bit integers. It is divided in the same way. With 8-bit integers, one row in a thousand
/// of a healthy model differs by 0.1 and single ones by 0.2, so a lower bound would refuse healthy
/// versions now and then.
const ROUNDED_TOLERANCE: f32 = 0.5;

/// The largest allowed mean of these differences over all rows. It is 0.02 in a healthy model with
/// 8-bit integers.
const ROUNDED_MEAN: f32 = 0.05;

/// The parity rows of a version: raw rows and their log odds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityRows {
    /// The number of rows.
    pub rows: usize,
    /// The inputs of the rows.
    pub columns: Vec<ParityColumn>,
    /// The log odds of the rows for each task, in the order of the graph's outputs.
    pub logits: Vec<Vec<f32>>,
    /// The name of the instruction set that computed the log odds.
    pub computed_with: String,
}

/// The values of one input for all parity rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityColumn {
    /// The name of the input.
    pub name: String,
    /// The values of the input, row after row.
    pub values: Vec<ParityValue>,
    /// The number of values in each row, or `None` if each row has exactly one value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Vec<usize>>,
}

/// A raw value that can be serialized. Unlike a plain JSON number, it records whether a number is
/// an `i64`, a `u64` or an `f64`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityValue {
    /// A value that is missing.
    Missing,
    /// An integer of type `i64`.
    Int(i64),
    /// An integer that is too large for `i64`.
    Uint(u64),
    /// A floating-point number of type `f64`.
    Float(f64),
    /// A value that is true or false.
    Bool(bool),
    /// A text, exactly as it was read from the data.
    Text(String),
}

impl ParityRows {
    /// Creates parity rows from raw rows and their log odds. `logits` has one list for each task,
    /// with one value for each row. The caller must have scored each row in a batch of its own,
    /// because [`ParityRows::replay`] scores the rows one by one.
    pub fn new(rows: usize, columns: &RawColumns<'_>, logits: Vec<Vec<f32>>) -> Self {
        let columns = columns.iter().map(|(name, column)| ParityColumn {
            name: name.to_string(),
            values: to_parity_values(&column.values),
            lengths: column.lengths.clone(),
        });
        Self { rows, columns: columns.collect(), logits, computed_with: instruction_set() }
    }

    /// Returns the rows as the bytes of a JSON file.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self)
            .expect("parity rows are plain data, and their numbers come from data that was finite")
    }

    /// Reads the bytes of a file that [`ParityRows::to_json`] has produced.
    ///
    /// # Errors
    /// Returns an error if the bytes are not such a file, or if the length of a list does not fit
    /// the number of rows.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let refuse = |reason: String| {
            Error::Refused(format!(
                "the parity rows of the version cannot be used: {reason}; publish a new version"
            ))
        };
        let rows: Self = serde_json::from_slice(bytes).map_err(|e| refuse(e.to_string()))?;
        rows.check_lengths().map_err(refuse)?;
        Ok(rows)
    }

    /// Checks that the lengths of all lists fit the number of rows. After this check, the number of
    /// rows is known to be smaller than the number of bytes of the file, so memory for the rows can
    /// be reserved safely.
    fn check_lengths(&self) -> Result<(), String> {
        let rows = self.rows;
        if self.logits.is_empty() && rows > 0 {
            return Err(format!("the file has {rows} rows, but no scores"));
        }
        if let Some(scores) = self.logits.iter().find(|scores| scores.len() != rows) {
            let found = scores.len();
            return Err(format!("the file has {rows} rows, but {found} scores of a label"));
        }
        for column in &self.columns {
            let (lengths, values) = match &column.lengths {
                None => (rows, Some(rows)),
                Some(lengths) => {
                    let mut all = lengths.iter().copied();
                    (lengths.len(), all.try_fold(0, usize::checked_add))
                }
            };
            if lengths != rows || values != Some(column.values.len()) {
                return Err(format!(
                    "the file has {rows} rows, but input `{}` has {lengths} lengths and {} values, which do not fit",
                    column.name,
                    column.values.len()
                ));
            }
        }
        Ok(())
    }

    /// Yields each row as a separate request. Only one request exists at a time, so the memory does
    /// not depend on the number of rows.
    fn requests(&self) -> impl Iterator<Item = RawColumns<'_>> {
        let mut rest: Vec<&[ParityValue]> =
            self.columns.iter().map(|column| column.values.as_slice()).collect();
        (0..self.rows).map(move |row| {
            let columns = self.columns.iter().zip(&mut rest).map(|(column, rest)| {
                let length = column.lengths.as_ref().map(|lengths| lengths[row]);
                // The lengths were checked when the file was read.
                let (own, others) = rest.split_at(length.unwrap_or(1).min(rest.len()));
                *rest = others;
                let raw = RawColumn {
                    values: RawValues::Any(own.iter().map(ParityValue::to_raw).collect()),
                    lengths: length.map(|length| vec![length]),
                    is_shared: false,
                };
                (Cow::Borrowed(column.name.as_str()), raw)
            });
            columns.collect()
        })
    }

    /// Scores the rows with `score`, and compares the results with the log odds of the trainer.
    /// `tasks` are the names of the scores. `dense` is the number type in which `score` computes
    /// dense layers, and decides how large a difference may be. The rows are scored one by one, as
    /// [`ParityRows::new`] requires, so `pace` can pause after each row.
    ///
    /// # Errors
    /// Returns an error for the first row whose score differs from the trainer's score.
    pub fn replay(
        &self,
        version: VersionId,
        tasks: &[String],
        dense: DenseType,
        mut score: impl FnMut(&RawColumns<'_>) -> Result<Vec<Vec<f32>>>,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let have = tasks.len();
        let want = self.logits.len();
        if have != want {
            return Err(Error::Refused(format!(
                "version {version} is not loaded, because its parity rows have {want} scores and its model has {have}; \
                 publish a new version"
            )));
        }
        let (tolerance, most_mean) = match dense {
            DenseType::Bf16 | DenseType::Int8 => (ROUNDED_TOLERANCE, ROUNDED_MEAN),
            DenseType::F32 if self.computed_with == instruction_set() => (0.0, f32::INFINITY),
            DenseType::F32 => (TOLERANCE, f32::INFINITY),
        };
        let mut differences = Differences::default();
        self.check_lengths().map_err(Error::Refused)?;
        for (row, request) in self.requests().enumerate() {
            let scores = score(&request)?;
            for ((label, found), wanted) in tasks.iter().zip(&scores).zip(&self.logits) {
                let found = found.first().copied().unwrap_or(f32::NAN);
                let wanted = wanted.get(row).copied().unwrap_or(f32::NAN);
                let close = (found - wanted).abs() <= tolerance * wanted.abs().max(1.0);
                if !close && dense.is_exact() {
                    let label = label.clone();
                    return Err(Error::Parity { version, label, row, found, wanted });
                }
                differences.add(Scored { label, row, found, wanted });
                if !close {
                    return Err(differences.refuse(version, dense, tolerance, most_mean));
                }
            }
            pace.piece();
        }
        match differences.mean() > most_mean {
            true => Err(differences.refuse(version, dense, tolerance, most_mean)),
            false => Ok(()),
        }
    }
}

/// A score of a parity row.
#[derive(Clone, Copy, Debug)]
struct Scored<'a> {
    label: &'a str,
    row: usize,
    found: f32,
    wanted: f32,
}

/// The differences between the scores of this machine and those of the trainer.
#[derive(Debug, Default)]
struct Differences<'a> {
    count: usize,
    sum: f32,
    /// The score with the largest difference, and this difference.
    worst: Option<(Scored<'a>, f32)>,
}

impl<'a> Differences<'a> {
    fn add(&mut self, scored: Scored<'a>) {
        let difference = (scored.found - scored.wanted).abs() / scored.wanted.abs().max(1.0);
        self.count += 1;
        self.sum += difference;
        // A difference that is not a number is the worst one.
        if !self.worst.is_some_and(|(_, worst)| difference <= worst) {
            self.worst = Some((scored, difference));
        }
    }

    fn mean(&self) -> f32 {
        self.sum / self.count.max(1) as f32
    }

    /// Returns the error of a version that rounding changes too much. It names the worst score.
    fn refuse(&self, version: VersionId, dense: DenseType, most: f32, most_mean: f32) -> Error {
        let nothing = Scored { label: "", row: 0, found: f32::NAN, wanted: f32::NAN };
        let Scored { label, row, found, wanted } = self.worst.map_or(nothing, |(worst, _)| worst);
        let (label, mean) = (label.to_owned(), self.mean());
        Error::Rounding { version, label, row, found, wanted, mean, dense, most, most_mean }
    }
}

impl ParityValue {
    fn to_raw(&self) -> RawValue<'_> {
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

/// Returns the name of the instruction set that this machine uses.
fn instruction_set() -> String {
    format!("{}-{:?}", std::env::consts::ARCH, simd::level()).to_lowercase()
}

fn to_parity_values(values: &RawValues<'_>) -> Vec<ParityValue> {
    let of = |value: &RawValue<'_>| match value {
        RawValue::Missing => ParityValue::Missing,
        RawValue::Int(x) => ParityValue::Int(*x),
        RawValue::Uint(x) => ParityValue::Uint(*x),
        // JSON has no infinities. A value that is not finite is refused before it is scored.
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use zillion_device::Workers;
    use zillion_feature::random::{combine, unit_f32};
    use zillion_feature::{Batch, LookupPlan, PlanScratch, RowBuffer, Schema};
    use zillion_nn::zoo::LOGITS;
    use zillion_nn::{GraphBuilder, GraphInputs, Mode, Params, Settings};
    use zillion_rows::layer::Unthrottled;
    use zillion_rows::{LookupReport, RowSource, TableLayout};

    use super::*;
    use crate::scorer::Scorer;

    fn read(json: &str) -> Result<ParityRows, String> {
        ParityRows::from_json(json.as_bytes()).map_err(|e| e.to_string())
    }

    fn file(rows: &str, columns: &str, logits: &str) -> String {
        format!(
            r#"{{"rows": {rows}, "columns": [{columns}], "logits": [{logits}], "computed_with": ""}}"#
        )
    }

    #[test]
    fn rows_without_contents_are_refused() {
        let ints = r#"{"name": "a", "values": [{"int": 1}, {"int": 2}]}"#;
        let said = read(&file("10000000000000", "", "")).unwrap_err();
        assert!(said.contains("10000000000000 rows, but no scores"), "{said}");
        let said = read(&file("10000000000000", "", "[1, 2]")).unwrap_err();
        assert!(said.contains("2 scores of a label"), "{said}");
        let said = read(&file("3", ints, "[1, 2, 3]")).unwrap_err();
        assert!(said.contains("input `a` has 3 lengths and 2 values"), "{said}");
        assert!(read(&file("2", ints, "[1, 2]")).is_ok());
        let most = usize::MAX;
        for lengths in [format!("{most}, 3"), format!("{most}, {most}"), "1".into(), "1, 2".into()]
        {
            let column = format!(
                r#"{{"name": "a", "values": [{{"int": 1}}, "missing"], "lengths": [{lengths}]}}"#
            );
            let said = read(&file("2", &column, "[1, 2]")).unwrap_err();
            assert!(said.contains("which do not fit"), "{lengths}: {said}");
        }
    }

    #[test]
    fn each_row_is_a_request_of_its_own() {
        let columns = r#"{"name": "a", "values": [{"int": 1}, {"int": 2}]},
            {"name": "b", "values": ["missing", {"text": "x"}, {"int": 7}], "lengths": [3, 0]}"#;
        let rows = read(&file("2", columns, "[0.5, 1.5]")).unwrap();
        let mut seen = Vec::new();
        let score = |request: &RawColumns<'_>| {
            seen.push((request["a"].values.len(), request["b"].values.len()));
            Ok(vec![vec![seen.len() as f32 - 0.5]])
        };
        let tasks = ["y".to_owned()];
        rows.replay(VersionId(1), &tasks, DenseType::F32, score, &mut Unthrottled).unwrap();
        assert_eq!(seen, [(1, 3), (1, 0)]);
    }

    #[test]
    fn rounded_scores_may_differ_by_the_tolerance_of_their_type() {
        let columns = r#"{"name": "a", "values": [{"int": 1}, {"int": 2}, {"int": 3}]}"#;
        let wanted = [0.5, -8.0, 0.0f32];
        let rows = read(&file("3", columns, "[0.5, -8.0, 0.0]")).unwrap();
        let tasks = ["click".to_owned()];
        let replay = |dense, change: &dyn Fn(f32) -> f32| {
            let mut row = 0;
            let score = |_: &RawColumns<'_>| {
                row += 1;
                Ok(vec![vec![change(wanted[row - 1])]])
            };
            let replayed = rows.replay(VersionId(7), &tasks, dense, score, &mut Unthrottled);
            replayed.map_err(|e| e.to_string())
        };
        replay(DenseType::Int8, &|x| 1.05 * x + 0.02).unwrap();
        assert!(replay(DenseType::F32, &|x| 1.05 * x + 0.02).is_err());
        // A scale that is wrong by a sixth changes scores by more than the tolerance in the mean.
        let said = replay(DenseType::Int8, &|x| x * 7.0 / 6.0).unwrap_err();
        for part in ["version 7", "int8", "row 1", "`click`", "-9.33", "-8", "f32", "publish"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // A single row far off is refused even if the mean is small.
        let said = replay(DenseType::Int8, &|x| if x == 0.0 { 0.6 } else { x }).unwrap_err();
        assert!(said.contains("row 2"), "{said}");
        assert!(replay(DenseType::Int8, &|_| f32::NAN).is_err());
    }

    /// The number of numeric columns of the model of [`replay_numbers`].
    const NUMBERS: usize = 40;

    /// Replays 32 rows of a model with numeric columns, with dense layers in 8-bit integers. The
    /// first column has the magnitude `first`, and no weight. `factor` is the error of the scales
    /// of the first layer.
    fn replay_numbers(first: f32, factor: f32) -> Result<()> {
        let features: Vec<String> =
            (0..NUMBERS).map(|at| format!(r#""x{at}": {{"kind": "numeric"}}"#)).collect();
        let job =
            format!(r#"{{"features": {{{}}}, "labels": {{"y": {{}}}}}}"#, features.join(", "));
        let schema = Schema::from_job(&serde_json::from_str(&job).unwrap()).unwrap();
        let numeric = (0..NUMBERS).map(|at| format!("x{at}")).collect();
        let inputs = GraphInputs { numeric, ..GraphInputs::default() };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let x = b.numeric("x", &(0..NUMBERS).collect::<Vec<_>>()).unwrap();
        let hidden = b.linear("hidden", x, 32).unwrap();
        let hidden = b.relu("active", hidden).unwrap();
        let logits = b.linear("last", hidden, 1).unwrap();
        b.output(LOGITS, logits).unwrap();
        let graph = b.finish();
        let mut params = Params::init(&graph.params, 1);
        let weight = params.find("hidden.weight").unwrap();
        params.value_mut(weight)[..32].fill(0.0);
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let mut scorer = Scorer::new(&graph, Settings::default(), workers).unwrap();
        let score = |scorer: &mut Scorer, row: usize| {
            let value = |at: usize| match at {
                0 => first,
                _ => 2.0 * unit_f32(combine(row as u64, at as u64) as u32) - 1.0,
            };
            let numeric = (0..NUMBERS).map(|at| vec![value(at)]).collect();
            let batch = Batch { rows: 1, numeric, ..Batch::empty(&schema) };
            let plan = LookupPlan::build(&batch, &schema, &mut PlanScratch::default());
            let scores = scorer.score(&batch, &plan, &mut NoRows, &params).unwrap();
            scores.outputs.iter().map(|logits| logits.to_vec()).collect::<Vec<_>>()
        };
        let wanted: Vec<f32> = (0..32).map(|row| score(&mut scorer, row)[0][0]).collect();
        let mut broken = params.clone();
        broken.value_mut(weight).iter_mut().for_each(|value| *value *= factor);
        scorer.set_packed(Some(scorer.pack(DenseType::Int8, &broken, &mut || ())));
        let rows = ParityRows { rows: 32, logits: vec![wanted], ..ParityRows::default() };
        let tasks = ["y".to_owned()];
        let mut row = 0;
        let next = |_: &RawColumns<'_>| {
            row += 1;
            Ok(score(&mut scorer, row - 1))
        };
        rows.replay(VersionId(1), &tasks, DenseType::Int8, next, &mut Unthrottled)
    }

    /// A source of a model without tables.
    struct NoRows;

    impl RowSource for NoRows {
        fn tables(&self) -> &[TableLayout] {
            &[]
        }

        fn lookup(
            &mut self,
            _: &LookupPlan,
            _: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            Ok(LookupReport::default())
        }
    }

    #[test]
    fn a_version_that_rounding_breaks_is_refused() {
        replay_numbers(1.0, 1.0).unwrap();
        // The scales of a layer are wrong.
        assert!(matches!(replay_numbers(1.0, 1.5), Err(Error::Rounding { .. })));
        assert!(matches!(replay_numbers(1.0, f32::NAN), Err(Error::Rounding { .. })));
        // One column is so large that the integers of all others are zero.
        assert!(matches!(replay_numbers(1e6, 1.0), Err(Error::Rounding { .. })));
    }
}
