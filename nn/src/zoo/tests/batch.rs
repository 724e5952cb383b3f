//! A small batch of random rows that owns its values. It has a column of lists and sample weights.

use zillion_feature::{Pooling, random};

use super::inputs;
use crate::inputs::{ColumnView, Inputs, LabelView, OccurrenceView, TableView};
use crate::zoo::ModelInputs;

/// The number of unique rows of the only table.
pub(super) const UNIQUE: usize = 9;

pub(super) struct TestBatch {
    pub(super) model: ModelInputs,
    pub(super) rows: usize,
    pub(super) table: Vec<f32>,
    pub(super) stride: usize,
    pub(super) columns: Vec<TestColumn>,
    occurrence_offsets: Vec<u32>,
    occurrences: Vec<u32>,
    pub(super) numeric: Vec<Vec<f32>>,
    pub(super) labels: Vec<f32>,
    pub(super) weight: Vec<f32>,
}

pub(super) struct TestColumn {
    pub(super) inverse: Vec<u32>,
    pub(super) offsets: Option<Vec<i32>>,
    base: u32,
}

impl TestBatch {
    /// Creates a batch of `rows` rows. Each row has three fields of `dim` floats and `numeric`
    /// numbers. The second field is a list whose rows are averaged. Labels depend on the ids, so
    /// that a model can learn them.
    pub(super) fn new(seed: u64, rows: usize, dim: usize, numeric: usize) -> Self {
        let mut model = inputs(3, dim, numeric);
        model.columns[1].pooling = Pooling::Mean;
        let stride = model.tables[0].stride;
        let mut counter = 0u64;
        let mut draw = || {
            counter += 1;
            (random::combine(seed, counter) >> 32) as u32
        };
        let mut unit = |scale: f32| (random::unit_f32(draw()) * 2.0 - 1.0) * scale;
        let table = (0..UNIQUE * stride).map(|_| unit(0.5)).collect();
        let numeric = (0..numeric).map(|_| (0..rows).map(|_| unit(1.0)).collect()).collect();
        let weight = (0..rows).map(|_| 1.0 + unit(0.5)).collect();
        let mut columns = Vec::new();
        let mut base = 0;
        for column in 0..3 {
            // Each list has 0 to 3 values.
            let lengths: Vec<i32> =
                (0..rows).map(|_| if column == 1 { (draw() % 4) as i32 } else { 1 }).collect();
            let values: i32 = lengths.iter().sum();
            let inverse = (0..values).map(|_| draw() % UNIQUE as u32).collect();
            let ends = lengths.iter().scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            let offsets = (column == 1).then(|| std::iter::once(0).chain(ends).collect());
            columns.push(TestColumn { inverse, offsets, base });
            base += values as u32;
        }
        let all: Vec<u32> = columns.iter().flat_map(|column| column.inverse.clone()).collect();
        let mut occurrence_offsets = vec![0];
        let mut occurrences = Vec::new();
        for row in 0..UNIQUE as u32 {
            occurrences
                .extend((0..).zip(&all).filter(|&(_, &r)| r == row).map(|(at, _): (u32, _)| at));
            occurrence_offsets.push(occurrences.len() as u32);
        }
        let (first, last) = (&columns[0].inverse, &columns[2].inverse);
        let label = |(a, b): (&u32, &u32)| f32::from(u8::from((a + b) % 3 == 0));
        let labels = first.iter().zip(last).map(label).collect();
        Self {
            model,
            rows,
            table,
            stride,
            columns,
            occurrence_offsets,
            occurrences,
            numeric,
            labels,
            weight,
        }
    }

    pub(super) fn view(&self) -> Inputs<'_> {
        Inputs {
            rows: self.rows,
            tables: vec![TableView { values: &self.table, stride: self.stride, unique: UNIQUE }],
            columns: self
                .columns
                .iter()
                .map(|column| ColumnView {
                    table: 0,
                    inverse: &column.inverse,
                    offsets: column.offsets.as_deref(),
                    weights: None,
                    base: column.base,
                })
                .collect(),
            occurrences: vec![OccurrenceView {
                offsets: &self.occurrence_offsets,
                positions: &self.occurrences,
            }],
            numeric: self.numeric.iter().map(Vec::as_slice).collect(),
            labels: vec![LabelView { values: &self.labels, mask: None }],
            weight: Some(&self.weight),
        }
    }
}
