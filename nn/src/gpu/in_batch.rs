//! The launches of the softmax over the items of a batch.
//!
//! The products of all pairs of rows are never in memory together: some rows of the batch are
//! scored against all rows at a time.

use zillion_device::gpu::kernels::{
    Count, IN_BATCH_LSE, IN_BATCH_SHARES, InBatch as Launch, Product, Rows, TRANSPOSE, Transpose,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::graph::op::{InBatch, Op};
use crate::graph::shape::NodeId;

/// The largest number of products that are in memory at a time.
const PAIRS: usize = 1 << 24;

/// The operands of an operation.
struct Operands {
    spec: InBatch,
    /// The rows of which some are scored at a time.
    own: NodeId,
    /// The rows against which they are scored.
    others: NodeId,
    /// The results of the sums and their gradients, for an operation that computes a gradient.
    lse_and_gradient: Option<[NodeId; 2]>,
    correction: Option<NodeId>,
    kind: u32,
}

impl Operands {
    fn new(op: &Op, inputs: &[NodeId]) -> Option<Self> {
        let (spec, own, others, lse_and_gradient, correction, kind) = match (op, inputs) {
            (Op::InBatchLse(spec), &[u, v, ref c @ ..]) => {
                (spec, u, v, None, c, Launch::OF_QUERIES)
            }
            (Op::InBatchQueryGrad(spec), &[g, u, lse, v, ref c @ ..]) => {
                (spec, u, v, Some([lse, g]), c, Launch::OF_QUERIES)
            }
            (Op::InBatchItemGrad(spec), &[v, u, lse, g, ref c @ ..]) => {
                (spec, v, u, Some([lse, g]), c, Launch::OF_ITEMS)
            }
            _ => return None,
        };
        let correction = correction.first().copied();
        Some(Self { spec: *spec, own, others, lse_and_gradient, correction, kind })
    }
}

impl Binder<'_> {
    /// Adds the launches of the logarithm of the sum of exponentials, or of one of its gradients.
    pub(crate) fn in_batch(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let Some(operands) = Operands::new(op, inputs) else {
            return Err(self.refuse(id, "its inputs are not those of the operation".into()));
        };
        let (own, others, out) =
            (self.rows(operands.own)?, self.rows(operands.others)?, self.out(id)?);
        // The rows of the batch are the inner dimension of a product, which no kernel reads from
        // the batch. So the launches are for this number of rows.
        let rows = self.setting.form.exact_rows;
        let stride = rows.next_multiple_of(4) as u32;
        let part = (PAIRS / rows.max(1)).clamp(1, rows.max(1));
        let turned = self.scratch(others.cols as usize * stride as usize);
        let products = self.scratch(part * stride as usize);
        let transpose = Transpose {
            input: others.data,
            out: turned,
            rows: rows as u32,
            cols: others.cols,
            ldi: others.stride,
            ldo: stride,
        };
        self.launch(&TRANSPOSE, transpose.geometry(), &transpose)?;
        let items = self.setting.batch.columns[operands.spec.column];
        let mut all = Launch {
            products: Rows { data: products, stride, cols: rows as u32 },
            items: items.map_or(0, |places| self.batch(places.inverse)),
            correction: operands.correction.map_or(Ok(Rows::default()), |c| self.rows(c))?,
            out: out.data,
            total: Count::fixed(rows as u32),
            out_stride: out.stride,
            by: operands.spec.by,
            kind: operands.kind,
            ..Launch::default()
        };
        if let Some([lse, gradient]) = operands.lse_and_gradient {
            (all.lse, all.g) = (self.rows(lse)?, self.rows(gradient)?);
        }
        for first in (0..rows).step_by(part) {
            let count = part.min(rows - first) as u32;
            let scores = Product {
                a: row_address(own, first),
                b: turned,
                c: products,
                rows: Count::fixed(count),
                n: rows as u32,
                k: own.cols,
                lda: own.stride,
                ldb: stride,
                ldc: stride,
                ..Product::default()
            };
            let (kernel, geometry) = scores.choose();
            self.launch(kernel, geometry, &scores)?;
            let launch = Launch { first_row: first as u32, rows: count, ..all };
            if operands.lse_and_gradient.is_none() {
                self.launch(&IN_BATCH_LSE, launch.sums(), &launch)?;
                continue;
            }
            self.launch(&IN_BATCH_SHARES, launch.shares(), &launch)?;
            let gradient = Product {
                a: products,
                b: others.data,
                c: row_address(out, first),
                rows: Count::fixed(count),
                n: out.cols,
                k: rows as u32,
                lda: stride,
                ldb: others.stride,
                ldc: out.stride,
                ..Product::default()
            };
            let (kernel, geometry) = gradient.choose();
            self.launch(kernel, geometry, &gradient)?;
        }
        Ok(())
    }
}

fn row_address(rows: Rows, row: usize) -> u64 {
    rows.data + 4 * u64::from(rows.stride) * row as u64
}
