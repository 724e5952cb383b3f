//! The plan of the gradients of a table's rows: which gradients each float of a row sums.

use zillion_device::gpu::kernels::{RowClasses, RowPart};
use zillion_feature::Pooling;

use crate::error::{Error, Result};
use crate::graph::op::{Gather, Op};
use crate::graph::shape::NodeId;
use crate::inputs::Inputs;
use crate::lowered::Lowered;

/// A lookup with the gradient of its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientOf {
    pub(crate) gather: Gather,
    pub(crate) gradient: NodeId,
    /// The positions of the largest values of a max pooling.
    pub(crate) winners: Option<NodeId>,
}

/// The gradients of the rows of one table.
///
/// A row sums its occurrences lookup by lookup. Lookups of one column that read different floats
/// share a *slot*, so that each value of the column occurs once for all of them. A row is divided
/// into parts of floats that the same lookups read.
#[derive(Clone, Debug)]
pub(crate) struct RowPlan {
    pub(crate) table: usize,
    pub(crate) node: NodeId,
    /// The column of each slot.
    pub(crate) slots: Vec<usize>,
    pub(crate) parts: Vec<RowPart>,
    /// The lookup of each slot in each part, part by part. `None` if no lookup of the slot reads
    /// the part.
    pub(crate) sources: Vec<Option<GradientOf>>,
}

/// The occurrences of the unique rows of a table in the order of their sums. Rows with many
/// occurrences come first, because the device gives them more threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occurrences {
    /// The numbers of rows of each class.
    pub(crate) classes: RowClasses,
    /// The unique row at each place.
    pub(crate) rows: Vec<u32>,
    /// The index of the first occurrence of the row at each place, and the number of all
    /// occurrences.
    pub(crate) starts: Vec<u32>,
    /// The value of its column and, in the lowest bits, the slot of each occurrence.
    pub(crate) list: Vec<u32>,
    /// The number of occurrences of each unique row, and then its next free index in `list`.
    next: Vec<u32>,
}

/// The numbers of occurrences above which a row is medium, and above which it is long. They do not
/// change the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    pub(crate) medium: u32,
    pub(crate) long: u32,
}

impl Thresholds {
    /// The smallest thresholds of a batch.
    pub(crate) const LEAST: Self = Self { medium: 8, long: 64 };

    /// Returns the thresholds for a batch. They were the fastest ones of those that were measured
    /// (see `device/src/gpu/rates/rows.rs`).
    pub(crate) fn for_rows(rows: usize) -> Self {
        if rows > 10_000 { Self { medium: 16, long: 256 } } else { Self::LEAST }
    }
}

impl Occurrences {
    /// Orders unique rows by class, and within a class as they come, by their numbers of
    /// occurrences in `next`. Then sets the first index of each row.
    fn order(&mut self, thresholds: Thresholds) {
        let Thresholds { medium, long } = thresholds;
        // The numbers of rows and of occurrences of long and of medium rows.
        let (mut rows, mut occurrences) = ([0u32; 2], [0u32; 2]);
        let mut all = 0;
        for &count in &self.next {
            let is_long = u32::from(count > long);
            let is_medium = u32::from(count > medium) - is_long;
            rows = [rows[0] + is_long, rows[1] + is_medium];
            occurrences = [occurrences[0] + is_long * count, occurrences[1] + is_medium * count];
            all += count;
        }
        let unique = self.next.len();
        let [long_rows, medium_rows] = rows;
        self.classes = RowClasses { unique: unique as u32, long_rows, medium_rows, unused: 0 };
        self.rows.clear();
        self.rows.resize(unique, 0);
        self.starts.clear();
        self.starts.resize(unique + 1, all);
        // The next place and the next index of each class. Most rows are short.
        let mut many = [(0, 0), (long_rows as usize, occurrences[0])];
        let mut short = ((long_rows + medium_rows) as usize, occurrences[0] + occurrences[1]);
        for (row, next) in (0..).zip(&mut self.next) {
            let count = *next;
            let (place, start) = match count {
                count if count <= medium => &mut short,
                _ => &mut many[usize::from(count <= long)],
            };
            self.rows[*place] = row;
            self.starts[*place] = *start;
            *next = *start;
            *place += 1;
            *start += count;
        }
    }
}

impl RowPlan {
    /// Makes the plans of all tables whose rows have a gradient.
    pub(crate) fn all(lowered: &Lowered) -> Vec<Self> {
        let plan = |&(table, node)| {
            let (Op::GatherGrad { gathers, .. }, inputs) =
                (&lowered.graph.node(node).op, &lowered.graph.node(node).inputs)
            else {
                return None;
            };
            Some(Self::new(table, node, gathers, inputs))
        };
        lowered.row_grads.iter().filter_map(plan).collect()
    }

    fn new(table: usize, node: NodeId, gathers: &[Gather], inputs: &[NodeId]) -> Self {
        let mut given = inputs.iter().copied();
        let mut slots: Vec<Vec<GradientOf>> = Vec::new();
        for &gather in gathers {
            let Some(gradient) = given.next() else { break };
            let winners = if gather.pooling == Some(Pooling::Max) { given.next() } else { None };
            let of = GradientOf { gather, gradient, winners };
            let overlaps =
                |slot: &Vec<GradientOf>| slot.iter().any(|other| overlap(&other.gather, &gather));
            // A lookup may join an earlier slot only if no lookup since then reads its floats.
            let found = (0..slots.len()).rev().take_while(|&at| !overlaps(&slots[at]));
            match found.filter(|&at| slots[at][0].gather.column == gather.column).last() {
                Some(at) => slots[at].push(of),
                None => slots.push(vec![of]),
            }
        }
        let mut bounds: Vec<usize> =
            gathers.iter().flat_map(|g| [g.offset, g.offset + g.dim]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut parts = Vec::new();
        let mut sources = Vec::new();
        for range in bounds.windows(2) {
            let reads = |of: &&GradientOf| {
                of.gather.offset <= range[0] && range[1] <= of.gather.offset + of.gather.dim
            };
            let of_part: Vec<Option<GradientOf>> =
                slots.iter().map(|slot| slot.iter().find(reads).copied()).collect();
            if of_part.iter().any(Option::is_some) {
                parts.push(RowPart { begin: range[0] as u32, end: range[1] as u32 });
                sources.extend(of_part);
            }
        }
        let slots = slots.iter().map(|slot| slot[0].gather.column).collect();
        Self { table, node, slots, parts, sources }
    }

    /// Returns the number of low bits of an occurrence that contain its slot.
    pub(crate) fn slot_bits(&self) -> u32 {
        usize::BITS - self.slots.len().leading_zeros()
    }

    /// Returns the number of occurrences of a batch.
    pub(crate) fn count(&self, inputs: &Inputs<'_>) -> usize {
        self.slots.iter().map(|&column| inputs.columns[column].inverse.len()).sum()
    }

    /// Lists the occurrences of each unique row: slot by slot, and the values of a slot in
    /// ascending order. Rows are ordered by their numbers of occurrences.
    ///
    /// # Errors
    /// Returns an error if a column has so many values that an occurrence does not fit in 32 bits.
    pub(crate) fn list(
        &self,
        lowered: &Lowered,
        inputs: &Inputs<'_>,
        to: &mut Occurrences,
    ) -> Result<()> {
        let bits = self.slot_bits();
        let most = u32::MAX as usize >> bits;
        let too_long = |column: &&usize| inputs.columns[**column].inverse.len() > most;
        if let Some(&column) = self.slots.iter().find(too_long) {
            let reason = format!(
                "found {} values, but a GPU takes at most {most} of a column; use a smaller batch",
                inputs.columns[column].inverse.len()
            );
            let input = lowered.graph.inputs.columns[column].name.clone();
            return Err(Error::Input { input, reason });
        }
        to.next.clear();
        to.next.resize(inputs.tables[self.table].unique, 0);
        for &column in &self.slots {
            for &row in inputs.columns[column].inverse {
                to.next[row as usize] += 1;
            }
        }
        to.order(Thresholds::for_rows(inputs.rows));
        to.list.clear();
        to.list.resize(self.count(inputs), 0);
        for (slot, &column) in self.slots.iter().enumerate() {
            for (value, &row) in inputs.columns[column].inverse.iter().enumerate() {
                let place = &mut to.next[row as usize];
                to.list[*place as usize] = (value as u32) << bits | slot as u32;
                *place += 1;
            }
        }
        Ok(())
    }
}

/// Returns whether two lookups read a common float of a row.
fn overlap(a: &Gather, b: &Gather) -> bool {
    a.offset < b.offset + b.dim && b.offset < a.offset + a.dim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_many_occurrences_come_first() {
        let mut all = Occurrences { next: vec![3, 70, 0, 9, 65, 8, 64], ..Occurrences::default() };
        all.order(Thresholds::for_rows(100));
        let RowClasses { unique, long_rows, medium_rows, .. } = all.classes;
        assert_eq!([unique, long_rows, medium_rows], [7, 2, 2]);
        assert_eq!(all.rows, [1, 4, 3, 6, 0, 2, 5]);
        assert_eq!(all.starts, [0, 70, 135, 144, 208, 211, 211, 219]);
        assert_eq!(all.next, [208, 0, 211, 135, 70, 211, 144]);
        all.next = vec![17, 16, 257, 256];
        all.order(Thresholds::for_rows(65_536));
        let RowClasses { long_rows, medium_rows, .. } = all.classes;
        assert_eq!((long_rows, medium_rows, &all.rows[..]), (1, 2, &[2, 0, 3, 1][..]));
        let least = Thresholds::LEAST;
        for rows in [1, 8192, 10_001, 1 << 20] {
            let Thresholds { medium, long } = Thresholds::for_rows(rows);
            assert!(medium >= least.medium && long >= least.long && medium < long);
        }
    }
}
