//! The launches of matrix products: those of the library where it computes them, and otherwise
//! exact ones.
//!
//! An exact product has the cases of the CPU: with one column of results it is a dot product for
//! each row, because the order of its additions is another one.

use zillion_device::gpu::kernels::{
    Geometry, OUTER_80X80, Outer, Product, ROW_DOT, RowDot, Rows, TRANSPOSE, Transpose,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::gpu::elementwise::binary_link;
use crate::graph::op::Binary;
use crate::graph::shape::{Dim, NodeId};

impl Binder<'_> {
    /// Adds the launch of a linear layer, with relu if `relu` is true. Returns whether relu was
    /// applied.
    pub(crate) fn linear(&mut self, id: NodeId, inputs: &[NodeId], relu: bool) -> Result<bool> {
        if let Some(applied) = self.library_linear(id, inputs, relu)? {
            return Ok(applied);
        }
        let (x, w) = (self.rows(inputs[0])?, self.rows(inputs[1])?);
        let bias = match inputs.get(2) {
            Some(&bias) => self.rows(bias)?.data,
            None => 0,
        };
        let out = self.out(id)?;
        if out.cols == 1 && x.cols > 1 {
            let right = Rows { stride: 0, ..w };
            self.row_dot(id, x, right, Some(bias))?;
            return Ok(false);
        }
        self.product(id, x, w, bias, relu)?;
        Ok(relu)
    }

    /// Adds the launches of a product with a transposed weight. Returns whether the library
    /// computes the product.
    pub(crate) fn product_with_transpose(&mut self, id: NodeId, inputs: &[NodeId]) -> Result<bool> {
        if self.library_transpose(id, inputs)? {
            return Ok(true);
        }
        let (g, w) = (self.rows(inputs[0])?, self.rows(inputs[1])?);
        let (n, k) = (g.cols, self.out(id)?.cols);
        if n == 1 && k > 1 {
            let weight = Rows { data: w.data, stride: 0, cols: k };
            self.chain(id, weight, &[binary_link(Binary::Mul, g)])?;
            return Ok(false);
        }
        let stride = k.next_multiple_of(4);
        let turned = self.scratch((n * stride) as usize);
        let transpose =
            Transpose { input: w.data, out: turned, rows: k, cols: n, ldi: w.stride, ldo: stride };
        self.launch(&TRANSPOSE, transpose.geometry(), &transpose)?;
        self.product(id, g, Rows { data: turned, stride, cols: k }, 0, false)?;
        Ok(false)
    }

    /// Adds the launch of the dot products of two values' rows.
    pub(crate) fn dot_rows(&mut self, id: NodeId, a: NodeId, b: NodeId) -> Result<()> {
        let (a, b) = (self.rows(a)?, self.rows(b)?);
        self.row_dot(id, a, b, None)
    }

    /// Adds the launch of dot products of rows. With `bias`, the float at this address is added, or
    /// zero if the address is 0.
    fn row_dot(&mut self, id: NodeId, x: Rows, w: Rows, bias: Option<u64>) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let out = self.out(id)?;
        let dot = RowDot {
            x: x.data,
            w: w.data,
            bias: bias.unwrap_or(0),
            out: out.data,
            rows: self.count(dim),
            k: x.cols,
            ldx: x.stride,
            ldw: w.stride,
            ldo: out.stride,
            add_bias: bias.is_some().into(),
            unused: 0,
        };
        self.launch(&ROW_DOT, Geometry::half_warps(dot.rows.most), &dot)
    }

    fn product(&mut self, id: NodeId, a: Rows, b: Rows, bias: u64, relu: bool) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let out = self.out(id)?;
        let product = Product {
            a: a.data,
            b: b.data,
            c: out.data,
            bias,
            rows: self.count(dim),
            n: out.cols,
            k: a.cols,
            lda: a.stride,
            ldb: b.stride,
            ldc: out.stride,
            relu: relu.into(),
            ..Product::default()
        };
        let (kernel, geometry) = product.choose();
        self.launch(kernel, geometry, &product)
    }

    /// Adds the launches of `xᵀ·g`, a sum over the rows of the dimension `dim`.
    pub(crate) fn outer(&mut self, id: NodeId, x: NodeId, g: NodeId, dim: Dim) -> Result<()> {
        if self.library_outer(id, x, g, dim)? {
            return Ok(());
        }
        let (of_x, g) = (x, self.rows(g)?);
        let x = self.rows(x)?;
        if g.cols == 1 {
            if self.range_sums(id, (of_x, Some(g)), dim)? {
                return Ok(());
            }
            return self.weighted_sum(id, x, g, dim);
        }
        let split = self.blocks(dim);
        let size = (x.cols * g.cols) as usize;
        let outer = Outer {
            a: x.data,
            b: g.data,
            c: self.scratch(size * split.lane_count as usize),
            tiles: split.tiles,
            lanes: split.lanes,
            m: x.cols,
            n: g.cols,
            lda: x.stride,
            ldb: g.stride,
            lane_count: split.lane_count,
            unused: 0,
        };
        self.launch(&OUTER_80X80, outer.geometry(), &outer)?;
        self.combine(id, outer.c, size, dim, false)
    }
}
