//! What a table is: segments and their rules, as a job describes them.

mod admission;
mod byte_size;
mod clip;
mod eviction;
mod growth;
mod optimizer;
mod pinned;
mod validate;

use serde::{Deserialize, Serialize};

pub use admission::{Admission, is_drawn};
pub use byte_size::ByteSize;
pub use clip::{Bounds, ClipSpec};
pub use eviction::{Eviction, UseStatistics};
pub use growth::Growth;
pub use optimizer::OptimizerSpec;
pub use pinned::PinnedId;

use crate::dtype::Dtype;
use crate::initializer::InitializerSpec;
use crate::layout::{SegmentLayout, TableLayout};

/// Rows that a dense table may have where the job names no cap.
pub const DEFAULT_DENSE_ROWS: u64 = 1 << 24;

/// Floats that a row's stride is a multiple of: 16 bytes.
pub(crate) const STRIDE_UNIT: usize = 4;
/// Words of a companion row after the optimizer state: count, last step, dirty epoch.
pub const META_WORDS: usize = 3;
/// Words after these where a table keeps statistics of use: shows, clicks.
const USE_WORDS: usize = 2;
/// One table of embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// Names the table in files and messages: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// The parts of a row, in the order of their floats.
    pub segments: Vec<SegmentSpec>,
    /// A fixed vocabulary, filled before the first step: what whole-table rules need.
    #[serde(default)]
    pub dense: bool,
    /// Rows that the table may have. Absent: [`DEFAULT_DENSE_ROWS`] in a dense one, no limit in others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// Memory that a dynamic table may take, all told but for the lists of changes that deltas are made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// What evaluation and serving read for a key that the table does not have.
    #[serde(default)]
    pub unknown: Unknown,
    /// When a key gets a row.
    #[serde(default, skip_serializing_if = "Admission::is_all")]
    pub admission: Admission,
    /// When the row goes.
    #[serde(default, skip_serializing_if = "Eviction::is_never")]
    pub eviction: Eviction,
    /// The type of the weights in memory and in checkpoints; state is f32, and so is what is served.
    #[serde(default, skip_serializing_if = "Dtype::is_f32")]
    pub dtype: Dtype,
    /// Ids whose rows never go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<PinnedId>,
    /// Shows and clicks of each row; absent: they are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<UseStatistics>,
    /// When rows become full; absent: they are from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grow: Option<Growth>,
    /// Seed of the initial rows, and of the rounding of weights of 16 bits.
    pub seed: u64,
}

/// One part of a row, with its own rules: for example the factors, or the linear weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentSpec {
    /// Names the segment: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// Floats.
    pub dim: usize,
    /// What a new row holds.
    pub initializer: InitializerSpec,
    /// How it learns.
    pub optimizer: OptimizerSpec,
    /// Strength of the regulariser `(l2 / 2) * |w|^2`.
    #[serde(default)]
    pub l2: f32,
    /// Which rows the regulariser pulls on; absent means what the table's kind implies: the whole
    /// table if it is dense, else the rows that a step touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_scope: Option<Scope>,
    /// How far a row's gradient may reach; absent: as far as it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// What weights may be; absent: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// Which rows a rule moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Rows that the step has a gradient for.
    Touched,
    /// Every row of the table, at every step. Dense tables only.
    Table,
}

/// What evaluation and serving read for an unknown key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The row that training would start from.
    #[default]
    Seeded,
    /// Zeros.
    Zero,
}

impl TableSpec {
    /// The layout of a row. The spec should be valid (see [`TableSpec::validate`]).
    pub fn layout(&self) -> TableLayout {
        let mut offset = 0;
        let segments = self.segments.iter().map(|segment| {
            let start = offset;
            offset += segment.dim;
            SegmentLayout { name: segment.name.clone(), offset: start, dim: segment.dim }
        });
        let segments: Vec<_> = segments.collect();
        TableLayout {
            name: self.name.clone(),
            stride: offset.next_multiple_of(STRIDE_UNIT),
            narrow: self.narrow_layout(&segments),
            segments,
        }
    }

    /// Floats of optimizer state of a row, all segments together.
    pub fn state_width(&self) -> usize {
        self.segments.iter().map(|s| s.optimizer.state_len(s.dim)).sum()
    }

    /// Rows that a dense table may have.
    pub fn row_limit(&self) -> Option<u64> {
        self.dense.then(|| self.max_rows.unwrap_or(DEFAULT_DENSE_ROWS))
    }

    /// Whether a step moves rows that it has no gradient for, so that gradients are staged by row and
    /// applied by a sweep.
    pub fn has_whole_table_rule(&self) -> bool {
        self.dense && self.segments.iter().any(|s| self.moves_whole_table(s))
    }

    /// Returns whether a step moves every row in this segment, with or without a gradient.
    pub fn moves_whole_table(&self, segment: &SegmentSpec) -> bool {
        self.rule_is_exact(segment) || self.l2_is_whole(segment)
    }

    /// Returns whether the regulariser of this segment pulls on rows without a gradient.
    pub fn l2_is_whole(&self, segment: &SegmentSpec) -> bool {
        segment.l2 != 0.0 && self.dense && segment.l2_scope != Some(Scope::Touched)
    }

    /// Whether the rule moves rows without a gradient.
    fn rule_is_exact(&self, segment: &SegmentSpec) -> bool {
        let wanted = segment.optimizer.scope();
        self.dense && wanted.is_some_and(|scope| scope != Some(Scope::Touched))
    }

    /// Words of a companion row: state, then the metadata, rounded up to 16 bytes so that a row of
    /// up to 64 bytes lies in as few cache lines as it can.
    pub fn companion_stride(&self) -> usize {
        (self.state_width() + META_WORDS + self.use_words()).next_multiple_of(STRIDE_UNIT)
    }

    /// Returns the number of words of a companion row that hold shows and clicks.
    pub fn use_words(&self) -> usize {
        if self.statistics.is_some() { USE_WORDS } else { 0 }
    }
}

#[cfg(test)]
mod tests;
