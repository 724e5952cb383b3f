//! The products of layers, whose factors may have a lower precision than f32.
//!
//! They are the same products on a GPU and on processors. Everything else has exact kernels in
//! every precision.

use super::Lowered;
use crate::graph::shape::{Dim, NodeId};

/// The least number of rows and of columns of the weight of such a product. With fewer, matrix
/// units would mostly multiply zeros.
const LEAST: usize = 8;

impl Lowered {
    /// Returns whether the product of a value with a weight, or with its transpose, is one of a
    /// layer: the rows of the value are those of the batch or of a column's values, and the weight
    /// is large enough.
    pub(crate) fn is_layer_product(&self, x: NodeId, weight: NodeId) -> bool {
        let (rows, weight) = (self.graph.shape(x).rows, self.graph.shape(weight));
        matches!(rows, Dim::Batch | Dim::Values(_))
            && matches!(weight.rows, Dim::Const(rows) if rows >= LEAST)
            && weight.cols >= LEAST
    }

    /// Returns whether the sum of products `xᵀ·g` over the rows of a dimension is the gradient of
    /// the weight of such a product.
    pub(crate) fn is_layer_outer_product(&self, x: NodeId, g: NodeId, dim: Dim) -> bool {
        let (x, g) = (self.graph.shape(x), self.graph.shape(g));
        matches!(dim, Dim::Batch | Dim::Values(_))
            && x.rows == dim
            && g.rows == dim
            && x.cols.min(g.cols) >= LEAST
    }
}
