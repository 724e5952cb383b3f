//! A read-only view of a table of a checkpoint. It gives figures over all rows, the first rows in
//! some order, and the row of one key.
//!
//! Parts are mapped and verified, but not loaded, so a query costs one pass over the mapped files.
//! Training and serving do not use this module.

mod explain;
mod histogram;
mod shrink;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::path::Path;

use serde::Serialize;
use zillion_device::Workers;
use zillion_feature::{FeatureKey, SLOTS, Use};

use crate::error::{Error, Result};
use crate::shape::TableShape;
use zillion_rows::Candidate;
use zillion_rows::part::listed_parts;
use zillion_rows::part::{
    ALL_SLOTS, OpenedTable, PartInfo, RowDigest, RowPart, StoredCandidates, StoredFilter,
    TableParts, check_digest, find_slot, open_tables,
};
use zillion_rows::{TableLayout, TableSpec};

pub use crate::view::explain::{
    AdmissionForecast, EvictionForecast, KeyReport, Outlook, RowReport, SegmentReport,
};
pub use crate::view::histogram::{Histogram, Measure, Range};
pub use crate::view::shrink::{Keep, Shrink, TableSize};

/// The largest number of norms from which quantiles are computed. If a table has more rows, an
/// evenly spaced sample of its rows in key order is used.
const NORMS: usize = 1 << 22;

/// A read-only view of one table of a checkpoint.
#[derive(Debug)]
pub struct TableView {
    shape: TableShape,
    /// The parts of full rows in slot order, and then the parts of narrow rows in slot order.
    parts: Vec<RowPart>,
    /// The number of parts of full rows.
    full: usize,
    candidates: Vec<StoredCandidates>,
    /// The digest of the blocks of the filter.
    filter_digest: RowDigest,
    file_bytes: u64,
}

/// A row of a table of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct RowView<'a> {
    /// The key of the row.
    pub key: FeatureKey,
    /// The weights of all segments, in f32 and without padding. The weights that a narrow row lacks
    /// are zeros.
    pub weights: Cow<'a, [f32]>,
    /// The optimizer state of all segments. A narrow row has only the state of its own floats.
    pub state: &'a [f32],
    /// Whether the row is narrow, which means that it lacks some floats.
    pub is_narrow: bool,
    /// The number of pushes of the row.
    pub count: u32,
    /// The step of the last push.
    pub last_step: u32,
    /// The shows and clicks of the row, decayed to the step of its last push; `None` if the table
    /// does not keep them.
    pub used: Option<Use>,
}

/// A key that waits for its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The number of occurrences that have been counted.
    pub count: u32,
    /// The step in which the key was last seen.
    pub last_step: u32,
}

/// An order of rows by a figure. The row with the largest figure comes first, and rows with equal
/// figures are ordered by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By the number of pushes, and then by the step of the last push.
    Count,
    /// By the L2 norm of the weights.
    Norm,
    /// By the step of the last push, and then by the number of pushes.
    Recent,
}

/// A survey of all rows of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableSurvey {
    /// The name of the table.
    pub table: String,
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of narrow rows.
    pub narrow_rows: u64,
    /// The number of keys that wait to be admitted.
    pub candidates: u64,
    /// The bytes that the weights of all rows take in memory, including padding.
    pub payload_bytes: u64,
    /// The bytes that the optimizer state and the metadata of all rows take in memory.
    pub state_bytes: u64,
    /// The bytes that the index takes in memory at the worst moment of its growth.
    pub index_bytes: u64,
    /// The bytes that the counts of candidates take in memory at the worst moment of their growth.
    pub candidate_bytes: u64,
    /// The bytes of the table's files in the checkpoint. The files of the checkpoints below it are
    /// included.
    pub file_bytes: u64,
    /// A histogram of the rows by their number of pushes.
    pub counts: Vec<Bin>,
    /// A histogram of the rows by the number of steps since their last push.
    pub ages: Vec<Bin>,
    /// A histogram of the candidates by their number of occurrences.
    pub waiting: Vec<Bin>,
    /// The distribution of the L2 norms of the rows; `None` if there are no rows.
    pub norms: Option<Norms>,
    /// The distribution of the rows over the slots.
    pub slots: SlotBalance,
}

/// The number of rows in a range of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The smallest value of the range, a power of two (or 0).
    pub from: u64,
    /// The largest value of the range.
    pub to: u64,
    /// The number of rows in the range.
    pub rows: u64,
}

/// The distribution of the L2 norms of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Norms {
    /// The mean of the norms.
    pub mean: f64,
    /// The smallest norm of a row.
    pub min: f32,
    /// The norm below which a tenth of the rows lie.
    pub p10: f32,
    /// The median of the norms.
    pub p50: f32,
    /// The norm below which nine tenths of the rows lie.
    pub p90: f32,
    /// The norm below which 99 of 100 rows lie.
    pub p99: f32,
    /// The largest norm of a row.
    pub max: f32,
}

/// The distribution of the rows over the slots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SlotBalance {
    /// The number of slots that have rows, out of 4,096.
    pub used: u64,
    /// The number of rows of the emptiest slot.
    pub min: u64,
    /// The mean number of rows of a slot.
    pub mean: f64,
    /// The number of rows of the fullest slot.
    pub max: u64,
}

/// A histogram of values by powers of two. Bin 0 counts the value 0. Bin `i` counts the values from
/// `2^(i-1)` to `2^i - 1`.
#[derive(Debug)]
struct Bins([u64; 34]);

impl Bins {
    fn new() -> Self {
        Self([0; 34])
    }

    fn add(&mut self, value: u32) {
        self.0[(u32::BITS - value.leading_zeros()) as usize] += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, n)| *sum += n);
    }

    fn bins(&self) -> Vec<Bin> {
        let range = |i: usize| if i == 0 { (0, 0) } else { (1u64 << (i - 1), (1u64 << i) - 1) };
        let filled = self.0.iter().enumerate().filter(|(_, rows)| **rows > 0);
        filled.map(|(i, &rows)| Bin { from: range(i).0, to: range(i).1, rows }).collect()
    }
}

/// The figures over the rows of one part, from one pass over the part.
struct Pass {
    counts: Bins,
    ages: Bins,
    norms: Vec<f32>,
    sum: f64,
    min: f32,
    max: f32,
    slots: Vec<u64>,
}

impl TableView {
    /// Opens one table of the checkpoint in `folder`, whose manifest lists `parts`. Compares the
    /// digest of the table too.
    ///
    /// # Errors
    /// Returns [`Error::Part`](crate::Error::Part) if a file cannot be read or is damaged, and
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the checkpoint does not have the table.
    pub fn open(
        workers: &Workers,
        folder: &Path,
        spec: TableSpec,
        parts: &[TableParts],
    ) -> Result<Self> {
        let shape = TableShape::new(spec)?;
        let own: Vec<TableParts> =
            parts.iter().filter(|p| p.table == shape.name()).cloned().collect();
        let listed = listed_parts(&[&shape], &own)?;
        let opened = open_tables(workers, folder, &[shape.row()], &listed, &[ALL_SLOTS])?;
        let Some(opened) = opened.into_iter().next() else {
            return Err(Error::mismatch(shape.name(), "the table was not opened; open it again"));
        };
        check_digest(workers, folder, listed[0], &opened)?;
        let OpenedTable { rows: parts, candidates, filter } = opened;
        let files = listed[0].files().chain(listed[0].files_below());
        let file_bytes = files.map(|p: &PartInfo| p.bytes).sum();
        let full = parts.partition_point(|part| !part.is_narrow());
        let filter_digest = filter.iter().map(StoredFilter::digest).sum();
        Ok(Self { parts, full, candidates, filter_digest, file_bytes, shape })
    }

    /// Returns the layout of the rows.
    pub fn layout(&self) -> &TableLayout {
        &self.shape.layout
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Returns the row of a key, or `None` if the key has no row.
    pub fn get(&self, key: FeatureKey) -> Option<RowView<'_>> {
        self.find(key).map(|(part, row)| self.view(part, row))
    }

    /// Returns the part that has the row of a key and the index of the row in this part, or `None`
    /// if the key has no row.
    fn find(&self, key: FeatureKey) -> Option<(&RowPart, usize)> {
        let (full, narrow) = self.parts.split_at(self.full);
        RowPart::find_among(full, key).or_else(|| RowPart::find_among(narrow, key))
    }

    fn view<'a>(&self, part: &'a RowPart, row: usize) -> RowView<'a> {
        let mut view = view(part, row);
        if part.is_narrow() {
            let mut whole = vec![0.0; self.shape.width];
            self.shape.layout.spread(&view.weights, &mut whole);
            view.weights = Cow::Owned(whole);
        }
        view
    }

    /// Returns the number of narrow rows.
    pub fn narrow_rows(&self) -> u64 {
        self.parts[self.full..].iter().map(|part| part.len() as u64).sum()
    }

    /// Returns the bytes of memory of `rows` rows: first the bytes of the weights, then the bytes
    /// of the state and the metadata. `narrow_rows` of the rows are narrow.
    fn row_bytes(&self, rows: u64, narrow_rows: u64) -> (u64, u64) {
        let bytes = |shape: &TableShape, rows: u64| {
            (rows * shape.spec.weight_bytes() as u64, rows * 4 * shape.companion_stride as u64)
        };
        let full = bytes(&self.shape, rows - narrow_rows);
        let narrow = bytes(self.shape.of_width(true), narrow_rows);
        (full.0 + narrow.0, full.1 + narrow.1)
    }

    /// Returns the count of a key that waits for its row, or `None` if the checkpoint has no count
    /// of the key.
    pub fn waiting(&self, key: FeatureKey) -> Option<Waiting> {
        let part = find_slot(&self.candidates, StoredCandidates::slots, key.slot())?;
        let Candidate { count, last_step } = part.find(key)?;
        Some(Waiting { count, last_step })
    }

    /// Returns the first `n` rows in the given order.
    pub fn top(&self, workers: &Workers, order: Order, n: usize) -> Vec<RowView<'_>> {
        let tops = workers.map(self.parts.len(), |i| {
            let part = &self.parts[i];
            let mut best: Vec<(u64, Reverse<u64>, usize)> = Vec::new();
            for row in 0..part.len() {
                let view = view(part, row);
                best.push((rank(&view, order), Reverse(view.key.0), row));
                if best.len() >= n.saturating_mul(2).max(1024) {
                    first(&mut best, n);
                }
            }
            first(&mut best, n);
            best
        });
        let tops = tops.into_iter().enumerate();
        let mut all: Vec<_> = tops
            .flat_map(|(part, best)| {
                best.into_iter().map(move |(rank, key, row)| (rank, key, (part, row)))
            })
            .collect();
        first(&mut all, n);
        all.into_iter().map(|(_, _, (part, row))| self.view(&self.parts[part], row)).collect()
    }

    /// Returns a survey of all rows. The age of a row is the number of steps from its last push to
    /// `step`.
    pub fn survey(&self, workers: &Workers, step: u64) -> TableSurvey {
        let rows = self.rows();
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        let spacing = (rows as usize).div_ceil(NORMS).max(1);
        let passes = workers.map(self.parts.len(), |i| pass(&self.parts[i], step, spacing));
        let (mut counts, mut ages, mut waiting) = (Bins::new(), Bins::new(), Bins::new());
        for pass in &passes {
            counts.merge(&pass.counts);
            ages.merge(&pass.ages);
        }
        let all = self.candidates.iter().flat_map(|part| part.in_slots(&(0..SLOTS)));
        let mut candidates = 0;
        for (_, candidate) in all {
            candidates += 1;
            waiting.add(candidate.count);
        }
        let (full, narrow) = passes.split_at(self.full);
        let by_slot = |passes: &[Pass]| -> Vec<u64> {
            passes.iter().flat_map(|p| p.slots.iter().copied()).collect()
        };
        let mut slots = by_slot(full);
        slots.iter_mut().zip(by_slot(narrow)).for_each(|(all, narrow)| *all += narrow);
        let spec = &self.shape.spec;
        let narrow_rows = self.narrow_rows();
        let (payload_bytes, state_bytes) = self.row_bytes(rows, narrow_rows);
        TableSurvey {
            table: self.shape.name().to_owned(),
            rows,
            narrow_rows,
            candidates,
            payload_bytes,
            state_bytes,
            index_bytes: spec.index_memory(rows),
            candidate_bytes: spec.candidate_memory(candidates),
            file_bytes: self.file_bytes,
            counts: counts.bins(),
            ages: ages.bins(),
            waiting: waiting.bins(),
            norms: norms(passes, rows),
            slots: SlotBalance {
                used: slots.iter().filter(|&&n| n > 0).count() as u64,
                min: slots.iter().copied().min().unwrap_or(0),
                mean: rows as f64 / SLOTS as f64,
                max: slots.iter().copied().max().unwrap_or(0),
            },
        }
    }
}

impl RowView<'_> {
    /// Returns the L2 norm of the weights.
    pub fn norm(&self) -> f32 {
        norm(&self.weights)
    }
}

/// Returns the L2 norm of some weights.
fn norm(weights: &[f32]) -> f32 {
    weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>().sqrt() as f32
}

/// Returns a row of a part. A narrow row has only the weights that are stored, and its norm is the
/// norm of these weights.
fn view(part: &RowPart, row: usize) -> RowView<'_> {
    let stored = part.stored(row);
    RowView {
        key: part.key(row),
        weights: stored.weights.to_floats(),
        state: stored.state,
        is_narrow: stored.is_narrow,
        count: stored.meta.count,
        last_step: stored.meta.last_step,
        used: part.keeps_uses().then_some(stored.used),
    }
}

/// Returns the rank of a row. The upper 32 bits are the first figure of the order. The lower 32
/// bits are a second figure, which decides between rows with equal first figures.
fn rank(row: &RowView<'_>, order: Order) -> u64 {
    let (high, low) = match order {
        Order::Count => (row.count, row.last_step),
        // A norm is not negative, and the bits of non-negative floats have the order of the
        // numbers.
        Order::Norm => (row.norm().to_bits(), 0),
        Order::Recent => (row.last_step, row.count),
    };
    u64::from(high) << u32::BITS | u64::from(low)
}

/// Keeps only the `n` largest values, and sorts them in descending order.
fn first<T: Ord>(all: &mut Vec<T>, n: usize) {
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.truncate(n);
}

fn pass(part: &RowPart, step: u32, spacing: usize) -> Pass {
    let slots = part.slots();
    let mut pass = Pass {
        counts: Bins::new(),
        ages: Bins::new(),
        norms: Vec::with_capacity(part.len() / spacing + 1),
        sum: 0.0,
        min: f32::INFINITY,
        max: 0.0,
        slots: vec![0; slots.len()],
    };
    for row in 0..part.len() {
        let view = view(part, row);
        let norm = view.norm();
        pass.counts.add(view.count);
        pass.ages.add(step.saturating_sub(view.last_step));
        pass.sum += f64::from(norm);
        pass.min = pass.min.min(norm);
        pass.max = pass.max.max(norm);
        pass.slots[view.key.slot() - slots.start] += 1;
        if row % spacing == 0 {
            pass.norms.push(norm);
        }
    }
    pass
}

fn norms(passes: Vec<Pass>, rows: u64) -> Option<Norms> {
    if rows == 0 {
        return None;
    }
    let sum: f64 = passes.iter().map(|p| p.sum).sum();
    let min = passes.iter().map(|p| p.min).fold(f32::INFINITY, f32::min);
    let max = passes.iter().map(|p| p.max).fold(0.0, f32::max);
    let mut all: Vec<f32> = passes.into_iter().flat_map(|p| p.norms).collect();
    all.sort_unstable_by(f32::total_cmp);
    let quantile = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
    Some(Norms {
        mean: sum / rows as f64,
        min,
        p10: quantile(0.1),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableSet;
    use crate::testing::fixtures::*;
    use zillion_rows::conformance::plan_of;
    use zillion_rows::{Admission, OptimizerSpec};

    #[test]
    fn a_view_says_what_the_table_holds() {
        let workers = workers(2);
        let spec = TableSpec {
            admission: Admission::Count { at_least: 2 },
            ..table("ids", false, vec![segment("v", 3, OptimizerSpec::Sgd { lr: 0.5 }, 0.0)])
        };
        let mut set = TableSet::new(vec![spec.clone()], shards(3)).unwrap();
        // Id i occurs in steps i, i + 1, … 300.
        for step in 1..=300u64 {
            let keys = (1..=step).map(key).collect::<Vec<_>>();
            let plan = plan_of(&[keys]);
            let gradients = gradients(&set, &plan, step);
            set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let (parts, bytes) = checkpoint(&set, &workers, folder.path());
        let view = TableView::open(&workers, folder.path(), spec, &parts).unwrap();
        assert_eq!(view.rows(), 299);
        let survey = view.survey(&workers, 310);
        assert_eq!((survey.rows, survey.candidates), (299, 1));
        assert!(survey.file_bytes > bytes.iter().map(|b| b.len() as u64).sum());
        assert_eq!(survey.ages, [Bin { from: 8, to: 15, rows: 299 }]);
        assert_eq!(survey.waiting, [Bin { from: 1, to: 1, rows: 1 }]);
        // The push before admission is not counted, so that each count is one less than the id's
        // steps.
        let counts: Vec<u64> = survey.counts.iter().map(|bin| bin.rows).collect();
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 64, 128, 44]);
        assert_eq!(survey.slots.min, 0);
        assert!(survey.slots.max >= 1 && survey.slots.used <= 299);

        let top = view.top(&workers, Order::Count, 5);
        let seen: Vec<(u64, u32)> = top.iter().map(|r| (r.key.unmix(), r.count)).collect();
        assert_eq!(seen, [(1, 299), (2, 298), (3, 297), (4, 296), (5, 295)]);
        let all = view.top(&workers, Order::Norm, 1000);
        assert_eq!(all.len(), 299);
        assert!(all.windows(2).all(|pair| pair[0].norm() >= pair[1].norm()));
        let norms = survey.norms.unwrap();
        assert_eq!((norms.max, norms.min), (all[0].norm(), all[298].norm()));
        assert_eq!(norms.p50, all[149].norm());
        assert_eq!(
            view.top(&workers, Order::Recent, 3)[..],
            view.top(&workers, Order::Count, 3)[..]
        );

        assert_eq!(view.get(key(7)).unwrap().count, 293);
        assert_eq!(view.get(key(300)), None);
        assert_eq!(view.waiting(key(300)), Some(Waiting { count: 1, last_step: 300 }));
        assert_eq!(view.waiting(key(7)), None);
        assert_eq!(view.get(key(301)), None);
    }
}
