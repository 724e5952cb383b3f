//! The launches of sums over the rows of a batch or of a constant, and of losses.
//!
//! Each lane is added up by itself, and then the lanes in their order.

use zillion_device::gpu::kernels::{
    COLUMN_SUMS, COMBINE_LANES, ColumnSums, CombineLanes, Geometry, LOSS_GRAD, LOSS_SUM,
    LOSS_TILES, Loss, MERGE_STATISTICS, MergeStatistics, Rows, SUM_COLUMNS, SumColumns,
    TILE_STATISTICS, TileStatistics,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::graph::op::{Distance, Focal, Op};
use crate::graph::shape::{Dim, NodeId};

impl Binder<'_> {
    /// Adds the launch that adds up the sums of the lanes.
    pub(crate) fn combine(
        &mut self,
        id: NodeId,
        parts: u64,
        size: usize,
        dim: Dim,
        mean: bool,
    ) -> Result<()> {
        let combine = CombineLanes {
            parts,
            out: self.out(id)?.data,
            split: self.tiles(dim),
            size: size as u32,
            mean: mean.into(),
        };
        self.launch(&COMBINE_LANES, Geometry::elements(size as u64), &combine)
    }

    /// Adds the launches of a sum of columns. `width` is the number of sums of a column.
    fn column_sums(
        &mut self,
        id: NodeId,
        sums: ColumnSums,
        dim: Dim,
        width: usize,
        mean: bool,
    ) -> Result<()> {
        let split = self.tiles(dim);
        let size = sums.x.cols as usize * width;
        let parts = self.scratch(size * split.lane_count as usize);
        let sums = ColumnSums { parts, split, ..sums };
        self.launch(&COLUMN_SUMS, sums.geometry(), &sums)?;
        self.combine(id, parts, size, dim, mean)
    }

    /// Adds the launches of the sum or the mean of each column.
    pub(crate) fn sum_rows(&mut self, id: NodeId, x: NodeId, dim: Dim, mean: bool) -> Result<()> {
        if !mean && self.range_sums(id, (x, None), dim)? {
            return Ok(());
        }
        let x = self.rows(x)?;
        let sums = ColumnSums { x, kind: ColumnSums::PLAIN, ..ColumnSums::default() };
        self.column_sums(id, sums, dim, 1, mean)
    }

    /// Adds the launches of the sum of each column, with a weight for each row.
    pub(crate) fn weighted_sum(&mut self, id: NodeId, x: Rows, g: Rows, dim: Dim) -> Result<()> {
        let sums = ColumnSums { x, g, kind: ColumnSums::WEIGHTED, ..ColumnSums::default() };
        self.column_sums(id, sums, dim, 1, false)
    }

    /// Adds the launches of the gradients of a norm's scale and shift. `statistics` are those of
    /// columns or of rows, as `kind` says.
    pub(crate) fn norm_sums(
        &mut self,
        id: NodeId,
        (g, x): (NodeId, NodeId),
        (statistics, kind): (u64, u32),
        eps: f32,
        dim: Dim,
    ) -> Result<()> {
        let (g, x) = (self.rows(g)?, self.rows(x)?);
        let sums = ColumnSums { x, g, statistics, eps, kind, ..ColumnSums::default() };
        self.column_sums(id, sums, dim, 2, false)
    }

    /// Adds the launches of the means and variances of columns.
    pub(crate) fn statistics(&mut self, id: NodeId, x: NodeId, dim: Dim) -> Result<()> {
        let x = self.rows(x)?;
        let split = self.tiles(dim);
        let tiles = self.setting.most.tiles;
        let tiles_out = self.scratch(2 * x.cols as usize * tiles);
        let of_tiles = TileStatistics { x, tiles_out, split };
        self.launch(&TILE_STATISTICS, of_tiles.geometry(tiles as u32), &of_tiles)?;
        let out = self.out(id)?.data;
        let merge = MergeStatistics { tiles_in: tiles_out, out, split, cols: x.cols, unused: 0 };
        self.launch(&MERGE_STATISTICS, Geometry::columns(x.cols), &merge)
    }

    /// Adds the launch of the sum of each row.
    pub(crate) fn sum_columns(&mut self, id: NodeId, x: NodeId) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let out = self.out(id)?;
        let sums = SumColumns {
            x: self.rows(x)?,
            out: out.data,
            rows: self.count(dim),
            out_stride: out.stride,
            unused: 0,
        };
        self.launch(&SUM_COLUMNS, Geometry::half_warps(sums.rows.most), &sums)
    }

    /// Adds the launches of the sum of losses.
    pub(crate) fn loss_sum(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let tiles = self.setting.most.tiles;
        let loss = Loss {
            tile_sums: self.scratch(tiles),
            sum: self.out(id)?.data,
            ..self.loss(op, inputs)?
        };
        self.launch(&LOSS_TILES, Geometry::line(tiles as u32, 256), &loss)?;
        self.launch(&LOSS_SUM, Geometry::line(1, 32), &loss)
    }

    /// Adds the launch of the gradients of losses.
    pub(crate) fn loss_grad(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let loss = Loss {
            g: self.rows(inputs[0])?.data,
            out: self.out(id)?,
            ..self.loss(op, &inputs[1..])?
        };
        self.launch(&LOSS_GRAD, Geometry::elements(u64::from(loss.rows.most)), &loss)
    }

    fn loss(&self, op: &Op, inputs: &[NodeId]) -> Result<Loss> {
        let split = self.tiles(Dim::Batch);
        let mut loss = Loss {
            z: self.rows(inputs[0])?,
            y: self.rows(inputs[1])?,
            w: self.rows(inputs[2])?,
            tiles: split.tiles,
            lanes: split.lanes,
            rows: self.count(Dim::Batch),
            lane_count: split.lane_count,
            ..Loss::default()
        };
        match op {
            Op::FocalSum(focal) | Op::FocalGrad(focal) => {
                let Focal { gamma, positive, negative } = *focal;
                loss = Loss { kind: Loss::FOCAL, gamma, positive, negative, ..loss };
            }
            Op::DistanceSum(distance) | Op::DistanceGrad(distance) => {
                let (kind, gamma) = match *distance {
                    Distance::Squared => (Loss::SQUARED, 0.0),
                    Distance::Huber { delta } => (Loss::HUBER, delta),
                    Distance::Poisson => (Loss::POISSON, 0.0),
                };
                loss = Loss { kind, gamma, ..loss };
            }
            _ => {}
        }
        Ok(loss)
    }
}
