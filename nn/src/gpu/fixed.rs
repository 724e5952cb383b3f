//! The memory of parameters and constants, whose sizes do not depend on the batch.

use zillion_device::gpu::kernels::Split;
use zillion_device::gpu::{Gpu, Memory, Stream};

use crate::error::Result;
use crate::gpu::arena::Arena;
use crate::gpu::cut::CutPart;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::{Class, Lowered, is_view};
use crate::ops;

/// The memory of the parameters, of the constants that a run computes, and of the division of
/// constants whose rows are summed.
#[derive(Debug)]
pub(crate) struct Fixed {
    pub(crate) memory: Memory,
    /// The offset of each parameter in the memory, in bytes.
    pub(crate) params: Vec<usize>,
    /// The number of bytes of the parameters, which come first.
    pub(crate) params_bytes: usize,
    /// The constants that a run computes, which are one range.
    pub(crate) results: Memory,
    /// The index of the first float of each constant in `results`; `None` for other nodes.
    pub(crate) constants: Vec<Option<usize>>,
    /// The divisions of constants: the number of rows, and the offset of the lists.
    cuts: Vec<(usize, [usize; 4])>,
}

impl Fixed {
    /// Allocates the memory, and uploads the divisions of constants.
    pub(crate) fn new(gpu: &dyn Gpu, stream: Stream, lowered: &Lowered) -> Result<Self> {
        let graph = &lowered.graph;
        let mut arena = Arena::new(0);
        let params = graph.params.iter().map(|p| arena.take(4 * p.rows * p.cols) as usize);
        let params: Vec<usize> = params.collect();
        let params_bytes = arena.bytes();
        let start = arena.take(0) as usize;
        let mut floats = 0;
        let mut constants = vec![None; graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let computed =
                matches!(lowered.classes[index], Some(Class::Global | Class::BatchReduce));
            if let (true, false, Some(len)) = (computed, is_view(graph, id), node.shape.const_len())
            {
                constants[index] = Some(floats);
                // A product of the library also writes the rows that make whole units of it.
                let more = match node.op {
                    Op::MatMulTn => node.shape.cols * 7,
                    _ => 0,
                };
                floats = (floats + len + more).next_multiple_of(4);
            }
        }
        arena.take(4 * floats);
        let mut cuts: Vec<(usize, [usize; 4])> = Vec::new();
        let mut lists: Vec<CutPart> = Vec::new();
        for (node, class) in graph.nodes.iter().zip(&lowered.classes) {
            let first = node.inputs.first().map(|&input| graph.shape(input).rows);
            if let (Some(Class::Global), Some(Dim::Const(rows))) = (class, first)
                && ops::sums_rows(&node.op)
                && !cuts.iter().any(|&(known, _)| known == rows)
            {
                let part = CutPart::of_constant(rows);
                let mut take = |list: &[u32]| arena.take(size_of_val(list)) as usize;
                let places =
                    [take(&part.tiles), take(&[0, 1]), take(&part.blocks), take(&part.block_lanes)];
                cuts.push((rows, places));
                lists.push(part);
            }
        }
        let memory = gpu.allocate(arena.bytes().max(1))?;
        let results = memory.part(start, 4 * floats)?;
        let fixed = Self { memory, params, params_bytes, results, constants, cuts };
        for (&(_, places), part) in fixed.cuts.iter().zip(&lists) {
            let lists = [&part.tiles[..], &[0, 1], &part.blocks, &part.block_lanes];
            for (place, list) in places.into_iter().zip(lists) {
                let to = memory.part(place, size_of_val(list))?;
                gpu.upload(stream, to, bytemuck::cast_slice(list))?;
            }
        }
        Ok(fixed)
    }

    /// Returns the address of a byte of the memory.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Returns the division of a constant of `rows` rows into one lane, by tiles and by blocks.
    pub(crate) fn split(&self, rows: usize) -> [Split; 2] {
        let found = self.cuts.iter().find(|&&(known, _)| known == rows);
        let places = found.map_or([0; 4], |&(_, places)| places);
        let [tiles, lanes, blocks, block_lanes] = places.map(|place| self.address(place));
        [(tiles, lanes), (blocks, block_lanes)].map(|(tiles, lanes)| Split {
            tiles,
            lanes,
            lane_count: 1,
            unused: 0,
        })
    }
}
