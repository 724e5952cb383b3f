//! The shape of a table: the values that the loops over rows need, computed once from the spec.

use std::ops::{Deref, Range};

use zillion_feature::Step;
use zillion_rows::dtype::{Rounding, StepRounding};
use zillion_rows::memory::Reckoning;
use zillion_rows::{RowShape, TableSpec};

use crate::error::Result;
use crate::eviction::clock::{EventClock, Moment};
use crate::eviction::permits::Permits;
use crate::eviction::pinned::Pinned;
use crate::eviction::priority::Priority;
use crate::narrow::shape::NarrowShape;
use crate::optimizer::{Guard, Kernel, Rates, Rule};

/// The shape of a table: the shape of its rows, and the rules by which the engine changes them. All
/// shards of the table share it.
#[derive(Debug)]
pub(crate) struct TableShape {
    row: RowShape,
    /// The rules of each segment.
    pub(crate) segments: Vec<SegmentShape>,
    /// Whether the table has whole-table rules, so that gradients are staged by row and applied by
    /// a sweep.
    pub(crate) swept: bool,
    rounding: Rounding,
    /// The priority of rows for eviction; `None` if rows are never evicted.
    pub(crate) priority: Option<Priority>,
    /// The keys whose rows are never evicted.
    pub(crate) pinned: Pinned,
    /// The largest number of rows of a dynamic table by its own settings; `None` if they set no
    /// limit.
    pub(crate) most_rows: Option<u64>,
    /// The largest number of candidates of a slot by the table's own settings; `None` if they set
    /// no limit.
    pub(crate) candidates_in_slot: Option<usize>,
    /// The sizes from which the memory of the table's rows is computed.
    pub(crate) reckoning: Reckoning,
    /// The shape of narrow rows; `None` if rows do not grow.
    pub(crate) narrow: Option<Box<NarrowShape>>,
}

/// Gives access to the shape of the rows. Code that only reads rows takes a [`RowShape`].
impl Deref for TableShape {
    type Target = RowShape;

    #[inline(always)]
    fn deref(&self) -> &RowShape {
        &self.row
    }
}

/// The places of one segment in a row, and the rules for it.
#[derive(Debug)]
pub(crate) struct SegmentShape {
    /// The range of floats in a weight row.
    pub(crate) weights: Range<usize>,
    /// The range of words in a companion row.
    pub(crate) state: Range<usize>,
    pub(crate) guard: Option<Guard>,
    pub(crate) l2: f32,
    /// Whether the regulariser also applies to rows without a gradient.
    pub(crate) l2_is_whole: bool,
    /// Whether a step also changes rows without a gradient in this segment.
    pub(crate) is_swept: bool,
}

/// An optimizer step of one table: the rule of each segment, and the values that are written into
/// the metadata of rows.
#[derive(Debug)]
pub(crate) struct TableStep {
    pub(crate) kernels: Vec<Kernel>,
    /// The rules of the segments of narrow rows; empty if rows do not grow.
    pub(crate) narrow: Vec<Kernel>,
    /// The factor of the gradient and the regulariser, as clipping computes it.
    pub(crate) scale: f32,
    /// The moment of the step, which the metadata of pushed rows get.
    pub(crate) at: Moment,
    pub(crate) epoch: u32,
    /// The source of the random bits for the rounding of 16-bit weights.
    pub(crate) rounding: StepRounding,
    /// The permits of the step: the keys that may get a row.
    pub(crate) permits: Permits,
    /// Whether the step counts its keys and moves no weight and no state.
    pub(crate) is_skipped: bool,
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

    /// Returns the shape of the rows, which is enough to read and write them.
    pub(crate) fn row(&self) -> &RowShape {
        &self.row
    }

    /// Returns whether a checkpoint of changes holds only the changed rows of this table. Other
    /// tables are written whole. If a rule changes every row, no row is unchanged. If rows grow, a
    /// changed row may have moved to the files of the other width.
    pub(crate) fn has_changes(&self) -> bool {
        !self.swept && self.narrow.is_none()
    }

    /// Returns the shape of a narrow row if `is_narrow` is `true` and the table has narrow rows,
    /// else the shape of a full row.
    pub(crate) fn of_width(&self, is_narrow: bool) -> &Self {
        match &self.narrow {
            Some(narrow) if is_narrow => &narrow.shape,
            _ => self,
        }
    }

    /// Returns the optimizer step of the table for these settings. `clock` is the event time of the
    /// step, which only some tables need.
    pub(crate) fn step(
        &self,
        step: Step,
        rates: Rates,
        scale: f32,
        clock: Option<EventClock>,
        epoch: u32,
    ) -> TableStep {
        let segments = self.spec.segments.iter().zip(&self.segments);
        let kernels = segments.map(|(spec, segment)| Kernel {
            rule: Rule::new(&spec.optimizer, step, rates),
            guard: segment.guard,
        });
        let kernels: Vec<Kernel> = kernels.collect();
        let narrow = self.narrow.as_ref().map_or_else(Vec::new, |narrow| narrow.kernels(&kernels));
        // `TableSet` refuses steps that do not fit into 32 bits.
        let rounding = self.rounding.step(step.0);
        TableStep {
            kernels,
            narrow,
            scale,
            at: Moment::new(&self.spec, step.0 as u32, clock),
            epoch,
            rounding,
            permits: Permits::default(),
            is_skipped: false,
        }
    }
}
