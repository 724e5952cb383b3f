//! What a table is: segments, their rules, and the layout of a row that follows from them.

use serde::{Deserialize, Serialize};
use zillion_device::Slab;
use zillion_feature::SLOTS;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::initializer::InitializerSpec;
use crate::life::{Admission, ByteSize, Eviction, Growth, PinnedId, UseStatistics};
use crate::optimizer::{Bounds, ClipSpec, OptimizerSpec};

/// Rows that a dense table may have where the job names no cap.
pub const DEFAULT_DENSE_ROWS: u64 = 1 << 24;

/// Floats that a row's stride is a multiple of: 16 bytes.
const STRIDE_UNIT: usize = 4;
/// Words of a companion row after the optimizer state: count, last step, dirty epoch.
pub(crate) const META_WORDS: usize = 3;
/// Words after these where a table keeps statistics of use: shows, clicks.
const USE_WORDS: usize = 2;
/// Bytes of the index a row at most, and of the count of a key that waits: see the index's own test.
pub(crate) const INDEX_BYTES: u64 = 20;
/// Bytes of an empty slot of the index, and of a bucket.
pub(crate) const SLOT_BYTES: u64 = 32;
pub(crate) const BUCKET_BYTES: u64 = 64;
/// More dimensions than this in a segment are taken for a mistake.
const MAX_DIM: usize = 1 << 16;

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

    pub(crate) fn moves_whole_table(&self, segment: &SegmentSpec) -> bool {
        self.rule_is_exact(segment) || self.l2_is_whole(segment)
    }

    pub(crate) fn l2_is_whole(&self, segment: &SegmentSpec) -> bool {
        segment.l2 != 0.0 && self.dense && segment.l2_scope != Some(Scope::Touched)
    }

    /// Whether the rule moves rows without a gradient.
    fn rule_is_exact(&self, segment: &SegmentSpec) -> bool {
        let wanted = segment.optimizer.scope();
        self.dense && wanted.is_some_and(|scope| scope != Some(Scope::Touched))
    }

    /// Bytes of a row's weights in memory, padded to 16.
    pub(crate) fn weight_bytes(&self) -> usize {
        (self.layout().width() * self.dtype.bytes()).next_multiple_of(4 * STRIDE_UNIT)
    }

    /// Bytes of a row's key, where a sweep must know it to round the row.
    pub(crate) fn key_bytes(&self) -> u64 {
        if self.has_whole_table_rule() && !self.dtype.is_f32() { 8 } else { 0 }
    }

    /// Bytes that a row takes in memory, all told: weights, state and metadata, its share of the index at
    /// the worst moment of its growth, and the staged gradient where a step moves the whole table.
    /// Not counted here is what a limit in bytes reckons with where rows go: a quarter more of the index, because slots keep the
    /// buckets of their fullest moment until their turn comes.
    pub fn bytes_per_row(&self) -> u64 {
        let staged = if self.has_whole_table_rule() { self.layout().stride } else { 0 };
        let floats = 4 * (self.companion_stride() + staged) as u64;
        self.weight_bytes() as u64 + floats + self.key_bytes() + INDEX_BYTES
    }

    /// Bytes that a table of `rows` rows takes in memory on `shards` shards: [`TableSpec::bytes_per_row`], and
    /// what small tables notice: the directory of slots, a bucket of the index for the first row of each,
    /// and slabs that grow by a quarter up to a chunk and by chunks from there.
    pub fn memory(&self, rows: u64, shards: usize) -> u64 {
        let index = self.index_memory(rows);
        let shards = shards.max(1) as u64;
        let slab = |row_bytes: usize| {
            shards * Slab::<f32>::mapped_bytes(rows.div_ceil(shards) as usize, row_bytes) as u64
        };
        let staged = if self.has_whole_table_rule() { slab(4 * self.layout().stride) } else { 0 };
        let rows_in_slabs = slab(self.weight_bytes()) + slab(4 * self.companion_stride());
        index + rows_in_slabs + staged + rows * self.key_bytes()
    }

    /// Bytes of the index of `rows` rows, at the worst moment of its growth, with the directory of slots and a
    /// bucket for the first row of each.
    pub fn index_memory(&self, rows: u64) -> u64 {
        let slots = SLOTS as u64;
        slots * SLOT_BYTES + (INDEX_BYTES * rows).max(BUCKET_BYTES * rows.min(slots))
    }

    /// Bytes that keys take in memory while they wait to be admitted: at the worst moment of growth, and with
    /// the directory of slots and a bucket for the first key of each; or those of a filter.
    pub fn candidate_memory(&self, candidates: u64) -> u64 {
        match self.admission {
            Admission::All | Admission::Probability { .. } => 0,
            Admission::Count { .. } => self.index_memory(candidates),
            Admission::Bloom { .. } => self.filter().map_or(0, |filter| filter.bytes()),
        }
    }

    /// Bytes that a waiting key takes in a checkpoint: key, count, last step.
    pub fn checkpoint_bytes_per_candidate(&self) -> u64 {
        8 + 4 + 8
    }

    /// Bytes that a row takes in a checkpoint: key, weights, state, count, last step, dirty epoch.
    pub fn checkpoint_bytes_per_row(&self) -> u64 {
        let weights = self.dtype.bytes() * self.layout().width();
        // In a file the last step has eight bytes.
        8 + (weights + 4 * (self.state_width() + self.use_words())) as u64 + 4 + 8 + 4
    }

    /// Words of a companion row: state, then the metadata, rounded up to 16 bytes so that a row of
    /// up to 64 bytes lies in as few cache lines as it can.
    pub(crate) fn companion_stride(&self) -> usize {
        (self.state_width() + META_WORDS + self.use_words()).next_multiple_of(STRIDE_UNIT)
    }

    pub(crate) fn use_words(&self) -> usize {
        if self.statistics.is_some() { USE_WORDS } else { 0 }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::Spec`] names the setting (`tables.<table>.<key>`) and says what to write instead.
    pub fn validate(&self) -> Result<()> {
        let at = |key: &str, reason: &str| {
            let key = format!("tables.{}.{key}", self.name);
            Err(Error::Spec { key, reason: reason.to_owned() })
        };
        if let Some(reason) = name_problem(&self.name) {
            return at("name", reason);
        }
        if self.segments.is_empty() {
            return at("segments", "a table needs at least one segment");
        }
        let limits = [self.max_rows, self.row_limit()];
        if limits.into_iter().flatten().any(|n| n == 0 || n > u64::from(u32::MAX) / 2) {
            return at("max_rows", "must be between 1 and 2147483647");
        }
        self.validate_life()?;
        for (index, segment) in self.segments.iter().enumerate() {
            if let Some(reason) = name_problem(&segment.name) {
                return at(&format!("segments.{index}.name"), reason);
            }
            if self.segments[..index].iter().any(|s| s.name == segment.name) {
                return at(&format!("segments.{index}.name"), "two segments have this name");
            }
            self.validate_segment(segment)?;
        }
        match self.growth_problem() {
            Some((key, reason)) => at(key, &reason),
            None => Ok(()),
        }
    }

    fn validate_life(&self) -> Result<()> {
        let at = |key: &str, reason: &str| {
            let key = format!("tables.{}.{key}", self.name);
            Err(Error::Spec { key, reason: reason.to_owned() })
        };
        if self.dense && !self.admission.is_all() {
            return at(
                "admission",
                "a dense table has the rows of its vocabulary from the start; remove this, set \
                 `admission = { kind = \"all\" }` for the table, or `dense = false`",
            );
        }
        if self.dense && !self.eviction.is_never() {
            return at(
                "eviction",
                "a dense table keeps the rows of its vocabulary; remove this, set \
                 `eviction = { kind = \"never\" }` for the table, or `dense = false`",
            );
        }
        if let Some((key, reason)) = self.admission.problem() {
            return at(&format!("admission.{key}"), reason);
        }
        if let Some((key, reason)) = self.eviction.problem() {
            return at(&format!("eviction.{key}"), reason);
        }
        match self.life_problem() {
            Some((key, reason)) => at(&key, &reason),
            None => Ok(()),
        }
    }

    fn validate_segment(&self, segment: &SegmentSpec) -> Result<()> {
        let at = |key: &str, reason: &str| {
            let key = format!("tables.{}.{}.{key}", self.name, segment.name);
            Err(Error::Spec { key, reason: reason.to_owned() })
        };
        if segment.dim == 0 || segment.dim > MAX_DIM {
            return at("dim", "must be between 1 and 65536");
        }
        if let Some((key, reason)) = segment.initializer.problem() {
            return at(&format!("initializer.{key}"), reason);
        }
        if let Some((key, reason)) = segment.optimizer.problem() {
            return at(&format!("optimizer.{key}"), reason);
        }
        if !segment.l2.is_finite() || segment.l2 < 0.0 {
            return at("l2", "must be zero or a positive number");
        }
        if !self.dense && segment.l2_scope == Some(Scope::Table) {
            return at(
                "l2_scope",
                "a dynamic table cannot pull on every row at every step, it has no fixed set of them; \
                 set `dense = true` for the table (with `max_rows`), or `l2_scope = \"touched\"`",
            );
        }
        self.validate_scope(segment)?;
        if let Some((key, reason)) = segment.clip.and_then(|clip| clip.problem()) {
            return at(key, reason);
        }
        let Some(bounds) = segment.bounds else { return Ok(()) };
        if let Some(reason) = bounds.problem() {
            return at("bounds", reason);
        }
        let inward = self.dtype.inward(bounds);
        if inward.low > inward.high {
            let dtype = self.dtype.name();
            return at(
                "bounds",
                &format!("no number of {dtype}, the table's `dtype`, lies between them"),
            );
        }
        Ok(())
    }

    /// Which rows a rule moves must be possible, and go together with the regulariser.
    fn validate_scope(&self, segment: &SegmentSpec) -> Result<()> {
        let at = |reason: String| {
            let key = format!("tables.{}.{}.optimizer.scope", self.name, segment.name);
            Err(Error::Spec { key, reason })
        };
        let rule = match segment.optimizer {
            OptimizerSpec::Adam { .. } => "Adam",
            _ => "momentum",
        };
        match segment.optimizer.scope() {
            Some(Some(Scope::Touched)) if self.l2_is_whole(segment) => at(format!(
                "a regulariser over the whole table gives every row a gradient, so {rule} cannot be lazy \
                 here; set `l2_scope = \"touched\"`, or leave `scope` out for exact {rule}"
            )),
            Some(Some(Scope::Table)) if !self.dense => at(format!(
                "exact {rule} moves every row at every step, and a dynamic table has no fixed set of \
                 them; set `dense = true` for the table (with `max_rows`), or `scope = \"touched\"` \
                 for lazy {rule}"
            )),
            _ => Ok(()),
        }
    }
}

/// Names become folder names, so they are kept to what every file system takes.
fn name_problem(name: &str) -> Option<&'static str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        Some("must not be empty")
    } else if name.len() > 128 {
        Some("must have at most 128 characters")
    } else if name.starts_with('.') {
        Some("must not begin with a dot")
    } else if !name.chars().all(legal) {
        Some("may hold letters, digits, `_`, `-` and `.` only: it becomes a folder's name")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
