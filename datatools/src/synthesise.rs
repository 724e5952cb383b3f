//! A generator of synthetic click logs, similar to Criteo's log. Nothing must be downloaded, and
//! the true probability of each click is known.
//!
//! Each row is a pure function of the seed, the number of the row and the size of the log.
//! Therefore any part of the log can be generated separately and repeatedly, with any number of
//! threads. The known probabilities also give the best AUC that a model can reach on average.

mod fields;
mod truth;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder};
use arrow_array::{ArrayRef, Int8Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use zillion_device::{Files, Workers};
use zillion_feature::random::{combine, mix64};
use zillion_reader::Result;

use crate::parquet_files::{properties, write_parquet};
use fields::{IdField, NumericField};
use truth::Truth;

/// The number of categorical fields, `C1` to `C26`.
pub const ID_FIELDS: usize = 26;
/// The number of numeric fields, `I1` to `I13`.
pub const NUMERIC_FIELDS: usize = 13;

/// The number of rows that one task generates.
const BLOCK: u64 = 16_384;

/// A synthetic click log.
#[derive(Clone, Debug)]
pub struct ClickLog {
    seed: u64,
    rows: u64,
    ids: Vec<IdField>,
    numbers: Vec<NumericField>,
    truth: Truth,
}

/// The labels of some rows, and the log odds of the probabilities with which they were drawn.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// The true log odds of a click.
    pub logits: Vec<f32>,
    /// The labels, each 0 or 1.
    pub labels: Vec<f32>,
}

/// The raw values of one row. A missing value is `None`.
#[derive(Clone, Debug, Default)]
struct Row {
    /// The frequency rank of each id. The most frequent id of a field has rank 0.
    ranks: [Option<u32>; ID_FIELDS],
    numbers: [Option<f32>; NUMERIC_FIELDS],
}

impl ClickLog {
    /// Returns a log of `rows` rows. In a log with fewer rows, large fields also have fewer
    /// distinct ids, because a model could not learn Criteo's 34 million ids from fewer rows than
    /// Criteo's 46 million.
    pub fn new(seed: u64, rows: u64) -> Self {
        let ids = fields::id_fields(rows);
        let numbers = fields::numeric_fields();
        let truth = Truth::plant(seed, &ids);
        let mut log = Self { seed, rows, ids, numbers, truth };
        let sample: Vec<f64> = (0..truth::CALIBRATION_ROWS)
            .map(|at| log.truth.raw_logit(&log.row(combine(seed, !at)), &log.numbers))
            .collect();
        log.truth.calibrate(&sample);
        log
    }

    /// Returns the number of rows of the log.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes the rows in the range `rows` to a Parquet file. Returns their labels, and the log
    /// odds from which the labels were drawn.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(
        &self,
        path: &Path,
        rows: Range<u64>,
        workers: &Workers,
        files: &Files,
    ) -> Result<Drawn> {
        let mut drawn = Drawn::default();
        let mut next = rows.start;
        let schema = schema();
        write_parquet(path, schema.clone(), properties(), files, || {
            let starts: Vec<u64> =
                (next..rows.end).step_by(BLOCK as usize).take(workers.threads()).collect();
            let Some(&last) = starts.last() else { return Ok(Vec::new()) };
            next = rows.end.min(last + BLOCK);
            let mut blocks: Vec<(u64, Option<(RecordBatch, Drawn)>)> =
                starts.into_iter().map(|start| (start, None)).collect();
            workers.for_each_mut(&mut blocks, |_, (start, block)| {
                *block = Some(self.block(&schema, *start..rows.end.min(*start + BLOCK)));
            });
            let mut batches = Vec::with_capacity(blocks.len());
            for (batch, block) in blocks.into_iter().filter_map(|(_, block)| block) {
                drawn.logits.extend(block.logits);
                drawn.labels.extend(block.labels);
                batches.push(batch);
            }
            Ok(batches)
        })?;
        Ok(drawn)
    }

    fn block(&self, schema: &SchemaRef, rows: Range<u64>) -> (RecordBatch, Drawn) {
        let mut drawn = Drawn::default();
        let mut ids: Vec<Int64Builder> = (0..ID_FIELDS).map(|_| Int64Builder::new()).collect();
        let mut numbers: Vec<Float32Builder> =
            (0..NUMERIC_FIELDS).map(|_| Float32Builder::new()).collect();
        for at in rows {
            let stream = combine(self.seed, at);
            let row = self.row(stream);
            let logit = self.truth.logit(&row, &self.numbers);
            let chance = 1.0 / (1.0 + (-logit).exp());
            drawn.logits.push(logit as f32);
            drawn.labels.push(f32::from(u8::from(fields::unit(combine(stream, 999)) < chance)));
            for ((builder, field), rank) in ids.iter_mut().zip(&self.ids).zip(row.ranks) {
                builder.append_option(rank.map(|rank| field.raw(rank)));
            }
            for (builder, x) in numbers.iter_mut().zip(row.numbers) {
                builder.append_option(x);
            }
        }
        let labels = Int8Array::from_iter_values(drawn.labels.iter().map(|&y| y as i8));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(labels)];
        columns.extend(numbers.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        columns.extend(ids.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        let batch = RecordBatch::try_new(schema.clone(), columns)
            .expect("one builder a column of the schema, each filled once a row");
        (batch, drawn)
    }

    /// Generates the raw values of a row from the random numbers of `stream`.
    fn row(&self, stream: u64) -> Row {
        let mut row = Row::default();
        for (at, field) in self.ids.iter().enumerate() {
            row.ranks[at] = field.draw(mix64(stream.wrapping_add(at as u64)));
        }
        for (at, field) in self.numbers.iter().enumerate() {
            row.numbers[at] = field.draw(combine(stream, 100 + at as u64));
        }
        row
    }
}

/// Returns the schema with the columns of Criteo's files: `label`, `I1` to `I13`, and `C1` to
/// `C26`.
fn schema() -> SchemaRef {
    let mut columns = vec![Field::new("label", DataType::Int8, false)];
    columns
        .extend((1..=NUMERIC_FIELDS).map(|i| Field::new(format!("I{i}"), DataType::Float32, true)));
    columns.extend((1..=ID_FIELDS).map(|i| Field::new(format!("C{i}"), DataType::Int64, true)));
    Arc::new(Schema::new(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_depends_on_the_seed_and_its_number_alone() {
        let schema = schema();
        let log = ClickLog::new(3, 5000);
        let (whole, drawn) = log.block(&schema, 0..100);
        let (part, part_drawn) = ClickLog::new(3, 5000).block(&schema, 40..100);
        assert_eq!(whole.slice(40, 60), part);
        assert_eq!(drawn.labels[40..], part_drawn.labels);
        assert_ne!(whole, ClickLog::new(4, 5000).block(&schema, 0..100).0);
    }

    #[test]
    fn about_a_quarter_of_the_rows_are_clicks_and_the_truth_is_calibrated() {
        for rows in [2000, 200_000] {
            let (_, drawn) = ClickLog::new(1, rows).block(&schema(), 0..20_000);
            let rate = drawn.labels.iter().sum::<f32>() / 20_000.0;
            assert!((0.23..0.29).contains(&rate), "{rate}");
            let chance = |&z: &f32| 1.0 / (1.0 + (-z).exp());
            let expected = drawn.logits.iter().map(chance).sum::<f32>() / 20_000.0;
            assert!((rate - expected).abs() < 0.01, "{rate} {expected}");
        }
    }

    #[test]
    fn fields_are_shaped_like_criteo_s() {
        let log = ClickLog::new(1, 200_000);
        let sizes: Vec<usize> = log.ids.iter().map(IdField::cardinality).collect();
        assert_eq!(sizes.len(), ID_FIELDS);
        assert_eq!(sizes.iter().max(), Some(&10_000));
        assert_eq!((sizes[5], sizes[8], sizes[19]), (24, 3, 4));
        let (batch, _) = log.block(&schema(), 0..5000);
        // I1 and C4 are missing in some rows, and C1 in none. The most frequent id of C1 occurs
        // often.
        let nulls = |name: &str| batch.column_by_name(name).map_or(0, |c| c.null_count());
        assert!(nulls("I1") > 1000 && nulls("C4") > 50 && nulls("C1") == 0);
    }
}
