//! The list of operations of a graph for a capacity: launches of kernels, and products of the
//! library.

use zillion_device::gpu::kernels::{ASSEMBLE, Assemble, ColumnSums, Geometry};
use zillion_device::gpu::{Memory, Product};

use crate::error::Result;
use crate::gpu::arena::{ALIGNMENT, Arena};
use crate::gpu::binder::{Bases, Binder, Operation, Place, Setting};
use crate::gpu::row_plan::RowPlan;
use crate::graph::op::{Link, Op, Unary};
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::{Class, is_view};

/// The operations of a graph, and the memory that they read and write.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) operations: Vec<Operation>,
    /// The data of the launches, which is uploaded once.
    pub(crate) statics: Vec<u8>,
    /// The memory of the gradients of each planned table.
    pub(crate) row_grads: Vec<Memory>,
    /// The memory of the gradients of every table of a training program. It stays zero for a table
    /// without a plan.
    pub(crate) table_grads: Vec<Memory>,
    /// The memory of each requested result without gaps between rows. `None` for a constant.
    pub(crate) outputs: Vec<Option<Memory>>,
}

impl Bound {
    /// Returns the products of the library, in their order.
    pub(crate) fn products(&self) -> impl Iterator<Item = &Product> {
        self.operations.iter().filter_map(|operation| match operation {
            Operation::Product(product) => Some(product),
            Operation::Kernel(_) => None,
        })
    }
}

/// Makes the operations of a graph for memory that begins at the address 0.
///
/// # Errors
/// Returns an error that names the node that a GPU cannot compute.
pub(crate) fn bind_without_memory(setting: Setting<'_>, plans: &[RowPlan]) -> Result<Bound> {
    bind_with(&mut Binder::new(setting, Bases::default()), plans)
}

/// The regions of the memory of a capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regions {
    /// The number of bytes of all regions.
    pub(crate) bytes: usize,
    bases: Bases,
    pub(crate) statics_bytes: usize,
}

impl Regions {
    /// Measures the memory of a capacity.
    ///
    /// # Errors
    /// Returns an error that names the node that a GPU cannot compute.
    pub(crate) fn measure(setting: Setting<'_>, plans: &[RowPlan]) -> Result<Self> {
        let mut binder = Binder::new(setting, Bases::default());
        let bound = bind_with(&mut binder, plans)?;
        let mut all = Arena::new(0);
        let bases = Bases {
            batch: all.take(setting.batch.bytes),
            values: all.take(binder.values.bytes()),
            scratch: all.take(binder.scratch_bytes),
            statics: all.take(bound.statics.len()),
        };
        // Kernels read whole vectors, which may end behind the last float.
        let bytes = all.bytes() + ALIGNMENT;
        Ok(Self { bytes, bases, statics_bytes: bound.statics.len() })
    }

    /// Returns the regions at an address.
    fn at(&self, address: u64) -> Bases {
        let Bases { batch, values, scratch, statics } = self.bases;
        let [batch, values, scratch, statics] =
            [batch, values, scratch, statics].map(|offset| address + offset);
        Bases { batch, values, scratch, statics }
    }

    /// Returns the memory of the batch.
    pub(crate) fn batch(&self, memory: Memory, bytes: usize) -> Result<Memory> {
        Ok(memory.part(self.bases.batch as usize, bytes)?)
    }

    /// Returns the memory of the launches' data.
    pub(crate) fn statics(&self, memory: Memory) -> Result<Memory> {
        Ok(memory.part(self.bases.statics as usize, self.statics_bytes)?)
    }

    /// Makes the launches of a graph for memory that has the measured number of bytes.
    pub(crate) fn bind(
        &self,
        setting: Setting<'_>,
        plans: &[RowPlan],
        memory: Memory,
    ) -> Result<Bound> {
        let mut binder = Binder::new(setting, self.at(memory.address()));
        bind_with(&mut binder, plans)
    }
}

fn bind_with(binder: &mut Binder<'_>, plans: &[RowPlan]) -> Result<Bound> {
    let lowered = binder.setting.lowered;
    let graph = &lowered.graph;
    let lists = binder.lists(lowered.loss.is_some())?;
    binder.copy_weights()?;
    binder.gathers(&lists)?;
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index as u32);
        let Some(class) = lowered.classes[index] else { continue };
        if is_view(graph, id) {
            continue;
        }
        binder.begin(id);
        match class {
            Class::Given | Class::Collect | Class::Unique => {}
            Class::RowWise => binder.compute(id, &node.op, &node.inputs)?,
            Class::BatchReduce => {
                let dim = lowered.work_rows(id);
                binder.reduce(id, &node.op, &node.inputs, dim)?;
            }
            Class::Global if crate::ops::sums_rows(&node.op) => {
                let dim = graph.shape(node.inputs[0]).rows;
                binder.reduce(id, &node.op, &node.inputs, dim)?;
            }
            Class::Global => binder.compute(id, &node.op, &node.inputs)?,
        }
    }
    let mut row_grads = Vec::new();
    for plan in plans {
        row_grads.push(binder.row_gradients(plan, &lists)?);
    }
    let mut table_grads = Vec::new();
    let tables = if lowered.loss.is_some() { graph.inputs.tables.len() } else { 0 };
    for table in 0..tables {
        table_grads.push(match plans.iter().position(|plan| plan.table == table) {
            Some(index) => row_grads[index],
            None => binder.zero_gradients(table),
        });
    }
    let outputs = lowered.outputs.iter().map(|&id| binder.output(id)).collect::<Result<_>>()?;
    Ok(Bound {
        operations: std::mem::take(&mut binder.operations),
        statics: std::mem::take(&mut binder.statics),
        row_grads,
        table_grads,
        outputs,
    })
}

impl Binder<'_> {
    /// Adds the launches of a node that computes rows.
    fn compute(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let Op::Fused(fused) = op else { return self.compute_head(id, op, inputs, &[], &[]) };
        let (head, operands) = inputs.split_at(fused.head_inputs);
        self.compute_head(id, &fused.head, head, &fused.chain, operands)
    }

    /// Adds the launches of an operation, and then of the links of a chain.
    fn compute_head(
        &mut self,
        id: NodeId,
        op: &Op,
        inputs: &[NodeId],
        chain: &[Link],
        operands: &[NodeId],
    ) -> Result<()> {
        let mut links = self.links(chain, operands)?;
        if let Some(mut start) = self.start_of(op, inputs)? {
            start.links.append(&mut links);
            return self.chain(id, start.value, &start.links);
        }
        let mut applied = 0;
        match *op {
            Op::Numeric { .. } | Op::Label { .. } | Op::Weight { .. } | Op::Fill { .. } => {
                self.assemble(id, op)?;
            }
            // All lookups have been launched before.
            Op::Gather(_) | Op::GatherArgMax(_) => {}
            Op::Linear => {
                let relu = chain.first() == Some(&Link::Unary(Unary::Relu));
                applied = usize::from(self.linear(id, inputs, relu)?);
            }
            Op::MatMulNt => {
                if self.product_with_transpose(id, inputs)?
                    && let Some(&x) = operands.first()
                {
                    applied = usize::from(self.mask_and_sum(id, chain, x)?);
                }
            }
            Op::RowDot => self.dot_rows(id, inputs[0], inputs[1])?,
            Op::SumColumns => self.sum_columns(id, inputs[0])?,
            Op::Concat | Op::Slice { .. } | Op::Pad { .. } => self.columns(id, op, inputs)?,
            Op::Repeat { .. }
            | Op::SegmentSum { .. }
            | Op::SegmentSoftmax { .. }
            | Op::SegmentSoftmaxGrad { .. } => self.segment(id, op, inputs)?,
            Op::SoftmaxColumns
            | Op::SoftmaxColumnsGrad
            | Op::LogSumExpColumns
            | Op::LayerNorm { .. }
            | Op::LayerNormGrad { .. } => self.norm_of_rows(id, op, inputs)?,
            Op::BatchNorm { .. } | Op::BatchNormGrad { .. } | Op::BatchNormFixedGrad { .. } => {
                self.batch_norm(id, op, inputs)?;
            }
            Op::BatchNormRunning { momentum, variance } => {
                self.running(id, (momentum, variance), (inputs[0], inputs[1]))?;
            }
            Op::Dropout { rate, salt } => self.dropout(id, rate, salt, inputs[0])?,
            Op::FmInteraction { .. }
            | Op::FmInteractionGrad { .. }
            | Op::DotInteraction { .. }
            | Op::DotInteractionGrad { .. } => self.interaction(id, op, inputs)?,
            Op::InBatchLse(_) | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_) => {
                self.in_batch(id, op, inputs)?;
            }
            Op::BceGrad | Op::FocalGrad(_) | Op::DistanceGrad(_) => {
                self.loss_grad(id, op, inputs)?;
            }
            _ => return Err(self.refuse(id, "there is no kernel for it".into())),
        }
        if applied < links.len() {
            let value = self.out(id)?;
            self.chain(id, value, &links[applied..])?;
        }
        Ok(())
    }

    /// Adds the launches of a sum over the rows of a dimension.
    fn reduce(&mut self, id: NodeId, op: &Op, inputs: &[NodeId], dim: Dim) -> Result<()> {
        match (op, inputs) {
            (Op::SumRows { mean }, &[x]) => self.sum_rows(id, x, dim, *mean),
            (Op::MatMulTn, &[x, g]) => self.outer(id, x, g, dim),
            (Op::BatchNormStats, &[x]) => self.statistics(id, x, dim),
            (Op::BatchNormReduce { eps }, &[g, x, statistics]) => {
                let statistics = (self.rows(statistics)?.data, ColumnSums::BY_COLUMN);
                self.norm_sums(id, (g, x), statistics, *eps, dim)
            }
            (Op::LayerNormReduce { eps }, &[g, x]) => self.layer_norm_reduce(id, *eps, (g, x), dim),
            (Op::BceSum | Op::FocalSum(_) | Op::DistanceSum(_), [_, _, _]) => {
                self.loss_sum(id, op, inputs)
            }
            _ => Err(self.refuse(id, "there is no kernel for it".into())),
        }
    }

    /// Adds the launch of a node without inputs, which reads the batch.
    fn assemble(&mut self, id: NodeId, op: &Op) -> Result<()> {
        let batch = self.setting.batch;
        let dim = self.setting.lowered.graph.shape(id).rows;
        let place = |at: Option<usize>| at.map_or(0, |at| self.batch(at));
        let mut all = Assemble { out: self.out(id)?, rows: self.count(dim), ..Assemble::default() };
        match op {
            Op::Numeric { columns } => {
                all.values = self.batch(batch.numeric);
                all.value_stride = batch.numeric_stride as u32;
                let uploaded = |column| self.setting.numeric.binary_search(column).unwrap_or(0);
                let columns: Vec<u32> = columns.iter().map(|c| uploaded(c) as u32).collect();
                all.columns = self.store(&columns);
            }
            Op::Label { label } => all.values = place(batch.labels[*label]),
            Op::Weight { label } => {
                let mask = label.and_then(|label| batch.masks.get(label).copied().flatten());
                (all.values, all.mask, all.fill) = (place(batch.weight), place(mask), 1.0);
            }
            Op::Fill { value, .. } => all.fill = *value,
            _ => return Err(self.refuse(id, "it is not an input".into())),
        }
        let elements = u64::from(all.rows.most) * u64::from(all.out.cols);
        self.launch(&ASSEMBLE, Geometry::elements(elements), &all)
    }

    /// Returns the memory of a result whose rows have no gaps. Rows with gaps are copied first.
    fn output(&mut self, id: NodeId) -> Result<Option<Memory>> {
        let shape = self.setting.lowered.graph.shape(id);
        if shape.const_len().is_some() {
            return Ok(None);
        }
        let bytes = 4 * shape.cols * self.most(shape.rows);
        let Place { address, stride } = self.place(id)?;
        if stride == shape.cols {
            return Ok(Some(Memory::new(address, bytes)));
        }
        self.begin(id);
        let (x, to) = (self.out(id)?, self.values.take(bytes));
        let out = zillion_device::gpu::kernels::Rows { data: to, stride: x.cols, cols: x.cols };
        self.copy_columns(x, out, shape.rows, 0, false)?;
        Ok(Some(Memory::new(to, bytes)))
    }
}
