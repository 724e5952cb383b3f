//! Checks of a table's settings.

use super::{ByteSize, Eviction, OptimizerSpec, Scope, SegmentSpec, TableSpec};
use crate::error::{Error, Result};

/// The largest number of floats of a segment; more is taken for a mistake.
const MAX_DIM: usize = 1 << 16;

impl TableSpec {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::Spec`] names the setting (`tables.<table>.<key>`) and the remedy.
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

    /// Refuses a table whose rows cannot leave memory.
    ///
    /// # Errors
    /// [`Error::Spec`] names the reason and the remedy.
    pub fn check_spill(&self) -> Result<()> {
        let reason = if self.dense {
            "a dense table has every row in memory, because its rules may move every row at every step; make the table \
             dynamic (`dense = false`), or remove this"
        } else if !self.eviction.is_never() {
            "eviction looks at every row of a table, in memory and on disk; set `eviction = { kind = \"never\" }` for \
             the table, or remove this"
        } else if self.grow.is_some() {
            "records on disk are of one size, and the rows of this table begin narrow; set `grow = { at = 1 }` for the \
             table, or remove this"
        } else {
            return Ok(());
        };
        Err(Error::Spec { key: format!("run.spill.{}", self.name), reason: reason.to_owned() })
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

    /// Checks that the rows that a rule moves are possible, and go together with the regulariser.
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

    /// Returns the key and the reason of a setting of admission or eviction that does not fit the
    /// others.
    pub(crate) fn life_problem(&self) -> Option<(String, String)> {
        let problem = |key: &str, reason: &str| Some((key.to_owned(), reason.to_owned()));
        if self.dense {
            if self.max_bytes.is_some() {
                return problem(
                    "max_bytes",
                    "a dense table keeps the rows of its vocabulary and is capped by `max_rows`; use that, or set \
                     `dense = false`",
                );
            }
            if self.statistics.is_some() {
                return problem(
                    "statistics",
                    "shows and clicks say which rows may go, and a dense table keeps its rows; remove this, or set \
                     `dense = false`",
                );
            }
        }
        if !self.pinned.is_empty() && (self.dense || self.eviction.is_never()) {
            return problem(
                "pinned",
                "no row of this table is ever evicted, so that this would do nothing; set an `eviction`, or \
                 remove it",
            );
        }
        if let Some((key, reason)) = self.statistics.as_ref().and_then(|s| s.problem()) {
            return problem(&format!("statistics.{key}"), reason);
        }
        if matches!(self.eviction, Eviction::Score { .. }) && self.statistics.is_none() {
            return problem(
                "eviction",
                "a score is made of shows and clicks, which this table does not keep; set \
                 `statistics = { decay = 0.98, every_steps = 10000 }` beside it",
            );
        }
        let no_row = self.most_rows() == Some(0) && self.max_bytes.is_some();
        if no_row || self.candidates_in_slot() == Some(0) {
            let least = self.least_bytes();
            let reason = format!("is too small for a single row; set at least {least} bytes");
            return Some(("max_bytes".to_owned(), reason));
        }
        None
    }

    /// Returns the smallest `max_bytes` that holds a row.
    fn least_bytes(&self) -> u64 {
        let enough = |bytes: u64| {
            let spec = Self { max_bytes: Some(ByteSize(bytes)), ..self.clone() };
            spec.most_rows() > Some(0) && spec.candidates_in_slot() != Some(0)
        };
        let mut bytes = 1 << 16;
        while !enough(bytes) && bytes < 1 << 60 {
            bytes *= 2;
        }
        bytes
    }
}

/// Returns the reason why a name is not valid. Names become folder names, so they are kept to
/// characters that every file system takes.
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
