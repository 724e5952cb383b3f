//! The lookups of rows against their definition (`nn/src/ops/gather.rs`), by bits.

use super::super::kernels::{
    Count, Factors, GATHER, GATHER_HALVES, GATHER_LISTS, Gather, GatherHalves, GatherJob, Geometry,
    LIST_FACTORS, TableRules,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session, Values};
use super::stored::{nearest, widen};
use super::{Outcome, Size};

/// A table with its unique rows on the host.
struct Table {
    values: Vec<f32>,
    stride: usize,
    slots: Vec<u32>,
}

impl Table {
    fn new(random: &mut Random, rows: usize, stride: usize, unique: usize, kind: Values) -> Self {
        let values = random.floats(rows * stride, kind);
        Self { values, stride, slots: (0..unique).map(|_| random.below(rows) as u32).collect() }
    }

    /// Returns the table with weights of a type of 16 bits, in words and as their values. There is
    /// some state behind the weights of a row.
    fn narrowed(&self, dtype: u32) -> (Self, Vec<u32>, usize) {
        let halves: Vec<u16> = self.values.iter().map(|&x| nearest(dtype, x)).collect();
        let stride = (self.stride.div_ceil(2) + 3).next_multiple_of(4);
        let mut words = Vec::new();
        for row in halves.chunks(self.stride) {
            let end = words.len() + stride;
            let pair =
                |pair: &[u16]| pair.iter().rev().fold(0, |word, &h| word << 16 | u32::from(h));
            words.extend(row.chunks(2).map(pair));
            words.resize(end, f32::NAN.to_bits());
        }
        let values = halves.iter().map(|&half| widen(dtype, half)).collect();
        (Self { values, stride: self.stride, slots: self.slots.clone() }, words, stride)
    }

    fn row(&self, unique: u32) -> &[f32] {
        &self.values[self.slots[unique as usize] as usize * self.stride..][..self.stride]
    }
}

/// One gather on the host.
struct Column {
    inverse: Vec<u32>,
    /// Empty if each row has one value.
    offsets: Vec<u32>,
    /// Empty if all factors are 1.
    factors: Vec<f32>,
    offset: usize,
    dim: usize,
    kind: u32,
    /// The first column of the results in the matrix of all results.
    place: usize,
}

impl Column {
    fn values_of(&self, row: usize) -> std::ops::Range<usize> {
        match self.offsets.get(row..row + 2) {
            Some(ends) => ends[0] as usize..ends[1] as usize,
            None => row..row + 1,
        }
    }

    /// Computes the floats of one row.
    fn compute(&self, table: &Table, row: usize, out: &mut [f32]) {
        let value_at = |value: usize, i: usize| table.row(self.inverse[value])[self.offset + i];
        let factor = |value: usize| self.factors.get(value).copied().unwrap_or(1.0);
        for (i, out) in out[self.place..][..self.dim].iter_mut().enumerate() {
            let values = self.values_of(row);
            *out = match self.kind {
                GatherJob::COPY if self.factors.is_empty() => value_at(row, i),
                GatherJob::COPY => value_at(row, i) * factor(row),
                GatherJob::SUM => {
                    values.fold(0.0, |sum, value| sum + factor(value) * value_at(value, i))
                }
                GatherJob::MAX if values.is_empty() => 0.0,
                GatherJob::MAX => values.fold(f32::NEG_INFINITY, |most, value| {
                    let x = factor(value) * value_at(value, i);
                    if x > most { x } else { most }
                }),
                _ => {
                    let mut best = (f32::NEG_INFINITY, -1.0);
                    for (index, value) in values.enumerate() {
                        let x = factor(value) * value_at(value, i);
                        if x > best.0 {
                            best = (x, index as f32);
                        }
                    }
                    best.1
                }
            };
        }
    }
}

/// Launches all columns of one table and compares the matrix of their results.
fn check_columns(
    session: &mut Session<'_>,
    name: &str,
    table: &Table,
    columns: &[Column],
    rows: usize,
    out_stride: usize,
) -> Result<(), GpuError> {
    let table_at = session.upload(&table.values)?;
    let out = session.poisoned::<f32>(rows * out_stride)?.address();
    let mut jobs = Vec::new();
    for column in columns {
        let offsets = &column.offsets;
        jobs.push(GatherJob {
            inverse: session.upload(&column.inverse)?,
            offsets: if offsets.is_empty() { 0 } else { session.upload(offsets)? },
            factors: if column.factors.is_empty() { 0 } else { session.upload(&column.factors)? },
            out: out + 4 * column.place as u64,
            out_stride: out_stride as u32,
            offset: column.offset as u32,
            dim: column.dim as u32,
            kind: column.kind,
        });
    }
    let units = GatherJob::units(&jobs, table_at, table.stride as u32);
    let results = |table: &Table| {
        let mut results = vec![f32::from_bits(u32::MAX); rows * out_stride];
        for (row, results) in results.chunks_mut(out_stride).enumerate() {
            columns.iter().for_each(|column| column.compute(table, row, results));
        }
        results
    };
    let gather = Gather {
        table: table_at,
        slots: session.upload(&table.slots)?,
        jobs: session.upload(&jobs)?,
        units: session.upload(&units)?,
        rows: Count::at(session.upload(&[rows as u32])?, rows as u32 + 50),
        unit_count: units.len() as u32,
        table_stride: table.stride as u32,
    };
    let copies = columns.iter().all(|column| column.kind == GatherJob::COPY);
    let kernel = if copies { &GATHER } else { &GATHER_LISTS };
    session.launch(kernel, gather.geometry(), &gather)?;
    let got = session.download(out, rows * out_stride)?;
    session.compare(name, &got, &results(table))?;
    for dtype in [TableRules::F16, TableRules::BF16] {
        let (rounded, words, stride) = table.narrowed(dtype);
        let table_at = session.upload(&words)?;
        let units = GatherJob::units(&jobs, table_at, stride as u32);
        let all = Gather {
            table: table_at,
            table_stride: stride as u32,
            units: session.upload(&units)?,
            unit_count: units.len() as u32,
            ..gather
        };
        let parameters = GatherHalves { all, dtype, unused: 0 };
        session.launch(&GATHER_HALVES, parameters.geometry(), &parameters)?;
        let got = session.download(out, rows * out_stride)?;
        session.compare(&format!("{name}, type {dtype}"), &got, &results(&rounded))?;
    }
    session.end_case(name)
}

/// Compares copies: several columns in one launch, aligned and unaligned rows, with factors.
pub(super) fn copies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("gather", gpu)?;
    let mut random = Random(21);
    // Rows of the batch, columns, dimension, rows of the table.
    let shapes: &[(usize, usize, usize, usize)] = match size {
        Size::Small => {
            &[(70, 5, 16, 200), (33, 3, 10, 50), (9, 2, 1, 20), (11, 7, 200, 30), (0, 2, 16, 5)]
        }
        Size::Full => &[
            (8192, 26, 16, 100_000),
            (65_536, 26, 16, 100_000),
            (4000, 26, 128, 50_000),
            (999, 13, 10, 5000),
        ],
    };
    for (case, &(rows, count, dim, table_rows)) in shapes.iter().enumerate() {
        let name = format!("{rows} rows of {count} columns with {dim} floats");
        let stride = if case % 2 == 0 { (dim + 1).next_multiple_of(4) } else { dim + 2 };
        let unique = table_rows.min(rows * count).max(1);
        let table = Table::new(&mut random, table_rows, stride, unique, Values::of_case(case));
        let mut columns = Vec::new();
        for index in 0..count {
            let inverse = (0..rows).map(|_| random.below(unique) as u32).collect();
            let factors = if index % 3 == 2 { random.floats(rows, Values::Plain) } else { vec![] };
            let place = index * dim;
            let kind = GatherJob::COPY;
            columns.push(Column { inverse, offsets: vec![], factors, offset: 0, dim, kind, place });
            if index == 0 {
                // The first-order weight of the column behind all others.
                let inverse = columns[0].inverse.clone();
                let (offsets, factors, place) = (vec![], vec![], count * dim);
                columns.push(Column {
                    inverse,
                    offsets,
                    factors,
                    offset: dim,
                    dim: 1,
                    kind,
                    place,
                });
            }
        }
        let out_stride = (count * dim + 1).next_multiple_of(4);
        check_columns(&mut session, &name, &table, &columns, rows, out_stride)?;
    }
    session.finish()
}

/// Compares poolings of lists, with empty lists, weights and values that are not finite.
pub(super) fn lists(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("gather_lists", gpu)?;
    let mut random = Random(22);
    let shapes: &[(usize, usize, usize)] = match size {
        Size::Small => &[(40, 16, 6), (17, 7, 3), (5, 1, 90)],
        Size::Full => &[(8192, 16, 20), (4096, 64, 50), (1000, 7, 9)],
    };
    for (case, &(rows, dim, most)) in shapes.iter().enumerate() {
        let name = format!("{rows} lists of up to {most} values with {dim} floats");
        let unique = 1 + rows / 2;
        let table = Table::new(
            &mut random,
            2 * unique,
            dim.next_multiple_of(4),
            unique,
            Values::of_case(case * 3),
        );
        let mut offsets = vec![0u32];
        for row in 0..rows {
            let length = if random.once_in(5) { 0 } else { random.below(most + 1) };
            offsets.push(offsets[row] + length as u32);
        }
        let values = offsets[rows] as usize;
        let mut columns = Vec::new();
        for (index, kind) in [GatherJob::SUM, GatherJob::MAX, GatherJob::ARG_MAX, GatherJob::SUM]
            .into_iter()
            .enumerate()
        {
            let inverse: Vec<u32> =
                (0..values.max(rows)).map(|_| random.below(unique) as u32).collect();
            let weighted = index % 2 == 0 || case == 1;
            let factors =
                if weighted { random.floats(inverse.len(), Values::Plain) } else { vec![] };
            // The last one has one value a row.
            let offsets = if index == 3 { vec![] } else { offsets.clone() };
            let place = index * dim;
            columns.push(Column { inverse, offsets, factors, offset: 0, dim, kind, place });
        }
        let out_stride = (4 * dim).next_multiple_of(4);
        check_columns(&mut session, &name, &table, &columns, rows, out_stride)?;
    }
    session.finish()
}

/// Compares the factors of values.
pub(super) fn factors(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("list_factors", gpu)?;
    let mut random = Random(23);
    let rows = if size == Size::Small { 60 } else { 20_000 };
    let mut offsets = vec![0u32];
    for row in 0..rows {
        offsets.push(offsets[row] + random.below(7) as u32);
    }
    let values = offsets[rows] as usize;
    let mut weights = random.floats(values, Values::Plain);
    for weight in weights.iter_mut().step_by(3) {
        *weight = 0.0;
    }
    for (kind, weighted) in [
        (Factors::PLAIN, true),
        (Factors::MEAN, true),
        (Factors::SQRTN, true),
        (Factors::MEAN, false),
        (Factors::SQRTN, false),
    ] {
        let name = format!("kind {kind}, weights: {weighted}");
        let (mut expected, mut row_of) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let values = offsets[row] as usize..offsets[row + 1] as usize;
            let of_row = &weights[values.clone()];
            let count = values.len() as f32;
            let sum = |f: fn(f32) -> f32| {
                if weighted { of_row.iter().map(|&w| f(w)).sum() } else { count }
            };
            let divisor: f32 = match kind {
                Factors::MEAN => sum(|w| w),
                Factors::SQRTN => sum(|w| w * w).sqrt(),
                _ => 1.0,
            };
            let by = if divisor == 0.0 { 0.0 } else { 1.0 / divisor };
            expected.extend(of_row.iter().map(|w| if weighted { w * by } else { by }));
            row_of.extend(values.map(|_| row as u32));
        }
        let out = session.poisoned::<f32>(values)?.address();
        let row_of_at = session.poisoned::<u32>(values)?.address();
        let parameters = Factors {
            offsets: session.upload(&offsets)?,
            weights: if weighted { session.upload(&weights)? } else { 0 },
            out,
            row_of: row_of_at,
            rows: Count::fixed(rows as u32),
            kind,
            unused: 0,
        };
        session.launch(&LIST_FACTORS, Geometry::elements(rows as u64), &parameters)?;
        let got = session.download(out, values)?;
        session.compare(&name, &got, &expected)?;
        let got: Vec<u32> = session.download(row_of_at, values)?;
        session.compare_words(&name, &got, &row_of)?;
        session.end_case(&name)?;
    }
    session.finish()
}
