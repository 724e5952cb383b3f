//! The matrix products that a library of the GPU computes, in the precisions of its tensor cores.
//!
//! The products of layers over the rows of a batch, or over the values of a column, are the
//! library's. Everything else has the exact kernels, and parameters stay in single precision.
//!
//! # Invariants
//! * A product of the library has a fixed number of rows, that of the largest batch. One over the
//!   values of a column is several products of one shape. So the algorithm and the bits of a
//!   product do not depend on the capacity.
//! * The library reads whole rows and all rows of a block. What lies behind the columns of a value
//!   or behind the rows of the batch is zero wherever it is a term of a sum.
//! * The copies of weights are made in each run. So no product reads an older one.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use zillion_device::gpu::kernels::{
    ASSEMBLE, Assemble, CLEAR_PADDING, COPY_WEIGHTS, ClearPadding, CopyWeights, Count, Geometry,
    PADDED_ROWS, PaddedRows, Rows, WeightCopy,
};
use zillion_device::gpu::{Algorithm, Element, Epilogue, Memory, Precision, Product};

use crate::error::{Error, Result};
use crate::gpu::binder::{Binder, Operation};
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::{Class, is_view};

/// The settings of the products that the library of a GPU computes.
#[derive(Clone, Debug)]
pub struct LibraryProducts {
    /// The arithmetic of the products.
    pub precision: Precision,
    /// The number of rows of a product, which is rounded up to a multiple of 16. A training job
    /// gives the size of its batches, and a larger batch is refused. The number is a part of the
    /// result, because the algorithm of a product depends on its shape.
    pub rows: NonZeroUsize,
    /// The algorithms of an earlier run on the same model of GPU and version of the library, by
    /// [`Product::shape`].
    pub kept: BTreeMap<String, Algorithm>,
}

impl LibraryProducts {
    /// Returns the number of rows of a product. Blocks of so many rows begin at multiples of 256
    /// bytes, so all blocks have one shape.
    pub(super) fn block(&self) -> usize {
        self.rows.get().next_multiple_of(16)
    }

    /// Returns the number of elements of which the inner dimensions of products are multiples.
    pub(super) fn unit(&self) -> usize {
        16 / self.precision.element().bytes()
    }

    /// Checks that products have all rows of a batch.
    pub(super) fn check(&self, rows: usize) -> Result<()> {
        if rows <= self.block() {
            return Ok(());
        }
        let reason = format!(
            "a batch has {rows} rows, and the products of the GPU have {}; make them with the size \
             of the largest batch",
            self.block()
        );
        Err(Error::Setting { name: "rows", reason })
    }
}

/// A matrix that a product of the library reads, in elements of the product's precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    address: u64,
    /// The distance of two rows.
    stride: usize,
    /// The number of columns with those of zeros, a multiple of the library's unit.
    width: usize,
}

/// The order of a weight in an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Straight,
    Turned,
}

/// A weight with the copies that products read.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    straight: Option<Operand>,
    turned: Option<Operand>,
    /// The copies that are still to be made, because a launch computes the weight.
    pending: Option<WeightCopy>,
}

/// The operands of products while the operations of a graph are made.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    weights: BTreeMap<NodeId, Weight>,
    /// The operand of each value of the batch, and whether the rows behind those of the batch are
    /// zero.
    values: BTreeMap<NodeId, (Operand, bool)>,
    /// The sums of the columns of some values over ranges of rows.
    pub(super) sums: BTreeMap<NodeId, u64>,
}

/// The memory into which products of the library write.
#[derive(Clone, Copy, Debug)]
struct Target {
    address: u64,
    stride: usize,
    /// Whether the memory is that of the value, so that nothing is left to copy.
    is_in_place: bool,
}

impl<'a> Binder<'a> {
    fn element(&self) -> Element {
        self.setting.library.map_or(Element::F32, |library| library.precision.element())
    }

    /// Returns the settings of the library if it computes the products of a value with a weight.
    fn library_for_weight(&self, x: NodeId, weight: NodeId) -> Option<&'a LibraryProducts> {
        let fits = self.setting.lowered.is_layer_product(x, weight);
        self.setting.library.filter(|_| fits)
    }

    /// Returns the settings of the library if it computes the sum of products `xᵀ·g` over rows.
    fn library_for_outer(&self, x: NodeId, g: NodeId, dim: Dim) -> Option<&'a LibraryProducts> {
        let fits = self.setting.lowered.is_layer_outer_product(x, g, dim);
        self.setting.library.filter(|_| fits)
    }

    /// Adds the launch that copies the weights whose products are the library's, and plans the
    /// copies of those that are computed later.
    pub(crate) fn copy_weights(&mut self) -> Result<()> {
        if self.setting.library.is_none() {
            return Ok(());
        }
        let lowered = self.setting.lowered;
        let mut orders: BTreeMap<NodeId, [bool; 2]> = BTreeMap::new();
        for (node, class) in lowered.graph.nodes.iter().zip(&lowered.classes) {
            let op = if let Op::Fused(fused) = &node.op { &fused.head } else { &node.op };
            let (Op::Linear | Op::MatMulNt) = op else { continue };
            let &[x, weight, ..] = node.inputs.as_slice() else { continue };
            if *class == Some(Class::RowWise) && self.library_for_weight(x, weight).is_some() {
                orders.entry(weight).or_default()[usize::from(*op == Op::Linear)] = true;
            }
        }
        let mut copies = Vec::new();
        for (id, [straight, turned]) in orders {
            let mut weight = self.plan_copies(id, straight, turned)?;
            if self.is_given(id) {
                copies.extend(weight.pending.take());
            }
            self.operands.weights.insert(id, weight);
        }
        self.launch_copies(copies)
    }

    fn is_given(&self, mut id: NodeId) -> bool {
        let graph = &self.setting.lowered.graph;
        while is_view(graph, id) {
            id = graph.node(id).inputs[0];
        }
        matches!(graph.node(id).op, Op::Param { .. })
    }

    /// Plans the copies of a weight in the orders that products read.
    fn plan_copies(&mut self, id: NodeId, straight: bool, turned: bool) -> Result<Weight> {
        let shape = self.setting.lowered.graph.shape(id);
        let place = self.place(id)?;
        let (rows, cols) = (self.most(shape.rows), shape.cols);
        let unit = self.setting.library.map_or(1, LibraryProducts::unit);
        let (row_end, col_end) = (rows.next_multiple_of(unit), cols.next_multiple_of(unit));
        let is_narrow = self.element() == Element::Bf16;
        let mut weight = Weight::default();
        let mut copy = WeightCopy {
            weight: place.address,
            rows: rows as u32,
            cols: cols as u32,
            ldi: place.stride as u32,
            lds: col_end as u32,
            ldo: row_end as u32,
            col_end: col_end as u32,
            row_end: row_end as u32,
            ..WeightCopy::default()
        };
        if straight {
            let is_fit = !is_narrow
                && col_end == cols
                && place.stride.is_multiple_of(unit)
                && place.address.is_multiple_of(16);
            weight.straight = Some(match is_fit {
                true => Operand { address: place.address, stride: place.stride, width: cols },
                false => self.take_operand(rows, col_end),
            });
            let address = weight.straight.map_or(0, |operand| operand.address);
            match is_narrow {
                true => copy.narrow = address,
                false if !is_fit => copy.straight = address,
                false => {}
            }
        }
        if turned {
            let operand = self.take_operand(cols, row_end);
            weight.turned = Some(operand);
            match is_narrow {
                true => copy.narrow_transposed = operand.address,
                false => copy.transposed = operand.address,
            }
        }
        let written = copy.straight | copy.transposed | copy.narrow | copy.narrow_transposed;
        weight.pending = (written != 0).then_some(copy);
        Ok(weight)
    }

    /// Takes the memory of a copy, which lives until the end of a run.
    fn take_operand(&mut self, rows: usize, width: usize) -> Operand {
        let address = self.values.take(rows * width * self.element().bytes());
        Operand { address, stride: width, width }
    }

    /// Takes the memory of a copy of a value that another launch makes, with the rows behind those
    /// of the batch. Returns the address.
    pub(super) fn insert_operand(&mut self, id: NodeId, total: usize, width: usize) -> u64 {
        let operand = self.take_operand(total, width);
        self.operands.values.insert(id, (operand, true));
        operand.address
    }

    fn launch_copies(&mut self, mut copies: Vec<WeightCopy>) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let launch = CopyWeights::new(&mut copies);
        let launch = CopyWeights { copies: self.store(&copies), ..launch };
        self.launch(&COPY_WEIGHTS, launch.geometry(), &launch)
    }

    /// Returns the operand of a weight, and adds the launch of its copies before their first use.
    fn weight_operand(&mut self, id: NodeId, order: Order) -> Result<Operand> {
        let pending = self.operands.weights.get_mut(&id).and_then(|weight| weight.pending.take());
        self.launch_copies(pending.into_iter().collect())?;
        let weight = self.operands.weights.get(&id).copied().unwrap_or_default();
        let found = match order {
            Order::Straight => weight.straight,
            Order::Turned => weight.turned,
        };
        found.ok_or_else(|| self.refuse(id, "the copy of its weight is missing".into()))
    }

    /// Returns the operand of a value of the batch, and adds the launch that prepares it before
    /// its first use. With `all_rows`, the rows behind those of the batch are terms of the product.
    fn value_operand(&mut self, id: NodeId, all_rows: bool) -> Result<Operand> {
        // The sum over rows in the backward pass reads nearly every value of the forward pass.
        let all_rows = all_rows || self.setting.lowered.loss.is_some();
        if let Some(&(operand, is_clear)) = self.operands.values.get(&id)
            && (is_clear || !all_rows)
        {
            return Ok(operand);
        }
        let x = self.rows(id)?;
        let dim = self.setting.lowered.graph.shape(id).rows;
        let (rows, total) = (self.count(dim), self.most(dim));
        let cols = x.cols as usize;
        let width = cols.next_multiple_of(self.setting.library.map_or(1, LibraryProducts::unit));
        if self.element() == Element::F32 && self.is_read_in_place(id, x, width) {
            let rows = if all_rows { rows } else { Count::fixed(rows.most) };
            if width > cols || all_rows {
                let clear = ClearPadding { x, rows, total: total as u32, width: width as u32 };
                self.launch(&CLEAR_PADDING, clear.geometry(), &clear)?;
            }
            let operand = Operand { address: x.data, stride: x.stride as usize, width };
            self.operands.values.insert(id, (operand, all_rows));
            return Ok(operand);
        }
        let operand = self.take_operand(total, width);
        let copy = PaddedRows {
            x,
            out: operand.address,
            rows,
            total: total as u32,
            stride: width as u32,
            narrow: (self.element() == Element::Bf16).into(),
            unused: 0,
        };
        self.launch(&PADDED_ROWS, copy.geometry(), &copy)?;
        self.operands.values.insert(id, (operand, true));
        Ok(operand)
    }

    /// Returns whether products can read a value of single precision where it lies. The columns
    /// behind it then belong to no other value.
    fn is_read_in_place(&self, id: NodeId, x: Rows, width: usize) -> bool {
        let values = self.setting.values;
        let cols = x.cols as usize;
        let has_gap = width == cols
            || (!is_view(&self.setting.lowered.graph, id)
                && values.within[id.0 as usize].is_none()
                && values.places[id.0 as usize]
                    .is_some_and(|place| place.offset == 0 && place.stride == width));
        has_gap && x.data.is_multiple_of(16) && x.stride.is_multiple_of(4)
    }

    /// Returns the memory for a result of `rows × cols` floats at `out`. The library writes rows at
    /// multiples of 16 bytes, so others are copied later.
    fn target(&mut self, out: Rows, rows: usize, cols: usize) -> Target {
        if out.data.is_multiple_of(16) && out.stride.is_multiple_of(4) {
            return Target { address: out.data, stride: out.stride as usize, is_in_place: true };
        }
        let stride = cols.next_multiple_of(4);
        Target { address: self.scratch(rows * stride), stride, is_in_place: false }
    }

    /// Copies a result from its target to its value.
    fn end_target(&mut self, target: Target, out: Rows, dim: Dim) -> Result<()> {
        if target.is_in_place {
            return Ok(());
        }
        let x = Rows { data: target.address, stride: target.stride as u32, cols: out.cols };
        self.copy_columns(x, out, dim, 0, false)
    }

    /// Adds the products of a linear layer, with relu if `relu` is true. Returns whether relu was
    /// applied, or `None` if the library does not compute the layer.
    pub(crate) fn library_linear(
        &mut self,
        id: NodeId,
        inputs: &[NodeId],
        relu: bool,
    ) -> Result<Option<bool>> {
        let (x, weight) = (inputs[0], inputs[1]);
        let Some(library) = self.library_for_weight(x, weight) else { return Ok(None) };
        let bias = match inputs.get(2) {
            Some(&bias) => self.rows(bias)?.data,
            None => 0,
        };
        if !bias.is_multiple_of(16) {
            return Ok(None);
        }
        let (a, b) = (self.value_operand(x, false)?, self.weight_operand(weight, Order::Turned)?);
        let relu = relu && bias != 0;
        let epilogue = match (bias, relu) {
            (0, _) => Epilogue::None,
            (_, false) => Epilogue::Bias,
            (_, true) => Epilogue::BiasRelu,
        };
        self.multiply_rows(library, id, (a, b), epilogue, bias)?;
        Ok(Some(relu))
    }

    /// Adds the products with a transposed weight. Returns whether the library computes them.
    pub(crate) fn library_transpose(&mut self, id: NodeId, inputs: &[NodeId]) -> Result<bool> {
        let (g, weight) = (inputs[0], inputs[1]);
        let Some(library) = self.library_for_weight(g, weight) else { return Ok(false) };
        let operands =
            (self.value_operand(g, false)?, self.weight_operand(weight, Order::Straight)?);
        self.multiply_rows(library, id, operands, Epilogue::None, 0)?;
        Ok(true)
    }

    /// Adds the products of the rows of a value, block after block. The rows of `b` are the columns
    /// of the result.
    fn multiply_rows(
        &mut self,
        library: &LibraryProducts,
        id: NodeId,
        (a, b): (Operand, Operand),
        epilogue: Epilogue,
        bias: u64,
    ) -> Result<()> {
        let out = self.out(id)?;
        let dim = self.setting.lowered.graph.shape(id).rows;
        let (total, n) = (self.most(dim), out.cols as usize);
        let (rows, target) = (library.block(), self.target(out, total, n));
        for first in (0..total).step_by(rows) {
            let product = Product {
                m: rows,
                n,
                k: a.width,
                transpose_b: true,
                a: self.part(a, first, rows),
                lda: a.stride,
                b: self.part(b, 0, n),
                ldb: b.stride,
                c: target.part(first, rows, n),
                ldc: target.stride,
                epilogue,
                bias: if bias == 0 { Memory::NULL } else { Memory::new(bias, 4 * n) },
                ..empty(library.precision)
            };
            self.operations.push(Operation::Product(product));
        }
        self.end_target(target, out, dim)
    }

    /// Adds the products of `xᵀ·g`, a sum over the rows of the dimension `dim`. Returns whether the
    /// library computes them.
    pub(crate) fn library_outer(
        &mut self,
        id: NodeId,
        x: NodeId,
        g: NodeId,
        dim: Dim,
    ) -> Result<bool> {
        let Some(library) = self.library_for_outer(x, g, dim) else { return Ok(false) };
        let (a, b) = (self.value_operand(x, true)?, self.value_operand(g, true)?);
        let out = self.out(id)?;
        // The result has room for the rows of zeros that the columns of zeros of `x` make.
        let (m, n, total) = (a.width, out.cols as usize, self.most(dim));
        let (rows, target) = (library.block(), self.target(out, m, n));
        // How many blocks there are depends on the capacity. A sum that begins with zero has the
        // same bits with more blocks of zeros, also if it is a zero.
        let is_whole = dim == Dim::Batch;
        if !is_whole {
            let out = Rows { data: target.address, stride: target.stride as u32, cols: out.cols };
            let zeros = Assemble { out, rows: Count::fixed(m as u32), ..Assemble::default() };
            self.launch(&ASSEMBLE, Geometry::elements((m * n) as u64), &zeros)?;
        }
        for first in (0..total).step_by(rows) {
            let product = Product {
                m,
                n,
                k: rows,
                transpose_a: true,
                a: self.part(a, first, rows),
                lda: a.stride,
                b: self.part(b, first, rows),
                ldb: b.stride,
                c: target.part(0, m, n),
                ldc: target.stride,
                accumulate: !is_whole,
                ..empty(library.precision)
            };
            self.operations.push(Operation::Product(product));
        }
        self.end_target(target, out, Dim::Const(out_rows(self, id)))?;
        Ok(true)
    }

    /// Returns the memory of some rows of an operand.
    fn part(&self, operand: Operand, first: usize, rows: usize) -> Memory {
        let bytes = self.element().bytes();
        let skip = first * operand.stride * bytes;
        let floats = (rows - 1) * operand.stride + operand.width;
        Memory::new(operand.address + skip as u64, floats * bytes)
    }
}

fn out_rows(binder: &Binder<'_>, id: NodeId) -> usize {
    binder.most(binder.setting.lowered.graph.shape(id).rows)
}

impl Target {
    /// Returns the memory of some rows of `cols` floats.
    fn part(self, first: usize, rows: usize, cols: usize) -> Memory {
        let skip = 4 * first * self.stride;
        Memory::new(self.address + skip as u64, 4 * ((rows - 1) * self.stride + cols))
    }
}

/// Returns a product without sizes and operands, whose result is of single precision.
fn empty(precision: Precision) -> Product {
    Product {
        precision,
        output: Element::F32,
        m: 0,
        n: 0,
        k: 0,
        transpose_a: false,
        transpose_b: false,
        a: Memory::NULL,
        lda: 0,
        b: Memory::NULL,
        ldb: 0,
        c: Memory::NULL,
        ldc: 0,
        accumulate: false,
        epilogue: Epilogue::None,
        bias: Memory::NULL,
    }
}
