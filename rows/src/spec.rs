//! The settings of a table in a job: its segments, and the rules for its rows.

mod admission;
mod byte_size;
mod clip;
mod eviction;
mod growth;
mod optimizer;
mod pinned;
mod span;
mod validate;

use serde::{Deserialize, Serialize};

pub use admission::{Admission, is_drawn};
pub use byte_size::ByteSize;
pub use clip::{Bounds, ClipSpec};
pub use eviction::{Eviction, UseStatistics};
pub use growth::Growth;
pub use optimizer::OptimizerSpec;
pub use pinned::PinnedId;
pub use span::{EventSpan, Span, TableClock};

use crate::dtype::Dtype;
use crate::initializer::InitializerSpec;
use crate::layout::{HotRule, SegmentLayout, TableLayout};
use crate::row_type::RowType;

/// The number of rows that a dense table may have if the job does not set `max_rows`.
pub const DEFAULT_DENSE_ROWS: u64 = 1 << 24;

/// The unit of the stride of a row in floats. The stride is a multiple of it: 16 bytes.
pub(crate) const STRIDE_UNIT: usize = 4;
/// The number of metadata words in a companion row: count, last step and dirty epoch. They follow
/// the optimizer state.
pub const META_WORDS: usize = 3;
/// The number of words for shows and clicks in a companion row. They follow the metadata if a table
/// keeps statistics of use.
const USE_WORDS: usize = 2;

/// The half-life of hot keys in steps, for a table whose eviction has none.
const HOT_STEPS: u64 = 10_000;
/// The half-life of hot keys in seconds, for a table by event time whose eviction has none.
const HOT_SECONDS: u64 = 86_400;

/// The settings of one embedding table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// The name of the table in files and messages: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// The segments of a row, in the order of their floats.
    pub segments: Vec<SegmentSpec>,
    /// Whether the vocabulary of the table is fixed and filled before the first step. Rules that
    /// update the whole table need a fixed vocabulary.
    #[serde(default)]
    pub dense: bool,
    /// The largest number of rows of the table. If it is absent, a dense table may have
    /// [`DEFAULT_DENSE_ROWS`] rows, and a dynamic table has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// The largest amount of memory of a dynamic table; absent if memory is not limited. The lists
    /// of changed keys, from which deltas are made, are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// The row that evaluation and serving read for a key that the table does not have.
    #[serde(default)]
    pub unknown: Unknown,
    /// The condition under which a key gets a row.
    #[serde(default, skip_serializing_if = "Admission::is_all")]
    pub admission: Admission,
    /// The span of event time by which the counts of waiting keys age; absent if only the other
    /// rules drop counts. An exact count is dropped when its key was not seen for the span. The
    /// counters of a filter are halved once in each span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission_window: Option<EventSpan>,
    /// The condition under which a row is removed from the table.
    #[serde(default, skip_serializing_if = "Eviction::is_never")]
    pub eviction: Eviction,
    /// The number type of the weights in memory and in checkpoints. Optimizer state is always f32.
    #[serde(default, skip_serializing_if = "Dtype::is_f32")]
    pub dtype: Dtype,
    /// The number type of the weights in published versions, which does not change training. A job
    /// has it in `publish.rows`.
    #[serde(default, skip_serializing_if = "RowType::is_f32")]
    pub published: RowType,
    /// The largest number of hot keys that published versions list for the table. A job has it in
    /// `publish.hot_keys`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hot_keys: u32,
    /// The ids whose rows are never evicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<PinnedId>,
    /// The settings of the statistics of shows and clicks that each row has; absent if rows have no
    /// such statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<UseStatistics>,
    /// The growth of narrow rows to full rows; absent if rows are full from their creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grow: Option<Growth>,
    /// The seed of the initial rows and of the rounding of 16-bit weights.
    pub seed: u64,
}

/// Returns whether a number is zero, which is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The settings of one segment of a row, for example of the factors or of the linear weight. Each
/// segment has its own optimizer, regulariser and limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentSpec {
    /// The name of the segment: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// The number of floats of the segment.
    pub dim: usize,
    /// The distribution of the segment's weights in a new row.
    pub initializer: InitializerSpec,
    /// The optimizer of the segment.
    pub optimizer: OptimizerSpec,
    /// The strength of the regulariser `(l2 / 2) * |w|^2`.
    #[serde(default)]
    pub l2: f32,
    /// The rows that the regulariser updates. If the scope is absent, the regulariser updates all
    /// rows in a dense table, and only the rows that the step touches in a dynamic table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_scope: Option<Scope>,
    /// The limits of the gradient of a row's segment; absent if gradients are not clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// The bounds of the weights; absent if every weight is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

impl SegmentSpec {
    /// Creates the settings of a segment without a regulariser, a clip or bounds.
    pub fn new(
        name: impl Into<String>,
        dim: usize,
        initializer: InitializerSpec,
        optimizer: OptimizerSpec,
    ) -> Self {
        Self {
            name: name.into(),
            dim,
            initializer,
            optimizer,
            l2: 0.0,
            l2_scope: None,
            clip: None,
            bounds: None,
        }
    }
}

/// The rows that a rule updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The rows for which the step has a gradient.
    Touched,
    /// Every row of the table, in every step. Only dense tables allow this.
    Table,
}

/// The row that evaluation and serving read for an unknown key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The initial row that training would give to the key.
    #[default]
    Seeded,
    /// A row of zeros.
    Zero,
}

impl TableSpec {
    /// Creates the settings of a dynamic table with these segments, the defaults of a job, and the
    /// seed 0.
    pub fn new(name: impl Into<String>, segments: Vec<SegmentSpec>) -> Self {
        Self {
            name: name.into(),
            segments,
            dense: false,
            max_rows: None,
            max_bytes: None,
            unknown: Unknown::default(),
            admission: Admission::default(),
            admission_window: None,
            eviction: Eviction::default(),
            dtype: Dtype::default(),
            published: RowType::default(),
            hot_keys: 0,
            pinned: Vec::new(),
            statistics: None,
            grow: None,
            seed: 0,
        }
    }

    /// Returns the layout of a row. The spec should be valid (see [`TableSpec::validate`]).
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
            published: self.published,
            hot: self.hot_rule(),
        }
    }

    /// Returns the rule of the hot keys of versions: the half-life of the eviction, or a usual one.
    fn hot_rule(&self) -> Option<HotRule> {
        let half_life = match (&self.eviction, self.clock()) {
            (Eviction::Lfu { half_life, .. }, _) => half_life.units(),
            (_, TableClock::Steps) => HOT_STEPS,
            (_, TableClock::EventTime) => HOT_SECONDS,
        };
        let half_life = half_life.clamp(1, HotRule::MAX_HALF_LIFE);
        (self.hot_keys > 0).then_some(HotRule { most: self.hot_keys, half_life })
    }

    /// Returns the number of floats of optimizer state of one row, summed over all segments.
    pub fn state_width(&self) -> usize {
        self.segments.iter().map(|s| s.optimizer.state_len(s.dim)).sum()
    }

    /// Returns the unit in which the table measures the age of its rows. It is event time if any
    /// setting is a span of event time.
    pub fn clock(&self) -> TableClock {
        let eviction = self.eviction.age().map(|(_, span)| span);
        let spans = [eviction, self.statistics.map(|statistics| statistics.period)];
        let by_event_time =
            spans.into_iter().flatten().any(|span| span.clock() == TableClock::EventTime);
        match by_event_time || self.admission_window.is_some() {
            true => TableClock::EventTime,
            false => TableClock::Steps,
        }
    }

    /// Returns whether each step must visit rows or counts that have no gradient: for a whole-table
    /// rule, for eviction, or for the ageing of counts.
    pub fn needs_sweep(&self) -> bool {
        self.has_whole_table_rule() || !self.eviction.is_never() || self.admission_window.is_some()
    }

    /// Returns the largest number of rows of a dense table, or `None` for a dynamic table.
    pub fn row_limit(&self) -> Option<u64> {
        self.dense.then(|| self.max_rows.unwrap_or(DEFAULT_DENSE_ROWS))
    }

    /// Returns whether a step updates rows that have no gradient. If so, gradients are staged by
    /// row, and a sweep over the table applies them.
    pub fn has_whole_table_rule(&self) -> bool {
        self.dense && self.segments.iter().any(|s| self.moves_whole_table(s))
    }

    /// Returns whether a step updates this segment of every row, with or without a gradient.
    pub fn moves_whole_table(&self, segment: &SegmentSpec) -> bool {
        self.rule_is_exact(segment) || self.l2_is_whole(segment)
    }

    /// Returns whether the regulariser of this segment updates rows without a gradient.
    pub fn l2_is_whole(&self, segment: &SegmentSpec) -> bool {
        segment.l2 != 0.0 && self.dense && segment.l2_scope != Some(Scope::Touched)
    }

    /// Returns whether the optimizer of this segment updates rows without a gradient.
    fn rule_is_exact(&self, segment: &SegmentSpec) -> bool {
        let wanted = segment.optimizer.scope();
        self.dense && wanted.is_some_and(|scope| scope != Some(Scope::Touched))
    }

    /// Returns the number of words of a companion row: optimizer state, metadata, and shows and
    /// clicks. The number is rounded up to 16 bytes, so that a companion row of up to 64 bytes
    /// crosses as few cache lines as possible.
    pub fn companion_stride(&self) -> usize {
        (self.state_width() + META_WORDS + self.use_words()).next_multiple_of(STRIDE_UNIT)
    }

    /// Returns the number of words for shows and clicks in a companion row, which is 0 if the table
    /// keeps no statistics of use.
    pub fn use_words(&self) -> usize {
        if self.statistics.is_some() { USE_WORDS } else { 0 }
    }
}

#[cfg(test)]
mod tests;
