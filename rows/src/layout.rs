//! Where the floats of a row are.

/// Where the floats of a row are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// The table's name.
    pub name: String,
    /// Floats from one row to the next: the segments, rounded up to a multiple of four (16 bytes).
    pub stride: usize,
    /// In the order of their floats, without gaps.
    pub segments: Vec<SegmentLayout>,
    /// Which of these floats a narrow row has, in their order; `None` where all rows are full.
    pub narrow: Option<Vec<SegmentLayout>>,
}

/// Where one segment's floats are in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// The segment's name.
    pub name: String,
    /// First float.
    pub offset: usize,
    /// Floats.
    pub dim: usize,
}

impl TableLayout {
    /// Floats of a row that mean something; the rest of the stride is padding and reads as zero.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|s| s.dim).sum()
    }

    /// The segment of that name.
    pub fn segment(&self, name: &str) -> Option<&SegmentLayout> {
        self.segments.iter().find(|s| s.name == name)
    }
}
