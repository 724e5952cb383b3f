//! The division of a batch into lanes, tiles and blocks, as lists that kernels read.

use zillion_device::matmul::OUTER_BLOCK;

use crate::graph::shape::Dim;
use crate::inputs::Inputs;
use crate::lowered::Lowered;

/// The lanes and tiles of a batch. A lane has the same tiles in each dimension.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// The index of the first tile of each lane, and the number of all tiles.
    pub(crate) lanes: Vec<u32>,
    /// The tiles in the rows of the batch, and in the values of each column whose values have
    /// separate rows.
    pub(crate) parts: Vec<CutPart>,
}

/// The tiles of a batch in one dimension.
#[derive(Clone, Debug)]
pub(crate) struct CutPart {
    /// The dimension whose rows are divided.
    pub(crate) dim: Dim,
    /// The first row of each tile, and the number of all rows. A tile of empty lists has no rows.
    pub(crate) tiles: Vec<u32>,
    /// The first row of each block, and the number of all rows. A block is a part of a tile over
    /// which an outer product is one chain of additions. Each block has rows.
    pub(crate) blocks: Vec<u32>,
    /// The index of the first block of each lane, and the number of all blocks.
    pub(crate) block_lanes: Vec<u32>,
}

impl CutPart {
    fn new(dim: Dim) -> Self {
        let mut part = Self { dim, tiles: vec![], blocks: vec![], block_lanes: vec![] };
        part.clear();
        part
    }

    fn clear(&mut self) {
        for list in [&mut self.tiles, &mut self.blocks, &mut self.block_lanes] {
            list.clear();
            list.push(0);
        }
    }

    /// Appends a tile that ends before the row `end`.
    fn push(&mut self, end: usize) {
        let mut at = self.tiles.last().map_or(0, |&last| last as usize);
        while at < end {
            at = end.min(at + OUTER_BLOCK);
            self.blocks.push(at as u32);
        }
        self.tiles.push(end as u32);
    }

    fn end_lane(&mut self) {
        self.block_lanes.push(self.blocks.len() as u32 - 1);
    }

    /// Returns the division of a constant of `rows` rows, which is one tile of one lane.
    pub(crate) fn of_constant(rows: usize) -> Self {
        let mut part = Self::new(Dim::Const(rows));
        part.push(rows);
        part.end_lane();
        part
    }
}

impl Cut {
    /// Creates the division for the dimensions of a graph. It has no rows yet.
    pub(crate) fn new(lowered: &Lowered) -> Self {
        let values = lowered.value_columns.iter().map(|&column| Dim::Values(column));
        let parts = std::iter::once(Dim::Batch).chain(values).map(CutPart::new).collect();
        Self { lanes: vec![0], parts }
    }

    /// Divides the rows of a batch into lanes and tiles.
    pub(crate) fn set(&mut self, lowered: &Lowered, inputs: &Inputs<'_>) {
        self.parts.iter_mut().for_each(CutPart::clear);
        self.lanes.clear();
        self.lanes.push(0);
        let mut tiles = 0;
        // A device works on a whole batch at once, so that no thread waits for a share.
        let share = lowered.share_rows(inputs.rows, 1);
        for lane in 0..lowered.settings.lanes {
            let rows = lowered.lane_rows(lane, inputs.rows, share);
            let mut first = rows.start;
            while first < rows.end {
                let tile = lowered.tile(inputs, first, rows.end);
                first = tile.end;
                tiles += 1;
                for part in &mut self.parts {
                    part.push(inputs.span(part.dim, &tile).end);
                }
            }
            self.parts.iter_mut().for_each(CutPart::end_lane);
            self.lanes.push(tiles);
        }
    }

    /// Returns the number of all tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.lanes.last().map_or(0, |&tiles| tiles as usize)
    }

    /// Returns the largest number of blocks of a dimension.
    pub(crate) fn blocks(&self) -> usize {
        self.parts.iter().map(|part| part.blocks.len() - 1).max().unwrap_or(0)
    }
}
