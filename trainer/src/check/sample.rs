//! The sample of a check. Its rows come from several places of the data and are decoded as in
//! training. The sample is kept as counts.

use std::collections::HashMap;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Batch, Buckets, Cursor, FeatureKey, FeatureKind, NumericTransform, Schema};
use zillion_reader::{BatchOrder, DataConfig, Dataset, Frequencies};

use super::label_counts::LabelCount;
use super::report::{DataCheck, FeatureCheck, Findings};
use super::stretches::{NotSpread, Stretches};
use crate::error::Result;
use crate::job::Job;

/// The number of rows in a batch of the sample.
const BATCH: usize = 8192;
/// The absolute value above which untransformed numbers are likely to make a model diverge.
const LARGE: f64 = 100.0;
/// The smallest number of values for which the check warns that all ids are different.
const ENOUGH: u64 = 100;
/// The number of bad rows whose messages the check shows.
const FIRST_REJECTS: usize = 3;

/// The counts of the sample.
#[derive(Default)]
pub(super) struct Sampled {
    pub(super) rows: u64,
    /// The number of bad rows that were left out.
    rejected: u64,
    /// The number of rows of the data that were read for the sample.
    passed: u64,
    /// The number of places from which the rows come.
    places: u64,
    /// Whether the places are spread over all rows of the data.
    is_spread: bool,
    /// The number of occurrences of each key, by table.
    pub(super) keys: Vec<HashMap<FeatureKey, u64>>,
    features: Vec<FeatureCount>,
    labels: Vec<LabelCount>,
}

struct FeatureCount {
    name: String,
    kind: &'static str,
    missing: u64,
    values: u64,
    keys: Option<HashMap<FeatureKey, u64>>,
    is_list: bool,
    min: f64,
    max: f64,
    sum: f64,
}

/// Reads a sample of `rows` rows and reports its problems. `of_rows` is the number of rows of the
/// data, if it is known.
pub(super) fn draw(
    job: &Job,
    train: &Dataset,
    rows: u64,
    of_rows: Option<u64>,
    workers: &Arc<Workers>,
    findings: &mut Findings,
) -> Result<Sampled> {
    let files: Vec<_> = train.paths().map(ToOwned::to_owned).collect();
    // The window is decoded at once.
    let config = DataConfig {
        shuffle_window: zillion_reader::WindowRows::new(BATCH).unwrap_or(job.data.shuffle_window),
        ..job.data.clone()
    };
    let order = BatchOrder { seed: job.seed, shuffle: false, batch_rows: BATCH, drop_last: false };
    let schema = without_statistics(&job.schema);
    let mut sampled = Sampled::new(&schema, &job.schema);
    let dataset = Dataset::open(&config, &files, &schema)?.thinned(&config, job.seed)?;
    let mut stretches = Stretches::choose(&config, train, of_rows, rows);
    let count = stretches.places.len() as u64;
    let mut first_rejects: Vec<String> = Vec::new();
    let mut skipped = 0;
    for (at, place) in (0..).zip(&stretches.places) {
        // The rows of the last stretches make up for stretches that are shorter.
        let limit = (sampled.rows + (rows - sampled.rows).div_ceil(count - at)).min(rows);
        let mut stretch = Stretch { schema: &schema, limit, order, workers };
        match stretch.read(place.open(&config, &dataset, &schema), &mut sampled) {
            // Stretches of rows share the list of their bad rows.
            Ok(rejects) => {
                first_rejects.retain(|known| !rejects.contains(known));
                first_rejects.extend(rejects);
            }
            Err(_) if place.may_begin_in_quotes(&config) => skipped += 1,
            Err(error) => {
                let first = error.to_string();
                report_bad_columns(job, &config, &files, order, rows, workers, findings, &first);
                break;
            }
        }
    }
    if count == 1 && sampled.rows < rows {
        // The sample has all rows of the data.
        stretches.not_spread = None;
    }
    sampled.places = count - skipped;
    sampled.is_spread = stretches.not_spread.is_none();
    first_rejects.truncate(FIRST_REJECTS);
    if let Some(NotSpread { reason, remedy }) = stretches.not_spread {
        findings.note(
            "data.train",
            format!(
                "the sample is the beginning of the data, because {reason}: if the rows are sorted by \
                 time, its shares and numbers of ids are those of the first hours; {remedy}"
            ),
        );
    }
    sampled.judge(job, findings);
    sampled.judge_rejected(job, of_rows, &first_rejects, findings);
    Ok(sampled)
}

/// The reading of one stretch of the sample.
struct Stretch<'a> {
    schema: &'a Schema,
    /// The number of rows that the sample has behind the stretch.
    limit: u64,
    order: BatchOrder,
    workers: &'a Arc<Workers>,
}

impl Stretch<'_> {
    /// Adds the rows of the opened stretch to the sample. Returns the messages of its first bad
    /// rows.
    fn read(
        &mut self,
        opened: Result<(Dataset, Cursor)>,
        sampled: &mut Sampled,
    ) -> Result<Vec<String>> {
        let (dataset, from) = opened?;
        let mut batches = dataset.batches(self.order, from, self.workers.clone())?;
        let (mut passed, mut rejected) = (from.row, 0);
        while sampled.rows < self.limit {
            let Some(item) = batches.next() else {
                passed = batches.rows_read();
                break;
            };
            let (batch, cursor) = item?;
            sampled.add(&batch, self.schema, self.limit);
            rejected += batches.take_rejected().len() as u64;
            passed = cursor.row;
        }
        sampled.rejected += rejected + batches.take_rejected().len() as u64;
        sampled.passed += passed.saturating_sub(from.row);
        Ok(dataset.first_rejects())
    }
}

/// Reports every column that the reader refuses, not only the first.
#[expect(clippy::too_many_arguments, reason = "the second half of one function")]
fn report_bad_columns(
    job: &Job,
    config: &DataConfig,
    files: &[std::path::PathBuf],
    order: BatchOrder,
    rows: u64,
    workers: &Arc<Workers>,
    findings: &mut Findings,
    first: &str,
) {
    let mut found = false;
    for (used_by, part) in super::parts(&without_statistics(&job.schema)) {
        let Ok(dataset) = Dataset::open(config, files, &part) else { continue };
        let Ok(batches) = dataset.batches(order, Cursor::default(), workers.clone()) else {
            continue;
        };
        let mut seen = 0;
        for item in batches {
            match item {
                Ok((batch, _)) => seen += batch.rows as u64,
                Err(error) => {
                    let text = error.to_string();
                    // A row that cannot be split into cells is not the fault of a column.
                    let about = if text == first { "data.train" } else { &used_by };
                    let of_column = matches!(error, zillion_reader::ReaderError::Value { .. });
                    findings.error(if of_column { &used_by } else { about }, text);
                    found = true;
                    break;
                }
            }
            if seen >= rows {
                break;
            }
        }
    }
    if !found {
        findings.error("data.train", first);
    }
}

/// Returns the schema with simple transforms that need no first pass over the data. Numbers are not
/// transformed, and a missing number is NaN. Quantile buckets become two buckets, because the check
/// only counts missing values.
pub(crate) fn without_statistics(schema: &Schema) -> Schema {
    let mut schema = schema.clone();
    for feature in &mut schema.features {
        match &mut feature.kind {
            FeatureKind::Vector { missing, .. } => *missing = Some(f64::NAN),
            FeatureKind::Numeric { transform, missing } => {
                *transform = NumericTransform::Raw;
                *missing = Some(f64::NAN);
            }
            FeatureKind::Bucketized { buckets: buckets @ Buckets::Quantiles(_), .. } => {
                *buckets = Buckets::Boundaries(vec![0.0]);
            }
            _ => {}
        }
    }
    schema
}

impl Sampled {
    fn new(schema: &Schema, own: &Schema) -> Self {
        let feature = |f: &zillion_feature::FeatureSpec| FeatureCount {
            name: f.name.clone(),
            kind: kind_name(&f.kind),
            missing: 0,
            values: 0,
            // The buckets are known without a pass over the data.
            keys: (f.table().is_some() && !matches!(f.kind, FeatureKind::Bucketized { .. }))
                .then(HashMap::new),
            is_list: f.pooling().is_some(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
        };
        let labels = LabelCount::of(&own.labels);
        Self {
            keys: vec![HashMap::new(); schema.tables.len()],
            features: schema.features.iter().map(feature).collect(),
            labels,
            ..Self::default()
        }
    }

    fn add(&mut self, batch: &Batch, schema: &Schema, limit: u64) {
        let rows = (batch.rows as u64).min(limit - self.rows) as usize;
        self.rows += rows as u64;
        let (mut sparse, mut numeric) = (0, 0);
        for (spec, count) in schema.features.iter().zip(&mut self.features) {
            let Some(table) = spec.table() else {
                let columns = &batch.numeric[numeric..numeric + spec.numeric_width()];
                count.vectors(columns, rows);
                numeric += columns.len();
                continue;
            };
            let column = &batch.sparse[sparse];
            sparse += 1;
            let end = match &column.offsets {
                Some(offsets) => {
                    let empty = offsets[..=rows].windows(2).filter(|w| w[0] == w[1]).count();
                    count.missing += empty as u64;
                    offsets[rows] as usize
                }
                None => rows,
            };
            let missing = FeatureKey::missing(&spec.name);
            let keys = &mut self.keys[table.index()];
            for &key in &column.keys[..end] {
                count.missing += u64::from(!count.is_list && key == missing);
                count.values += 1;
                if let Some(own) = &mut count.keys {
                    *keys.entry(key).or_default() += 1;
                    *own.entry(key).or_default() += 1;
                }
            }
        }
        self.labels.iter_mut().for_each(|count| count.add(batch, rows));
    }

    fn judge(&self, job: &Job, findings: &mut Findings) {
        self.labels.iter().for_each(|count| count.judge(findings));
        for (spec, count) in job.schema.features.iter().zip(&self.features) {
            count.judge(&spec.kind, self.rows, findings);
        }
    }

    /// Reports the bad rows, and whether the data has more of them than the job allows.
    fn judge_rejected(
        &self,
        job: &Job,
        rows: Option<u64>,
        first: &[String],
        findings: &mut Findings,
    ) {
        let Self { rejected, passed, .. } = *self;
        if rejected == 0 {
            return;
        }
        let first = first.join("; ");
        let expected = rejected as f64 * rows.unwrap_or(passed).max(passed) as f64 / passed as f64;
        let allowed = job.data.max_bad_rows;
        if expected > allowed as f64 {
            findings.stop(
                "data.max_bad_rows",
                format!(
                    "{rejected} of {passed} rows are bad, which makes about {expected:.0} of all rows, and at most {allowed} may \
                     be left out; clean the data, or raise the limit; the first: {first}"
                ),
            );
        } else {
            findings.note(
                "data.max_bad_rows",
                format!("{rejected} of {passed} rows are bad and left out; the first: {first}"),
            );
        }
    }

    /// Returns the number of rows in an epoch, and whether this number is exact. `rows` is the
    /// number of rows in the data, and `exact` tells whether it is exact.
    pub(super) fn of_data(&self, job: &Job, (rows, exact): (u64, bool)) -> (u64, bool) {
        let drawn = job.data.sample.is_some() || job.data.negatives.is_some();
        if !drawn || self.passed == 0 {
            return (rows, exact);
        }
        let share = (self.rows + self.rejected) as f64 / self.passed as f64;
        ((rows as f64 * share).round() as u64, false)
    }

    pub(super) fn into_check(self, rows: Option<(u64, bool)>) -> DataCheck {
        let sampled = self.rows;
        let feature = |f: FeatureCount| FeatureCheck {
            missing_share: f.missing as f64 / sampled.max(1) as f64,
            distinct: f.keys.as_ref().map(|keys| keys.len() as u64),
            values_per_row: f.is_list.then(|| f.values as f64 / sampled.max(1) as f64),
            numbers: (f.min <= f.max).then(|| [f.min, f.sum / f.values as f64, f.max]),
            name: f.name,
            kind: f.kind,
        };
        DataCheck {
            rows: rows.map(|(n, _)| n),
            rows_are_exact: rows.is_some_and(|(_, exact)| exact),
            sampled,
            rejected: self.rejected,
            places: self.places,
            is_spread: self.is_spread,
            features: self.features.into_iter().map(feature).collect(),
            labels: self.labels.into_iter().map(LabelCount::report).collect(),
        }
    }

    /// Estimates the number of distinct ids of a table in a step of `batch` rows. An id that occurs
    /// `c` times in a sample of `n` rows occurs in the step with the probability `1 - (1 - batch /
    /// n)^c`.
    pub(super) fn keys_of_step(&self, table: usize, batch: usize) -> u64 {
        let part = (batch as f64 / self.rows.max(1) as f64).min(1.0);
        let comes = |&count: &u64| 1.0 - (1.0 - part).powf(count as f64);
        self.keys[table].values().map(comes).sum::<f64>().round() as u64
    }

    /// Returns the frequencies of a table's ids in the sample.
    pub(super) fn frequencies(&self, table: usize) -> Frequencies {
        Frequencies::of(self.keys[table].values().copied())
    }
}

impl FeatureCount {
    /// Counts the numbers of some rows. A vector has several columns, and is missing as a whole.
    fn vectors(&mut self, columns: &[Vec<f32>], rows: usize) {
        for row in 0..rows {
            let numbers = columns.iter().map(|column| column[row]);
            match numbers.clone().next().is_some_and(f32::is_nan) {
                true => self.missing += 1,
                false => numbers.for_each(|x| self.number(x)),
            }
        }
    }

    fn number(&mut self, x: f32) {
        if x.is_nan() {
            self.missing += 1;
            return;
        }
        let x = f64::from(x);
        self.values += 1;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.sum += x;
    }

    fn judge(&self, kind: &FeatureKind, rows: u64, findings: &mut Findings) {
        let about = format!("features.{}", self.name);
        if rows == 0 {
            return;
        }
        if self.missing == rows {
            findings.warning(&about, "no row of the sample has a value; remove the feature");
            return;
        }
        if let FeatureKind::Vector { missing: None, .. } = kind
            && self.missing > 0
        {
            let missing = self.missing;
            findings.error(
                &about,
                format!(
                    "{missing} of {rows} rows have no vector; set `missing = <number>` for the \
                     feature, or clean the data"
                ),
            );
        }
        if let FeatureKind::Numeric { transform, missing } = kind {
            if missing.is_none() && self.missing > 0 {
                findings.error(
                    &about,
                    format!(
                        "{} of {rows} rows have no value; set `missing = <number>` for the feature, or clean the data",
                        self.missing
                    ),
                );
            }
            if self.min == self.max && self.missing == 0 {
                findings.warning(
                    &about,
                    format!("is {} in every row of the sample; remove the feature", self.min),
                );
            }
            let largest = self.min.abs().max(self.max.abs());
            if *transform == NumericTransform::Raw && largest > LARGE {
                findings.warning(
                    &about,
                    format!(
                        "reaches {largest:.0} and enters the model untransformed, which makes training \
                         diverge; set transform = \"log1p\" or \"standardise\""
                    ),
                );
            }
        }
        if let Some(keys) = &self.keys {
            let distinct = keys.len() as u64;
            if distinct == 1 && !self.is_list {
                findings
                    .warning(&about, "is the same in every row of the sample; remove the feature");
            } else if distinct == self.values && self.values >= ENOUGH {
                findings.warning(
                    &about,
                    "has a different id in every row of the sample, so nothing can be learned from it, and its table \
                     grows with every row; remove the feature",
                );
            }
        }
    }
}

fn kind_name(kind: &FeatureKind) -> &'static str {
    match kind {
        FeatureKind::Id { .. } => "id",
        FeatureKind::Ids { .. } => "ids",
        FeatureKind::Numeric { .. } => "numeric",
        FeatureKind::Vector { .. } => "vector",
        FeatureKind::Bucketized { .. } => "bucketized",
        FeatureKind::Sequence { .. } => "sequence",
        FeatureKind::Cross { .. } => "cross",
    }
}
