//! The state while the launches of a graph are made: the places of values, and the list itself.

use bytemuck::NoUninit;
use zillion_device::gpu::kernels::{Count, Geometry, Rows, Split};
use zillion_device::gpu::{Kernel, Product};

use crate::error::{Error, Result};
use crate::gpu::arena::Arena;
use crate::gpu::batch::{BatchPlaces, CutPlaces};
use crate::gpu::fixed::Fixed;
use crate::gpu::library::{LibraryProducts, Operands};
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::values::{ValuePlace, ValuePlan};
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::{Lowered, is_view};

/// A launch whose parameters contain the addresses of a capacity.
#[derive(Clone, Debug)]
pub(crate) struct BoundLaunch {
    pub(crate) kernel: &'static Kernel,
    pub(crate) geometry: Geometry,
    pub(crate) parameters: Vec<u8>,
    /// The node whose value is computed. Errors of the device show its number.
    pub(crate) node: NodeId,
    /// Whether the launch runs beside those that follow.
    pub(crate) beside: bool,
}

/// An operation of a run, with the addresses of a capacity.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// A launch of a kernel.
    Kernel(BoundLaunch),
    /// A product of the library.
    Product(Product),
}

/// Everything that the places and operations of a graph depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) lowered: &'a Lowered,
    pub(crate) fixed: &'a Fixed,
    pub(crate) most: &'a Sizes,
    pub(crate) form: &'a Form,
    pub(crate) batch: &'a BatchPlaces,
    pub(crate) values: &'a ValuePlan,
    /// The numeric columns that are uploaded, in ascending order.
    pub(crate) numeric: &'a [usize],
    /// The largest dynamic shared memory of a block, in bytes.
    pub(crate) shared_bytes: usize,
    /// The settings of the library's products; `None` if all products are exact.
    pub(crate) library: Option<&'a LibraryProducts>,
}

/// The address of a value's first float, and the number of floats from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) stride: usize,
}

/// The addresses at which the regions of the memory of a capacity begin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bases {
    pub(crate) batch: u64,
    pub(crate) values: u64,
    pub(crate) scratch: u64,
    pub(crate) statics: u64,
}

/// The launches of a graph while they are made.
pub(crate) struct Binder<'a> {
    pub(crate) setting: Setting<'a>,
    pub(crate) bases: Bases,
    /// The memory of the buffers of values, and of what lives until the end of a run.
    pub(crate) values: Arena,
    /// The memory that a node uses only while its launches run.
    scratch: Arena,
    /// The largest number of bytes of `scratch` that a node uses.
    pub(crate) scratch_bytes: usize,
    /// The data that launches read and that is the same for all batches.
    pub(crate) statics: Vec<u8>,
    /// The address of each buffer of values.
    buffers: Vec<u64>,
    pub(crate) operations: Vec<Operation>,
    /// The operands of the library's products so far.
    pub(crate) operands: Operands,
    node: NodeId,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(setting: Setting<'a>, bases: Bases) -> Self {
        let mut binder = Self {
            setting,
            bases,
            values: Arena::new(bases.values),
            scratch: Arena::new(bases.scratch),
            scratch_bytes: 0,
            statics: Vec::new(),
            buffers: Vec::new(),
            operations: Vec::new(),
            operands: Operands::default(),
            node: NodeId(0),
        };
        for width in &setting.values.buffers {
            let address = binder.values.take(4 * width.cols * binder.most(width.rows));
            binder.buffers.push(address);
        }
        binder
    }

    /// Begins the launches of a node. The scratch memory of the node before is free again.
    pub(crate) fn begin(&mut self, node: NodeId) {
        self.node = node;
        self.scratch.clear();
    }

    /// Returns the address of memory that is used only by the launches of the current node.
    pub(crate) fn scratch(&mut self, floats: usize) -> u64 {
        let address = self.scratch.take(4 * floats);
        self.scratch_bytes = self.scratch_bytes.max(self.scratch.bytes());
        address
    }

    /// Stores data that launches read, and returns its address.
    pub(crate) fn store<T: NoUninit>(&mut self, values: &[T]) -> u64 {
        let start = self.statics.len().next_multiple_of(16);
        self.statics.resize(start, 0);
        self.statics.extend_from_slice(bytemuck::cast_slice(values));
        self.bases.statics + start as u64
    }

    /// Returns the address of a part of the batch.
    pub(crate) fn batch(&self, offset: usize) -> u64 {
        self.bases.batch + offset as u64
    }

    /// Adds a launch of the current node.
    pub(crate) fn launch<T: NoUninit>(
        &mut self,
        kernel: &'static Kernel,
        geometry: Geometry,
        parameters: &T,
    ) -> Result<()> {
        let bytes = geometry.shared_bytes as usize;
        if bytes > self.setting.shared_bytes {
            let reason = format!(
                "it needs {bytes} bytes of shared memory, and the GPU has {}",
                self.setting.shared_bytes
            );
            return Err(self.refuse(self.node, reason));
        }
        let parameters = bytemuck::bytes_of(parameters).to_vec();
        let (node, beside) = (self.node, false);
        let launch = BoundLaunch { kernel, geometry, parameters, node, beside };
        self.operations.push(Operation::Kernel(launch));
        Ok(())
    }

    /// Lets the last launch run beside those that follow. None of them may write what it reads or
    /// read what it writes.
    pub(crate) fn put_beside(&mut self) {
        if let Some(Operation::Kernel(launch)) = self.operations.last_mut() {
            launch.beside = true;
        }
    }

    /// Returns the error for a node that a GPU cannot compute.
    pub(crate) fn refuse(&self, id: NodeId, reason: String) -> Error {
        let node = self.setting.lowered.graph.node(id);
        Error::NotOnGpu { node: node.name.clone(), op: node.op.name(), reason }
    }

    /// Returns the place of a value.
    ///
    /// # Errors
    /// Returns an error if the value has no place, because no launch computes it.
    pub(crate) fn place(&self, id: NodeId) -> Result<Place> {
        let Setting { lowered, fixed, batch, form, .. } = self.setting;
        let node = lowered.graph.node(id);
        match node.op {
            Op::Param { param } => {
                let address = fixed.address(fixed.params[param.0 as usize]);
                return Ok(Place { address, stride: node.shape.cols });
            }
            Op::Rows { table } => {
                let address = self.batch(batch.tables[table].rows);
                return Ok(Place { address, stride: form.strides[table] });
            }
            // The rows of a collected value are complete, as those of all values are.
            Op::Collect => return self.place(node.inputs[0]),
            Op::Slice { start, .. } if is_view(&lowered.graph, id) => {
                let Place { address, stride } = self.place(node.inputs[0])?;
                return Ok(Place { address: address + 4 * start as u64, stride });
            }
            _ => {}
        }
        if let Some(float) = fixed.constants[id.0 as usize] {
            let address = fixed.results.address() + 4 * float as u64;
            return Ok(Place { address, stride: node.shape.cols });
        }
        match self.setting.values.places[id.0 as usize] {
            Some(ValuePlace { buffer, offset, stride }) => {
                Ok(Place { address: self.buffers[buffer] + 4 * offset as u64, stride })
            }
            None => Err(self.refuse(id, "its value has no memory on the GPU".into())),
        }
    }

    /// Returns the rows of a value for reading. A single row stands for all rows of another
    /// operand.
    pub(crate) fn rows(&self, id: NodeId) -> Result<Rows> {
        let shape = self.setting.lowered.graph.shape(id);
        let Place { address, stride } = self.place(id)?;
        let stride = if shape.rows == Dim::Const(1) { 0 } else { stride as u32 };
        Ok(Rows { data: address, stride, cols: shape.cols as u32 })
    }

    /// Returns the rows of a value for writing.
    pub(crate) fn out(&self, id: NodeId) -> Result<Rows> {
        let Place { address, stride } = self.place(id)?;
        let cols = self.setting.lowered.graph.shape(id).cols as u32;
        Ok(Rows { data: address, stride: stride as u32, cols })
    }

    /// Returns the largest number of rows of a dimension.
    pub(crate) fn most(&self, dim: Dim) -> usize {
        let most = self.setting.most;
        match dim {
            Dim::Batch | Dim::Whole => most.rows,
            Dim::Values(column) => most.values[column],
            Dim::Unique(table) => most.unique[table],
            Dim::Const(rows) => rows,
        }
    }

    /// Returns the number of rows of a dimension, which kernels read from the batch.
    pub(crate) fn count(&self, dim: Dim) -> Count {
        let counts = self.setting.batch.counts;
        let most = self.most(dim) as u32;
        match dim {
            Dim::Batch | Dim::Whole => Count::at(self.batch(counts), most),
            Dim::Values(column) => Count::at(self.batch(counts + 4 * (1 + column)), most),
            Dim::Unique(_) | Dim::Const(_) => Count::fixed(most),
        }
    }

    /// Returns the lanes with the tiles of a dimension.
    pub(crate) fn tiles(&self, dim: Dim) -> Split {
        match (dim, self.cut(dim)) {
            (_, Some(cut)) => self.split(cut.tiles, self.setting.batch.lanes),
            (Dim::Const(rows), None) => self.setting.fixed.split(rows)[0],
            _ => Split::default(),
        }
    }

    /// Returns the lanes with the blocks of a dimension.
    pub(crate) fn blocks(&self, dim: Dim) -> Split {
        match (dim, self.cut(dim)) {
            (_, Some(cut)) => self.split(cut.blocks, cut.block_lanes),
            (Dim::Const(rows), None) => self.setting.fixed.split(rows)[1],
            _ => Split::default(),
        }
    }

    fn cut(&self, dim: Dim) -> Option<CutPlaces> {
        self.setting.batch.cuts.iter().find(|cut| cut.dim == dim).copied()
    }

    fn split(&self, tiles: usize, lanes: usize) -> Split {
        Split {
            tiles: self.batch(tiles),
            lanes: self.batch(lanes),
            lane_count: self.setting.lowered.settings.lanes as u32,
            unused: 0,
        }
    }
}
