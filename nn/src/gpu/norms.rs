//! The launches of norms, of softmax, of lists and of interactions.

use zillion_device::gpu::kernels::{
    BATCH_NORM, BATCH_NORM_FACTORS, BATCH_NORM_RUNNING, BatchNorm, ColumnSums, DOT_INTERACTION,
    DOT_INTERACTION_GRAD, FM_INTERACTION, FM_INTERACTION_GRAD, Geometry, Interaction, ROW_NORM,
    RowNorm, Rows, Running, SEGMENT, Segment,
};

use crate::error::Result;
use crate::gpu::binder::Binder;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId};

impl Binder<'_> {
    /// Adds the launches of batch norm or of its gradient.
    pub(crate) fn batch_norm(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let address = |id: NodeId| self.rows(id).map(|rows| rows.data);
        let mut norm = BatchNorm {
            out: self.out(id)?,
            rows: self.count(dim),
            total: self.count(dim),
            ..BatchNorm::default()
        };
        match (op, inputs) {
            (Op::BatchNorm { eps }, &[x, statistics, scale, shift]) => {
                norm.x = self.rows(x)?;
                norm.statistics = address(statistics)?;
                norm.scale = address(scale)?;
                norm.shift = address(shift)?;
                (norm.eps, norm.kind) = (*eps, BatchNorm::FORWARD);
            }
            (Op::BatchNormGrad { eps }, &[g, x, statistics, scale, reduced]) => {
                (norm.g, norm.x) = (self.rows(g)?, self.rows(x)?);
                norm.statistics = address(statistics)?;
                norm.scale = address(scale)?;
                norm.reduced = address(reduced)?;
                (norm.eps, norm.kind) = (*eps, BatchNorm::GRAD);
            }
            (Op::BatchNormFixedGrad { eps }, &[g, statistics, scale]) => {
                norm.g = self.rows(g)?;
                norm.statistics = address(statistics)?;
                norm.scale = address(scale)?;
                (norm.eps, norm.kind) = (*eps, BatchNorm::FIXED_GRAD);
            }
            _ => return Err(self.refuse(id, "its inputs are not those of batch norm".into())),
        }
        norm.factors = self.scratch(4 * norm.out.cols as usize);
        self.launch(&BATCH_NORM_FACTORS, Geometry::columns(norm.out.cols), &norm)?;
        let elements = u64::from(norm.rows.most) * u64::from(norm.out.cols);
        self.launch(&BATCH_NORM, Geometry::elements(elements), &norm)
    }

    /// Adds the launch of a running statistic.
    pub(crate) fn running(
        &mut self,
        id: NodeId,
        (momentum, variance): (f32, bool),
        (running, statistics): (NodeId, NodeId),
    ) -> Result<()> {
        let dim = self.setting.lowered.work_rows(statistics);
        let running = Running {
            running: self.rows(running)?.data,
            statistics: self.rows(statistics)?.data,
            out: self.out(id)?.data,
            total: self.count(dim),
            cols: self.out(id)?.cols,
            variance: variance.into(),
            momentum,
            unused: 0,
        };
        self.launch(&BATCH_NORM_RUNNING, Geometry::columns(running.cols), &running)
    }

    /// Adds the launch of an operation on the columns of each row.
    fn row_norm(&mut self, dim: Dim, norm: RowNorm) -> Result<()> {
        let norm = RowNorm { rows: self.count(dim), ..norm };
        self.launch(&ROW_NORM, Geometry::half_warps(norm.rows.most), &norm)
    }

    /// Adds the launch of layer norm, of a softmax, or of one of their gradients.
    pub(crate) fn norm_of_rows(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let of = |at: usize| self.rows(inputs[at]);
        let base = RowNorm { out: self.out(id)?, ..RowNorm::default() };
        let norm = match *op {
            Op::LayerNorm { eps } => {
                let (scale, shift) = (of(1)?.data, of(2)?.data);
                RowNorm { x: of(0)?, scale, shift, eps, kind: RowNorm::LAYER_NORM, ..base }
            }
            Op::LayerNormGrad { eps } => {
                let (g, x, scale) = (of(0)?, of(1)?, of(2)?.data);
                RowNorm { x, g, scale, eps, kind: RowNorm::LAYER_NORM_GRAD, ..base }
            }
            Op::SoftmaxColumnsGrad => {
                RowNorm { x: of(1)?, g: of(0)?, kind: RowNorm::SOFTMAX_GRAD, ..base }
            }
            Op::SoftmaxColumns => RowNorm { x: of(0)?, kind: RowNorm::SOFTMAX, ..base },
            _ => RowNorm { x: of(0)?, kind: RowNorm::LOG_SUM_EXP, ..base },
        };
        self.row_norm(dim, norm)
    }

    /// Adds the launches of the gradients of layer norm's scale and shift.
    pub(crate) fn layer_norm_reduce(
        &mut self,
        id: NodeId,
        eps: f32,
        (g, x): (NodeId, NodeId),
        dim: Dim,
    ) -> Result<()> {
        let statistics = self.scratch(2 * self.most(dim));
        let out = Rows { data: statistics, stride: 2, cols: 2 };
        let of_rows = RowNorm { x: self.rows(x)?, out, eps, ..RowNorm::default() };
        self.row_norm(dim, RowNorm { kind: RowNorm::STATISTICS, ..of_rows })?;
        self.norm_sums(id, (g, x), (statistics, ColumnSums::BY_ROW), eps, dim)
    }

    /// Adds the launch of an operation between the rows of the batch and the values of their lists.
    pub(crate) fn segment(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let (kind, column, mean) = match *op {
            Op::Repeat { column, mean } => (Segment::REPEAT, column, mean),
            Op::SegmentSum { column, mean } => (Segment::SUM, column, mean),
            Op::SegmentSoftmax { column } => (Segment::SOFTMAX, column, false),
            Op::SegmentSoftmaxGrad { column } => (Segment::SOFTMAX_GRAD, column, false),
            _ => return Err(self.refuse(id, "it is not an operation on lists".into())),
        };
        let offsets = self.setting.batch.columns[column].and_then(|places| places.offsets);
        let segment = Segment {
            x: self.rows(inputs[0])?,
            y: inputs.get(1).map_or(Ok(Rows::default()), |&y| self.rows(y))?,
            out: self.out(id)?,
            offsets: offsets.map_or(0, |offset| self.batch(offset)),
            rows: self.count(Dim::Batch),
            kind,
            mean: mean.into(),
        };
        let elements = u64::from(segment.rows.most) * u64::from(segment.out.cols);
        self.launch(&SEGMENT, Geometry::elements(elements), &segment)
    }

    /// Adds the launch of an interaction of fields or of its gradient.
    pub(crate) fn interaction(&mut self, id: NodeId, op: &Op, inputs: &[NodeId]) -> Result<()> {
        let dim = self.setting.lowered.graph.shape(id).rows;
        let (Op::FmInteraction { dim: floats }
        | Op::FmInteractionGrad { dim: floats }
        | Op::DotInteraction { dim: floats }
        | Op::DotInteractionGrad { dim: floats }) = *op
        else {
            return Err(self.refuse(id, "it is not an interaction".into()));
        };
        let (g, x) = match *inputs {
            [g, x] => (self.rows(g)?, self.rows(x)?),
            [x] => (Rows::default(), self.rows(x)?),
            _ => return Err(self.refuse(id, "its inputs are not those of an interaction".into())),
        };
        let (floats, rows) = (floats as u32, self.count(dim));
        let fields = x.cols / floats;
        let out = self.out(id)?;
        let mut all = Interaction { x, g, out, rows, dim: floats, ..Interaction::default() };
        let shared_bytes = self.setting.shared_bytes as u32;
        let (kernel, geometry) = match op {
            Op::FmInteraction { .. } => (&FM_INTERACTION, Geometry::half_warps(rows.most)),
            Op::FmInteractionGrad { .. } => (&FM_INTERACTION_GRAD, Geometry::half_warps(rows.most)),
            Op::DotInteraction { .. } => {
                all.blocked = Interaction::blocked(fields, floats).into();
                all.in_place = (all.dots().shared_bytes > shared_bytes).into();
                (&DOT_INTERACTION, all.dots())
            }
            _ => {
                all.blocked = Interaction::blocked_grad(fields).into();
                all.in_place = (all.dots_grad().shared_bytes > shared_bytes).into();
                (&DOT_INTERACTION_GRAD, all.dots_grad())
            }
        };
        self.launch(kernel, geometry, &all)
    }
}
