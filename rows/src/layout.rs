//! The layout of a row: the positions of the floats of its segments.

use crate::row_type::RowType;

/// The layout of the rows of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// The name of the table.
    pub name: String,
    /// The number of floats from one row to the next: the width of all segments, rounded up to a
    /// multiple of four (16 bytes).
    pub stride: usize,
    /// The segments in the order of their floats. There are no gaps between them.
    pub segments: Vec<SegmentLayout>,
    /// The parts of the segments that a narrow row has, in the order of its floats. Each part has
    /// its position in a full row. `None` if all rows are full.
    pub narrow: Option<Vec<SegmentLayout>>,
    /// The number type of the weights in published versions.
    pub published: RowType,
    /// The rule by which layers list hot keys of the table; `None` if they list none.
    pub hot: Option<HotRule>,
}

/// The rule by which the hot keys of a table are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotRule {
    /// The largest number of keys, which is at least 1.
    pub most: u32,
    /// The time in which the count of a row halves, in the unit of the table: steps, or seconds of
    /// event time. It is at least 1 and at most [`HotRule::MAX_HALF_LIFE`].
    pub half_life: u64,
}

impl HotRule {
    /// The largest half-life of a rule.
    pub const MAX_HALF_LIFE: u64 = u32::MAX as u64;
    /// The largest number of keys of a table.
    pub const MAX_KEYS: u32 = 1 << 20;
}

/// The position of one segment in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// The name of the segment.
    pub name: String,
    /// The position of the segment's first float in the row, counted from 0.
    pub offset: usize,
    /// The number of floats of the segment.
    pub dim: usize,
}

impl TableLayout {
    /// Returns the number of floats of a row without its padding. The padding consists of zeros.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|s| s.dim).sum()
    }

    /// Returns the segment with this name, or `None` if there is no such segment.
    pub fn segment(&self, name: &str) -> Option<&SegmentLayout> {
        self.segments.iter().find(|s| s.name == name)
    }
}
