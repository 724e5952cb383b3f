//! A table's spec, resolved once into what the loops need.

use std::ops::Range;

use zillion_feature::{FeatureKey, Step, Use};

use crate::dtype::{Rounding, StepRounding};
use crate::error::Result;
use crate::filter::FilterShape;
use crate::initializer::Initializer;
use crate::life::Pinned;
use crate::life::priority::Priority;
use crate::limits::Reckoning;
use crate::narrow::NarrowShape;
use crate::optimizer::{Guard, Kernel, Rates};
use crate::spec::{META_WORDS, TableLayout, TableSpec, Unknown};
use crate::table::Room;

/// A validated spec and the positions that follow from it. Shared by the shards of a table.
#[derive(Debug)]
pub(crate) struct TableShape {
    pub(crate) spec: TableSpec,
    pub(crate) layout: TableLayout,
    pub(crate) segments: Vec<SegmentShape>,
    /// Floats of a row that mean something.
    pub(crate) width: usize,
    /// Words of optimizer state in a companion row; the metadata follow.
    pub(crate) state_width: usize,
    pub(crate) companion_stride: usize,
    /// Whether gradients are staged by row and applied by a sweep.
    pub(crate) swept: bool,
    rounding: Rounding,
    /// The order in which rows go; `None` where they stay.
    pub(crate) priority: Option<Priority>,
    /// Rows that never go.
    pub(crate) pinned: Pinned,
    /// Rows that a dynamic table may have by its own settings.
    pub(crate) most_rows: Option<u64>,
    /// Candidates that a slot may have.
    pub(crate) candidates_in_slot: Option<usize>,
    /// What its rows take.
    pub(crate) reckoning: Reckoning,
    /// What a filter of candidates is.
    pub(crate) filter: Option<FilterShape>,
    /// What rows are before they are full, where they grow.
    pub(crate) narrow: Option<Box<NarrowShape>>,
}

/// One segment's places and rules.
#[derive(Debug)]
pub(crate) struct SegmentShape {
    /// Floats of a weight row.
    pub(crate) weights: Range<usize>,
    /// Words of a companion row.
    pub(crate) state: Range<usize>,
    pub(crate) initializer: Initializer,
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
    /// What weights are rounded by, where their type needs it.
    pub(crate) rounding: StepRounding,
    /// Which keys may get a row.
    pub(crate) room: Room,
}

/// The metadata words of a companion row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// How often the row has been pushed; stays at the largest number.
    pub(crate) count: u32,
    /// The step of the last push, 0 for none.
    pub(crate) last_step: u32,
    /// The epoch of the last change, for deltas.
    pub(crate) dirty_epoch: u32,
}

impl TableShape {
    pub(crate) fn new(spec: TableSpec) -> Result<Self> {
        spec.validate()?;
        let layout = spec.layout();
        let narrow = NarrowShape::new(&spec)?.map(Box::new);
        let mut state = 0;
        let segments = spec
            .segments
            .iter()
            .zip(&layout.segments)
            .map(|(segment, place)| {
                let start = state;
                state += segment.optimizer.state_len(segment.dim);
                let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
                SegmentShape {
                    weights: place.offset..place.offset + place.dim,
                    state: start..state,
                    initializer: Initializer::new(segment.initializer, spec.seed, &segment.name)
                        .within(bounds),
                    guard: Guard::new(segment.clip, bounds),
                    l2: segment.l2,
                    l2_is_whole: spec.l2_is_whole(segment),
                    is_swept: spec.moves_whole_table(segment),
                }
            })
            .collect();
        Ok(Self {
            width: layout.width(),
            state_width: spec.state_width(),
            companion_stride: spec.companion_stride(),
            swept: spec.has_whole_table_rule(),
            rounding: Rounding::new(spec.seed),
            priority: Priority::new(&spec.eviction, spec.statistics.as_ref()),
            pinned: Pinned::new(&spec.pinned),
            most_rows: spec.most_rows(),
            candidates_in_slot: spec.candidates_in_slot(),
            reckoning: spec.reckoning(),
            filter: spec.filter(),
            narrow,
            layout,
            segments,
            spec,
        })
    }

    /// Whether a checkpoint of changes holds only what changed of the table. Where a rule moves every row that would be
    /// all of it, and where rows grow a row may have left the files of its width since: such a table is written whole.
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

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    #[inline(always)]
    pub(crate) fn stride(&self) -> usize {
        self.layout.stride
    }

    /// Writes the row that a key starts from, padding included.
    pub(crate) fn fill_initial(&self, key: FeatureKey, row: &mut [f32]) {
        for segment in &self.segments {
            segment.initializer.fill(key, &mut row[segment.weights.clone()]);
        }
        row[self.width..].fill(0.0);
        self.spec.dtype.round_nearest(&mut row[..self.width]);
    }

    /// Writes the row that evaluation reads for an unknown key.
    pub(crate) fn fill_unknown(&self, key: FeatureKey, row: &mut [f32]) {
        match self.spec.unknown {
            Unknown::Seeded => self.fill_initial(key, row),
            Unknown::Zero => row.fill(0.0),
        }
    }

    /// Writes the companion row that a new row starts with.
    pub(crate) fn fill_initial_companion(&self, companion: &mut [u32], epoch: u32) {
        for (spec, segment) in self.spec.segments.iter().zip(&self.segments) {
            let initial = spec.optimizer.initial_state().to_bits();
            companion[segment.state.clone()].fill(initial);
        }
        self.set_meta(companion, Meta { count: 0, last_step: 0, dirty_epoch: epoch });
    }

    #[inline(always)]
    pub(crate) fn meta(&self, companion: &[u32]) -> Meta {
        let words = &companion[self.state_width..self.state_width + META_WORDS];
        Meta { count: words[0], last_step: words[1], dirty_epoch: words[2] }
    }

    #[inline(always)]
    pub(crate) fn set_meta(&self, companion: &mut [u32], meta: Meta) {
        let words = &mut companion[self.state_width..self.state_width + META_WORDS];
        words[0] = meta.count;
        words[1] = meta.last_step;
        words[2] = meta.dirty_epoch;
    }

    /// The words of a companion row behind the state: metadata, and what the row was used for.
    pub(crate) fn companion_tail(&self) -> Range<usize> {
        self.state_width..self.state_width + META_WORDS + self.spec.use_words()
    }

    /// What a row was used for, as it had decayed by its last push; zero where nobody counts.
    #[inline(always)]
    pub(crate) fn used(&self, companion: &[u32]) -> Use {
        if self.spec.statistics.is_none() {
            return Use::default();
        }
        let at = self.state_width + META_WORDS;
        Use { shows: f32::from_bits(companion[at]), clicks: f32::from_bits(companion[at + 1]) }
    }

    /// Keeps what a row was used for, where the table does.
    #[inline(always)]
    pub(crate) fn set_used(&self, companion: &mut [u32], used: Use) {
        if self.spec.statistics.is_some() {
            let at = self.state_width + META_WORDS;
            companion[at] = used.shows.to_bits();
            companion[at + 1] = used.clicks.to_bits();
        }
    }

    /// The rules of one step.
    pub(crate) fn step(&self, step: Step, rates: Rates, scale: f32, epoch: u32) -> TableStep {
        let segments = self.spec.segments.iter().zip(&self.segments);
        let kernels = segments.map(|(spec, segment)| Kernel {
            rule: spec.optimizer.rule(step, rates),
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
            room: Room::default(),
        }
    }
}

/// Optimizer state lies among words that are integers; its floats are read in place.
#[inline(always)]
pub(crate) fn floats_mut(words: &mut [u32]) -> &mut [f32] {
    bytemuck::cast_slice_mut(words)
}

/// The same for reading.
#[inline(always)]
pub(crate) fn floats(words: &[u32]) -> &[f32] {
    bytemuck::cast_slice(words)
}
