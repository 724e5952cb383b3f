//! The sums over the rows of a batch beside products of the library, in an order of their own.
//!
//! Where the products of a layer are the library's, the sums of its gradients need not have the
//! processor's order either. One launch then masks the gradient behind relu, adds it up by ranges
//! of rows, and rounds it for the next product.
//!
//! # Invariants
//! The ranges depend on the number of rows of the library's products and on the batch, and not on
//! the capacity.

use zillion_device::gpu::Element;
use zillion_device::gpu::kernels::{
    CLEAR_PADDING, ClearPadding, ColumnSums, Count, RANGE_SUMS, RangeSums, Rows,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::graph::op::{Link, Op, Unary};
use crate::graph::shape::{Dim, NodeId};

impl Binder<'_> {
    /// Returns the number of ranges of a sum over rows, or `None` if it has the processor's order:
    /// without the library, and over other rows than those of the batch.
    fn ranges(&self, dim: Dim) -> Option<u32> {
        let block = self.setting.library?.block();
        (dim == Dim::Batch).then(|| RangeSums::ranges(block) as u32)
    }

    /// Adds the launch that masks the gradient behind relu where it lies, and the sums of its
    /// columns. Returns whether it has: the library computes the gradient, the chain is the mask
    /// alone, and the sum of the columns is read.
    pub(crate) fn mask_and_sum(&mut self, id: NodeId, chain: &[Link], x: NodeId) -> Result<bool> {
        let graph = &self.setting.lowered.graph;
        let dim = graph.shape(id).rows;
        let is_summed =
            graph.nodes.iter().zip(&self.setting.lowered.classes).any(|(node, class)| {
                class.is_some() && node.op == Op::SumRows { mean: false } && node.inputs == [id]
            });
        let (Some(ranges), [Link::UnaryGrad(Unary::Relu)], true) =
            (self.ranges(dim), chain, is_summed)
        else {
            return Ok(false);
        };
        let (out, g) = (self.out(id)?, self.rows(x)?);
        let parts = self.values.take(4 * ranges as usize * out.cols as usize);
        let narrow = self.narrow_operand(id, out.cols as usize);
        let sums = RangeSums {
            x: out,
            g,
            masked: out.data,
            narrow: narrow.unwrap_or(0),
            parts,
            rows: self.count(dim),
            ranges,
            kind: ColumnSums::MASKED,
            ..RangeSums::default()
        };
        self.launch(&RANGE_SUMS, sums.geometry(), &sums)?;
        self.operands.sums.insert(id, parts);
        if let Some(address) = narrow {
            // Two numbers of type bf16 take the place of a float.
            let floats = out.cols / 2;
            let x = Rows { data: address, stride: floats, cols: floats };
            let total = self.most(dim) as u32;
            let clear = ClearPadding { x, rows: self.count(dim), total, width: floats };
            self.launch(&CLEAR_PADDING, clear.geometry(), &clear)?;
        }
        Ok(true)
    }

    /// Takes the memory of a value's copy of type bf16, if products read one whose rows have no
    /// columns of zeros.
    fn narrow_operand(&mut self, id: NodeId, cols: usize) -> Option<u64> {
        let library = self.setting.library?;
        let is_fit =
            library.precision.element() == Element::Bf16 && cols.is_multiple_of(library.unit());
        let total = self.most(self.setting.lowered.graph.shape(id).rows);
        is_fit.then(|| self.insert_operand(id, total, cols))
    }

    /// Adds the launches of the sum of each column. Returns whether the sums have an order of their
    /// own.
    pub(crate) fn range_sums(
        &mut self,
        id: NodeId,
        (x, g): (NodeId, Option<Rows>),
        dim: Dim,
    ) -> Result<bool> {
        let Some(ranges) = self.ranges(dim) else { return Ok(false) };
        let (out, rows) = (self.out(id)?, self.rows(x)?);
        let parts = match self.operands.sums.get(&x).filter(|_| g.is_none()) {
            Some(&parts) => parts,
            None => {
                let parts = self.scratch((ranges * rows.cols) as usize);
                let sums = RangeSums {
                    x: rows,
                    g: g.unwrap_or_default(),
                    parts,
                    rows: self.count(dim),
                    ranges,
                    kind: if g.is_some() { ColumnSums::WEIGHTED } else { ColumnSums::PLAIN },
                    ..RangeSums::default()
                };
                self.launch(&RANGE_SUMS, sums.geometry(), &sums)?;
                parts
            }
        };
        let sums = RangeSums {
            x: Rows { data: parts, stride: rows.cols, cols: rows.cols },
            parts: out.data,
            rows: Count::fixed(ranges),
            ranges: 1,
            kind: ColumnSums::PLAIN,
            ..RangeSums::default()
        };
        self.launch(&RANGE_SUMS, sums.geometry(), &sums)?;
        Ok(true)
    }
}
