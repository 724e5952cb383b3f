//! The launches of functions of elements: chains of links, copies of columns, and dropout.

use zillion_device::gpu::kernels::{
    CHAIN, COPY_COLUMNS, Chain, CopyColumns, Count, DROPOUT, Dropout, Function, Geometry,
    Link as KernelLink, Rows,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::graph::op::{Binary, Link, Op, Unary};
use crate::graph::shape::{Dim, NodeId};
use crate::ops::dropout_parameters;

/// The largest number of links of a launch.
const LINKS: usize = 8;

/// The beginning of a chain: the value before the first link, and the links of the operation.
pub(crate) struct Start {
    pub(crate) value: Rows,
    pub(crate) links: Vec<KernelLink>,
}

impl Binder<'_> {
    /// Returns an element-wise operation as the beginning of a chain, or `None` for another
    /// operation.
    pub(crate) fn start_of(&self, op: &Op, inputs: &[NodeId]) -> Result<Option<Start>> {
        let operands = inputs.iter().map(|&id| self.rows(id)).collect::<Result<Vec<Rows>>>()?;
        let none = Rows::default();
        let (value, links) = match (op, operands.as_slice()) {
            (Op::Unary(function), &[x]) => (x, vec![unary(KernelLink::UNARY, *function, none)]),
            (Op::UnaryGrad(function), &[g, x]) => {
                (g, vec![unary(KernelLink::UNARY_GRAD, *function, x)])
            }
            (Op::Binary(function), &[a, b]) => (a, vec![binary(KernelLink::BINARY, *function, b)]),
            (Op::MulAdd, &[a, b, c]) => (a, vec![link(KernelLink::MUL_ADD, b, c)]),
            (Op::AddN, &[first, ref rest @ ..]) => {
                let add = |&term: &Rows| binary(KernelLink::BINARY, Binary::Add, term);
                (first, rest.iter().map(add).collect())
            }
            (Op::BroadcastColumns { .. } | Op::BroadcastRows { mean: false, .. }, &[x]) => {
                (x, vec![])
            }
            (Op::BroadcastRows { mean: true, .. }, &[x]) => {
                (x, vec![link(KernelLink::OVER_ROWS, none, none)])
            }
            _ => return Ok(None),
        };
        Ok(Some(Start { value, links }))
    }

    /// Returns the links of a fused operation with their operands.
    pub(crate) fn links(&self, chain: &[Link], operands: &[NodeId]) -> Result<Vec<KernelLink>> {
        let mut operands = operands.iter().map(|&id| self.rows(id));
        let mut next = || operands.next().unwrap_or_else(|| Ok(Rows::default()));
        let none = Rows::default();
        let mut links = Vec::with_capacity(chain.len());
        for of_chain in chain {
            links.push(match *of_chain {
                Link::Unary(function) => unary(KernelLink::UNARY, function, none),
                Link::UnaryGrad(function) => unary(KernelLink::UNARY_GRAD, function, next()?),
                Link::PointOf(function) => unary(KernelLink::POINT_OF, function, next()?),
                Link::Binary(function) => binary(KernelLink::BINARY, function, next()?),
                Link::BinaryOf(function) => binary(KernelLink::BINARY_OF, function, next()?),
                Link::MulAdd | Link::MulAddOf => link(KernelLink::MUL_ADD, next()?, next()?),
                Link::AddProduct => link(KernelLink::ADD_PRODUCT, next()?, next()?),
            });
        }
        Ok(links)
    }

    /// Adds the launches of a chain that writes the value of a node. `start` may be this value.
    pub(crate) fn chain(&mut self, id: NodeId, start: Rows, links: &[KernelLink]) -> Result<()> {
        let out = self.out(id)?;
        let dim = self.setting.lowered.graph.shape(id).rows;
        let rows = self.count(dim);
        let mut value = start;
        // A chain without a link copies its start.
        let count = links.len().div_ceil(LINKS).max(1);
        for number in 0..count {
            let part = &links[number * LINKS..links.len().min((number + 1) * LINKS)];
            let mut chain = Chain {
                start: value,
                out,
                rows,
                divisor: if dim.is_tiled() { rows } else { Count::fixed(rows.most) },
                links: part.len() as u32,
                ..Chain::default()
            };
            chain.link[..part.len()].copy_from_slice(part);
            self.launch(&CHAIN, chain.geometry(), &chain)?;
            value = out;
        }
        Ok(())
    }

    /// Adds a launch that copies `x` to columns of `out`, from the column `start` on. With `fill`,
    /// the other columns become zero.
    pub(crate) fn copy_columns(
        &mut self,
        x: Rows,
        out: Rows,
        dim: Dim,
        start: usize,
        fill: bool,
    ) -> Result<()> {
        let rows = self.count(dim);
        let copy = CopyColumns { x, out, rows, start: start as u32, fill: fill.into() };
        let cols = if fill { out.cols } else { x.cols };
        let geometry = Geometry::elements(u64::from(rows.most) * u64::from(cols));
        self.launch(&COPY_COLUMNS, geometry, &copy)
    }

    /// Adds the launches of a concatenation, a slice or a padding.
    pub(crate) fn columns(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let out = self.out(id)?;
        match (op, inputs) {
            (Op::Concat, parts) => {
                let mut start = 0;
                for &part in parts {
                    let x = self.rows(part)?;
                    if self.setting.values.within[part.0 as usize] != Some(id) {
                        self.copy_columns(x, out, dim, start, false)?;
                    }
                    start += x.cols as usize;
                }
            }
            (Op::Pad { start, .. }, &[x]) => {
                self.copy_columns(self.rows(x)?, out, dim, *start, true)?;
            }
            (Op::Slice { start, len }, &[x]) => {
                let x = self.rows(x)?;
                let x = Rows { data: x.data + 4 * *start as u64, cols: *len as u32, ..x };
                self.copy_columns(x, out, dim, 0, false)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the launch of dropout.
    pub(crate) fn dropout(&mut self, id: NodeId, rate: f32, salt: u32, x: NodeId) -> Result<()> {
        let (threshold, factor) = dropout_parameters(rate);
        let dim = self.setting.lowered.graph.shape(id).rows;
        let dropout = Dropout {
            x: self.rows(x)?,
            out: self.out(id)?,
            rows: self.count(dim),
            seed: self.batch(self.setting.batch.seed),
            salt,
            threshold,
            factor,
            unused: 0,
        };
        let elements = u64::from(dropout.rows.most) * u64::from(dropout.out.cols);
        self.launch(&DROPOUT, Geometry::elements(elements), &dropout)
    }
}

fn link(kind: u32, x: Rows, y: Rows) -> KernelLink {
    KernelLink { kind, x, y, ..KernelLink::default() }
}

fn unary(kind: u32, function: Unary, x: Rows) -> KernelLink {
    let (function, by) = match function {
        Unary::Relu => (Function::RELU, 0.0),
        Unary::LeakyRelu { slope } => (Function::LEAKY_RELU, slope),
        Unary::Sigmoid => (Function::SIGMOID, 0.0),
        Unary::Tanh => (Function::TANH, 0.0),
        Unary::Gelu => (Function::GELU, 0.0),
        Unary::Silu => (Function::SILU, 0.0),
        Unary::Softplus => (Function::SOFTPLUS, 0.0),
        Unary::Square => (Function::SQUARE, 0.0),
        Unary::Sqrt => (Function::SQRT, 0.0),
        Unary::Exp => (Function::EXP, 0.0),
        Unary::Ln => (Function::LN, 0.0),
        Unary::Scale { by } => (Function::SCALE, by),
        Unary::Offset { by } => (Function::OFFSET, by),
    };
    KernelLink { kind, function, by, x, ..KernelLink::default() }
}

/// Returns the link of a function of the running value and an operand.
pub(crate) fn binary_link(function: Binary, x: Rows) -> KernelLink {
    binary(KernelLink::BINARY, function, x)
}

fn binary(kind: u32, function: Binary, x: Rows) -> KernelLink {
    let function = match function {
        Binary::Add => Function::ADD,
        Binary::Sub => Function::SUB,
        Binary::Mul => Function::MUL,
        Binary::Div => Function::DIV,
        Binary::SafeDiv => Function::SAFE_DIV,
    };
    KernelLink { kind, function, x, ..KernelLink::default() }
}
