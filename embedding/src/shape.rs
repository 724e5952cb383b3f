//! A table's spec, resolved once into what the loops need.

use std::ops::{Deref, Range};

use zillion_feature::Step;
use zillion_rows::dtype::{Rounding, StepRounding};
use zillion_rows::memory::Reckoning;
use zillion_rows::{RowShape, TableSpec};

use crate::error::Result;
use crate::eviction::permits::Permits;
use crate::eviction::pinned::Pinned;
use crate::eviction::priority::Priority;
use crate::narrow::shape::NarrowShape;
use crate::optimizer::{Guard, Kernel, Rates, Rule};

/// A table's shape: the shape of its rows, and what the engine needs to change them. Shared by the
/// shards of a table.
#[derive(Debug)]
pub(crate) struct TableShape {
    row: RowShape,
    /// The rules of each segment.
    pub(crate) segments: Vec<SegmentShape>,
    /// Whether gradients are staged by row and applied by a sweep.
    pub(crate) swept: bool,
    rounding: Rounding,
    /// The order in which rows are evicted; `None` where they stay.
    pub(crate) priority: Option<Priority>,
    /// The keys whose rows are never evicted.
    pub(crate) pinned: Pinned,
    /// The number of rows that a dynamic table may have by its own settings.
    pub(crate) most_rows: Option<u64>,
    /// The number of candidates that a slot may have.
    pub(crate) candidates_in_slot: Option<usize>,
    /// The memory that rows take.
    pub(crate) reckoning: Reckoning,
    /// The shape of rows before they are full, where they grow.
    pub(crate) narrow: Option<Box<NarrowShape>>,
}

/// A table's shape is a row's shape with more: everything that reads rows takes the smaller of the
/// two.
impl Deref for TableShape {
    type Target = RowShape;

    #[inline(always)]
    fn deref(&self) -> &RowShape {
        &self.row
    }
}

/// One segment's places and rules.
#[derive(Debug)]
pub(crate) struct SegmentShape {
    /// Floats of a weight row.
    pub(crate) weights: Range<usize>,
    /// Words of a companion row.
    pub(crate) state: Range<usize>,
    pub(crate) guard: Option<Guard>,
    pub(crate) l2: f32,
    /// Whether the regulariser pulls on rows without a gradient.
    pub(crate) l2_is_whole: bool,
    /// Whether rows without a gradient move.
    pub(crate) is_swept: bool,
}

/// One optimizer step of one table: the rule of each segment, and what goes into the metadata.
#[derive(Debug)]
pub(crate) struct TableStep {
    pub(crate) kernels: Vec<Kernel>,
    /// Those of the segments of narrow rows, where rows grow.
    pub(crate) narrow: Vec<Kernel>,
    /// Multiplies gradient and regulariser: the clip.
    pub(crate) scale: f32,
    pub(crate) step: u32,
    pub(crate) epoch: u32,
    /// The random bits that weights are rounded by, where their type needs it.
    pub(crate) rounding: StepRounding,
    /// The keys that may get a row.
    pub(crate) permits: Permits,
}

impl TableShape {
    pub(crate) fn new(spec: TableSpec) -> Result<Self> {
        let row = RowShape::new(spec)?;
        let spec = &row.spec;
        let narrow = NarrowShape::new(spec)?.map(Box::new);
        let segments = spec.segments.iter().zip(&row.places).map(|(segment, place)| {
            let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
            SegmentShape {
                weights: place.weights.clone(),
                state: place.state.clone(),
                guard: Guard::new(segment.clip, bounds),
                l2: segment.l2,
                l2_is_whole: spec.l2_is_whole(segment),
                is_swept: spec.moves_whole_table(segment),
            }
        });
        Ok(Self {
            segments: segments.collect(),
            swept: spec.has_whole_table_rule(),
            rounding: Rounding::new(spec.seed),
            priority: Priority::new(&spec.eviction, spec.statistics.as_ref()),
            pinned: Pinned::new(&spec.pinned),
            most_rows: spec.most_rows(),
            candidates_in_slot: spec.candidates_in_slot(),
            reckoning: spec.reckoning(),
            narrow,
            row,
        })
    }

    /// The shape that reading and writing rows needs.
    pub(crate) fn row(&self) -> &RowShape {
        &self.row
    }

    /// Whether a checkpoint of changes holds only what changed of the table. Where a rule moves
    /// every row that would be all of it, and where rows grow a row may have left the files of its
    /// width since: such a table is written whole.
    pub(crate) fn has_changes(&self) -> bool {
        !self.swept && self.narrow.is_none()
    }

    /// The shape of a full row, or of a narrow one where there are any.
    pub(crate) fn of_width(&self, is_narrow: bool) -> &Self {
        match &self.narrow {
            Some(narrow) if is_narrow => &narrow.shape,
            _ => self,
        }
    }

    /// The rules of one step.
    pub(crate) fn step(&self, step: Step, rates: Rates, scale: f32, epoch: u32) -> TableStep {
        let segments = self.spec.segments.iter().zip(&self.segments);
        let kernels = segments.map(|(spec, segment)| Kernel {
            rule: Rule::new(&spec.optimizer, step, rates),
            guard: segment.guard,
        });
        let kernels: Vec<Kernel> = kernels.collect();
        let narrow = self.narrow.as_ref().map_or_else(Vec::new, |narrow| narrow.kernels(&kernels));
        // `TableSet` refuses steps that do not fit.
        let rounding = self.rounding.step(step.0);
        TableStep {
            kernels,
            narrow,
            scale,
            step: step.0 as u32,
            epoch,
            rounding,
            permits: Permits::default(),
        }
    }
}
