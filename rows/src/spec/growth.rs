//! The growth of rows: a row begins narrow and becomes full after a number of pushes.
//!
//! Most keys of a real stream are rare, and training on a rare key determines little more than one
//! number. So a row has only some of its floats until it has had enough pushes (multi-dimension
//! embeddings, as in XDL and Monolith). The missing floats of a narrow row are read from the
//! initial row of its key. So a lookup gives the same numbers before and after a row grows.

use serde::{Deserialize, Serialize};

use super::{SegmentSpec, TableSpec};
use crate::layout::{SegmentLayout, TableLayout};

/// The largest number of pushes that a job may set. A larger number is refused, because it must be
/// a mistake: the counts of rows stop at the largest `u32`.
const MOST: u32 = 1 << 31;

/// The growth of the rows of a table. In a job file: `grow = { at = 20 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// The number of pushes after which a row is full. The push that reaches this number still
    /// updates the narrow row.
    pub at: u32,
    /// The number of floats of the table's first segment that a narrow row has. A narrow row has
    /// all floats of the other segments. If `from` is absent, it is 0 for rows with several
    /// segments and 1 for rows with one segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<usize>,
}

impl Growth {
    /// Returns whether the setting makes rows full from their first push.
    pub fn is_off(&self) -> bool {
        self.at == 1
    }
}

impl TableSpec {
    /// Returns the number of floats of the first segment that a narrow row has.
    fn narrow_dim(&self, growth: Growth) -> usize {
        growth.from.unwrap_or(usize::from(self.segments.len() == 1))
    }

    /// Returns the segments of a narrow row, or `None` if rows do not grow.
    pub(crate) fn narrow_segments(&self) -> Option<Vec<SegmentSpec>> {
        let dim = self.narrow_dim(self.grow?);
        let (first, others) = self.segments.split_first()?;
        let first = (dim > 0).then(|| SegmentSpec { dim, ..first.clone() });
        Some(first.into_iter().chain(others.iter().cloned()).collect())
    }

    /// Returns the spec of a separate table that consists of the narrow rows, or `None` if rows do
    /// not grow.
    pub fn narrow_spec(&self) -> Option<Self> {
        let segments = self.narrow_segments()?;
        Some(Self { grow: None, segments, ..self.clone() })
    }

    /// Returns the number of bytes that a table with `full` full rows and `narrow` narrow rows
    /// takes in memory on `shards` shards. [`TableSpec::memory`] is the same calculation for full
    /// rows only.
    pub fn memory_of_widths(&self, full: u64, narrow: u64, shards: usize) -> u64 {
        let Some(small) = self.narrow_spec() else {
            return self.memory(full + narrow, shards);
        };
        let rows = |spec: &Self, rows| spec.memory(rows, shards) - spec.index_memory(rows);
        rows(self, full) + rows(&small, narrow) + self.index_memory(full + narrow)
    }

    /// Returns the parts of the segments that a narrow row has, in the order of its floats. Each
    /// part has its position in a full row. Returns `None` if rows do not grow.
    pub(crate) fn narrow_layout(&self, full: &[SegmentLayout]) -> Option<Vec<SegmentLayout>> {
        let dim = self.narrow_dim(self.grow?);
        let (first, others) = full.split_first()?;
        let first = (dim > 0).then(|| SegmentLayout { dim, ..first.clone() });
        Some(first.into_iter().chain(others.iter().cloned()).collect())
    }

    /// Returns the setting that makes growth impossible and the reason, or `None` if growth is
    /// possible or not set.
    pub(crate) fn growth_problem(&self) -> Option<(&'static str, String)> {
        let growth = self.grow?;
        let first = self.segments.first()?;
        if self.dense {
            let reason = "the rules of a dense table update whole rows, so no row can be narrow; \
                          remove `grow`, set `grow = { at = 1 }` for the table, or set `dense = \
                          false`";
            return Some(("grow", reason.to_owned()));
        }
        if !(2..=MOST).contains(&growth.at) {
            let reason = format!("must be between 1 (rows are full from the start) and {MOST}");
            return Some(("grow.at", reason));
        }
        let (dim, from) = (first.dim, self.narrow_dim(growth));
        if growth.from.is_none() && from >= dim {
            let reason = format!(
                "rows have a single float (`{}`), so no row can grow; remove `grow`, or set `grow \
                 = {{ at = 1 }}` for the table",
                first.name
            );
            return Some(("grow", reason));
        }
        if from >= dim {
            let reason = format!(
                "must be below {dim}, the number of floats of a full segment `{}`",
                first.name
            );
            return Some(("grow.from", reason));
        }
        if from == 0 && self.segments.len() == 1 {
            let reason = format!(
                "must be at least 1, because the rows of this table have only the segment `{}`, \
                 and a row without a float learns nothing; raise it (use `admission` to let keys \
                 wait without a row)",
                first.name
            );
            return Some(("grow.from", reason));
        }
        None
    }
}

impl TableLayout {
    /// Returns the number of floats of a narrow row, or 0 if all rows are full.
    pub fn narrow_width(&self) -> usize {
        self.narrow.iter().flatten().map(|segment| segment.dim).sum()
    }

    /// Writes the floats of a narrow row to their places in a full row.
    pub fn spread(&self, narrow: &[f32], full: &mut [f32]) {
        let mut from = 0;
        for segment in self.narrow.iter().flatten() {
            let to = segment.offset..segment.offset + segment.dim;
            full[to].copy_from_slice(&narrow[from..from + segment.dim]);
            from += segment.dim;
        }
    }
}
