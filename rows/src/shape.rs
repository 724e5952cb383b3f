//! The shape of a row: a valid spec, and the positions of the segments in the row.

use std::ops::Range;

use zillion_feature::{FeatureKey, Use};

use crate::error::Result;
use crate::filter::FilterShape;
use crate::initializer::Initializer;
use crate::layout::TableLayout;
use crate::row::{Meta, RowWeights, StoredRow, floats};
use crate::spec::{META_WORDS, TableSpec, Unknown};

/// The shape of the rows of one table, with the settings of the table.
///
/// A row is stored as two arrays of 32-bit words. The first array has its *weights*, padded to the
/// stride. The second array is its *companion*: the optimizer state of all segments, the metadata
/// ([`Meta`]), and the shows and clicks if the table keeps them.
#[derive(Debug)]
pub struct RowShape {
    /// The settings of the table, which are valid.
    pub spec: TableSpec,
    /// The positions of the segments in a row.
    pub layout: TableLayout,
    /// The positions of each segment with the generator of its initial weights, in the order of the
    /// layout.
    pub places: Vec<SegmentPlace>,
    /// The number of floats of a row without its padding.
    pub width: usize,
    /// The number of words of optimizer state in a companion row. The metadata begin after them.
    pub state_width: usize,
    /// The number of words from one companion row to the next.
    pub companion_stride: usize,
    /// The shape of the filter in which waiting keys are counted; absent if the admission uses no
    /// filter.
    pub filter: Option<FilterShape>,
    /// The shape of a narrow row; absent if rows do not grow.
    pub narrow_row: Option<Box<RowShape>>,
}

/// The positions of one segment in a row and in its companion row.
#[derive(Debug)]
pub struct SegmentPlace {
    /// The range of the segment's weights in a row.
    pub weights: Range<usize>,
    /// The range of the segment's optimizer state in a companion row.
    pub state: Range<usize>,
    initializer: Initializer,
}

impl RowShape {
    /// Checks a spec and computes the positions in its rows.
    ///
    /// # Errors
    /// Returns [`Error::Spec`](crate::Error::Spec) with the setting that is out of range.
    pub fn new(spec: TableSpec) -> Result<Self> {
        spec.validate()?;
        let layout = spec.layout();
        let narrow_row = match spec.narrow_spec() {
            Some(narrow) => Some(Box::new(Self::new(narrow)?)),
            None => None,
        };
        let mut state = 0;
        let places = spec.segments.iter().zip(&layout.segments).map(|(segment, place)| {
            let start = state;
            state += segment.optimizer.state_len(segment.dim);
            let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
            SegmentPlace {
                weights: place.offset..place.offset + place.dim,
                state: start..state,
                initializer: Initializer::new(segment.initializer, spec.seed, &segment.name)
                    .within(bounds),
            }
        });
        Ok(Self {
            width: layout.width(),
            state_width: spec.state_width(),
            companion_stride: spec.companion_stride(),
            filter: spec.filter(),
            narrow_row,
            places: places.collect(),
            layout,
            spec,
        })
    }

    /// Returns the shape of a narrow row if `is_narrow` is `true` and rows grow, else the shape of
    /// a full row.
    pub fn of_width(&self, is_narrow: bool) -> &Self {
        self.narrow_row.as_deref().filter(|_| is_narrow).unwrap_or(self)
    }

    /// Returns the name of the table.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the distance between the beginnings of two rows, in floats.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        self.layout.stride
    }

    /// Writes the initial row of a key, including the padding.
    pub fn fill_initial(&self, key: FeatureKey, row: &mut [f32]) {
        for segment in &self.places {
            segment.initializer.fill(key, &mut row[segment.weights.clone()]);
        }
        row[self.width..].fill(0.0);
        self.spec.dtype.round_nearest(&mut row[..self.width]);
    }

    /// Writes the row that evaluation reads for an unknown key.
    pub fn fill_unknown(&self, key: FeatureKey, row: &mut [f32]) {
        match self.spec.unknown {
            Unknown::Seeded => self.fill_initial(key, row),
            Unknown::Zero => row.fill(0.0),
        }
    }

    /// Writes the companion row of a new row: initial optimizer state, no pushes, and the dirty
    /// epoch `epoch`.
    pub fn fill_initial_companion(&self, companion: &mut [u32], epoch: u32) {
        for (spec, segment) in self.spec.segments.iter().zip(&self.places) {
            let initial = spec.optimizer.initial_state().to_bits();
            companion[segment.state.clone()].fill(initial);
        }
        self.set_meta(companion, Meta { count: 0, last_step: 0, dirty_epoch: epoch });
    }

    /// Returns the metadata of a companion row.
    #[inline(always)]
    pub fn meta(&self, companion: &[u32]) -> Meta {
        let words = &companion[self.state_width..self.state_width + META_WORDS];
        Meta { count: words[0], last_step: words[1], dirty_epoch: words[2] }
    }

    /// Writes the metadata of a companion row.
    #[inline(always)]
    pub fn set_meta(&self, companion: &mut [u32], meta: Meta) {
        let words = &mut companion[self.state_width..self.state_width + META_WORDS];
        words[0] = meta.count;
        words[1] = meta.last_step;
        words[2] = meta.dirty_epoch;
    }

    /// Returns the range of the words that follow the optimizer state in a companion row: the
    /// metadata, and the shows and clicks.
    pub fn companion_tail(&self) -> Range<usize> {
        self.state_width..self.state_width + META_WORDS + self.spec.use_words()
    }

    /// Returns the shows and clicks of a row, decayed to the step of its last push. They are zero
    /// if the table does not keep them.
    #[inline(always)]
    pub fn used(&self, companion: &[u32]) -> Use {
        if self.spec.statistics.is_none() {
            return Use::default();
        }
        let at = self.state_width + META_WORDS;
        Use { shows: f32::from_bits(companion[at]), clicks: f32::from_bits(companion[at + 1]) }
    }

    /// Writes the shows and clicks of a row. Does nothing if the table does not keep them.
    #[inline(always)]
    pub fn set_used(&self, companion: &mut [u32], used: Use) {
        if self.spec.statistics.is_some() {
            let at = self.state_width + META_WORDS;
            companion[at] = used.shows.to_bits();
            companion[at + 1] = used.clicks.to_bits();
        }
    }

    /// Combines the weights and the companion row of one row into a stored row. `self` must be the
    /// shape of a full row or of a narrow row, as `is_narrow` says.
    #[inline]
    pub fn stored_row<'a>(
        &self,
        weights: RowWeights<'a>,
        companion: &'a [u32],
        is_narrow: bool,
    ) -> StoredRow<'a> {
        StoredRow {
            weights,
            state: floats(&companion[..self.state_width]),
            meta: self.meta(companion),
            used: self.used(companion),
            is_narrow,
        }
    }
}
