//! The plan of the gradients of a table's rows: which gradients each float of a row sums.

use zillion_device::gpu::kernels::RowPart;
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

/// The occurrences of the unique rows of a table in the order of their sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occurrences {
    /// The index of the first occurrence of each unique row, and the number of all occurrences.
    pub(crate) starts: Vec<u32>,
    /// The value of its column and, in the lowest bits, the slot of each occurrence.
    pub(crate) list: Vec<u32>,
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
    /// ascending order.
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
        // The numbers of occurrences are counted, and become the first free places of each row.
        let unique = inputs.tables[self.table].unique;
        to.starts.clear();
        to.starts.resize(unique + 1, 0);
        for &column in &self.slots {
            for &row in inputs.columns[column].inverse {
                to.starts[row as usize + 1] += 1;
            }
        }
        for row in 0..unique {
            to.starts[row + 1] += to.starts[row];
        }
        to.list.clear();
        to.list.resize(self.count(inputs), 0);
        for (slot, &column) in self.slots.iter().enumerate() {
            for (value, &row) in inputs.columns[column].inverse.iter().enumerate() {
                let place = &mut to.starts[row as usize];
                to.list[*place as usize] = (value as u32) << bits | slot as u32;
                *place += 1;
            }
        }
        // Each place is now the first one of the next row.
        to.starts.copy_within(0..unique, 1);
        to.starts[0] = 0;
        Ok(())
    }
}

/// Returns whether two lookups read a common float of a row.
fn overlap(a: &Gather, b: &Gather) -> bool {
    a.offset < b.offset + b.dim && b.offset < a.offset + a.dim
}
