//! The checks of a table's settings.

use super::{
    Admission, ByteSize, Eviction, OptimizerSpec, Scope, SegmentSpec, TableClock, TableSpec,
};
use crate::error::{Error, Result};
use crate::layout::HotRule;
use crate::row_type::RowType;

/// The largest number of floats of a segment. A larger number is refused, because it must be a
/// mistake.
const MAX_DIM: usize = 1 << 16;

impl TableSpec {
    /// Checks every setting of the table.
    ///
    /// # Errors
    /// Returns [`Error::Spec`] with the path of the setting (`tables.<table>.<key>`) and the
    /// remedy, if a setting is out of range or contradicts another setting.
    pub fn validate(&self) -> Result<()> {
        if let Some(reason) = name_problem(&self.name) {
            return self.refuse("name", reason);
        }
        if self.segments.is_empty() {
            return self.refuse("segments", "must have at least one segment");
        }
        let limits = [self.max_rows, self.row_limit()];
        if limits.into_iter().flatten().any(|n| n == 0 || n > u64::from(u32::MAX) / 2) {
            return self.refuse("max_rows", "must be between 1 and 2147483647");
        }
        self.validate_life()?;
        for (index, segment) in self.segments.iter().enumerate() {
            if let Some(reason) = name_problem(&segment.name) {
                return self.refuse(&format!("segments.{index}.name"), reason);
            }
            if self.segments[..index].iter().any(|s| s.name == segment.name) {
                let reason = "must be different from the names of the other segments";
                return self.refuse(&format!("segments.{index}.name"), reason);
            }
            self.validate_segment(segment)?;
        }
        if self.published == RowType::Int8 && self.grow.is_some_and(|grow| !grow.is_off()) {
            let reason = format!(
                "rows of table `{}` begin narrow, and a narrow row has no weights to which the \
                 scale of int8 could belong; use `f16` or `bf16`, or set `grow = {{ at = 1 }}` \
                 for the table",
                self.name
            );
            return Err(Error::Spec { key: "publish.rows".to_owned(), reason });
        }
        if self.hot_keys > HotRule::MAX_KEYS {
            let reason = format!("must be at most {}", HotRule::MAX_KEYS);
            return Err(Error::Spec { key: "publish.hot_keys".to_owned(), reason });
        }
        match self.growth_problem() {
            Some((key, reason)) => self.refuse(key, reason),
            None => Ok(()),
        }
    }

    /// Returns the error for a wrong setting of the table.
    fn refuse(&self, key: &str, reason: impl Into<String>) -> Result<()> {
        let key = format!("tables.{}.{key}", self.name);
        Err(Error::Spec { key, reason: reason.into() })
    }

    /// Returns the error for a problem in the section `section` of the table, or `Ok` if there is
    /// no problem.
    fn refuse_any(&self, section: &str, problem: Option<(&str, &str)>) -> Result<()> {
        problem.map_or(Ok(()), |(key, reason)| self.refuse(&format!("{section}.{key}"), reason))
    }

    /// Checks that the rows of the table can be spilled to disk.
    ///
    /// # Errors
    /// Returns [`Error::Spec`] with the reason and the remedy if the rows cannot be spilled.
    pub fn check_spill(&self) -> Result<()> {
        let reason = if self.dense {
            "rows of a dense table must stay in memory, because its rules may update every row at every step; make the \
             table dynamic (`dense = false`), or remove this setting"
        } else if !self.eviction.is_never() {
            "eviction must read every row of a table, but a table that spills has rows on disk; set \
             `eviction = { kind = \"never\" }` for the table, or remove this setting"
        } else if self.grow.is_some() {
            "records on disk have one size, but the rows of this table begin narrow; set `grow = { at = 1 }` for the \
             table, or remove this setting"
        } else {
            return Ok(());
        };
        Err(Error::Spec { key: format!("run.spill.{}", self.name), reason: reason.to_owned() })
    }

    /// Checks the settings of admission and eviction, and the settings that they depend on.
    fn validate_life(&self) -> Result<()> {
        if self.dense && !self.admission.is_all() {
            return self.refuse(
                "admission",
                "a dense table has all rows of its vocabulary from the start; remove this setting, set \
                 `admission = { kind = \"all\" }` for the table, or set `dense = false`",
            );
        }
        if self.dense && !self.eviction.is_never() {
            return self.refuse(
                "eviction",
                "a dense table keeps all rows of its vocabulary; remove this setting, set \
                 `eviction = { kind = \"never\" }` for the table, or set `dense = false`",
            );
        }
        self.refuse_any("admission", self.admission.problem())?;
        self.refuse_any("eviction", self.eviction.problem())?;
        if self.dense {
            if self.max_bytes.is_some() {
                return self.refuse(
                    "max_bytes",
                    "a dense table keeps the rows of its vocabulary and is limited by `max_rows`; set `max_rows` \
                     instead, or set `dense = false`",
                );
            }
            if self.statistics.is_some() {
                return self.refuse(
                    "statistics",
                    "shows and clicks decide which rows are evicted, but a dense table keeps its rows; remove \
                     `statistics`, or set `dense = false`",
                );
            }
        }
        if !self.pinned.is_empty() && (self.dense || self.eviction.is_never()) {
            return self.refuse(
                "pinned",
                "no row of this table is ever evicted, so `pinned` has no effect; set an \
                 `eviction`, or remove `pinned`",
            );
        }
        self.refuse_any("statistics", self.statistics.and_then(|s| s.problem()))?;
        if matches!(self.eviction, Eviction::Score { .. }) && self.statistics.is_none() {
            return self.refuse(
                "eviction",
                "a score is computed from shows and clicks, which this table does not keep; add \
                 `statistics = { decay = 0.98, every_steps = 10000 }`",
            );
        }
        self.validate_clock()?;
        let no_row = self.most_rows() == Some(0) && self.max_bytes.is_some();
        if no_row || self.candidates_in_slot() == Some(0) {
            let least = self.least_bytes();
            let reason = format!("is too small for one row; set at least {least} bytes");
            return self.refuse("max_bytes", reason);
        }
        Ok(())
    }

    /// Checks that all spans of the table have the same unit. A row has the time of its last push
    /// in one unit.
    fn validate_clock(&self) -> Result<()> {
        if self.admission_window.is_some()
            && !matches!(self.admission, Admission::Count { .. } | Admission::Bloom { .. })
        {
            return self.refuse(
                "admission_window",
                "has no effect, because the table counts no waiting ids; set `admission` to the \
                 kind `count` or `bloom`, or remove `admission_window`",
            );
        }
        if self.clock() == TableClock::Steps {
            return Ok(());
        }
        let eviction = self.eviction.age().map(|(key, span)| (format!("eviction.{key}"), span));
        let statistics = self.statistics.map(|s| ("statistics.every_steps".to_owned(), s.period));
        for (key, span) in eviction.into_iter().chain(statistics) {
            if span.clock() == TableClock::Steps {
                let remedy = match self.eviction {
                    Eviction::Unseen { .. } if key.starts_with("eviction") => {
                        "set `eviction = { kind = \"unseen_for\", span = \"7 days\" }`"
                    }
                    _ if key.starts_with("eviction") => {
                        "write for example `half_life = \"3 days\"`"
                    }
                    _ => "write for example `every = \"1 day\"` instead of `every_steps`",
                };
                let reason = format!(
                    "is a number of steps, but another span of this table is in event time, and \
                     the rows of a table age in one unit; {remedy}"
                );
                return self.refuse(&key, &reason);
            }
        }
        Ok(())
    }

    fn validate_segment(&self, segment: &SegmentSpec) -> Result<()> {
        let name = &segment.name;
        let at = |key: &str, reason: &str| self.refuse(&format!("{name}.{key}"), reason);
        if segment.dim == 0 || segment.dim > MAX_DIM {
            return at("dim", "must be between 1 and 65536");
        }
        self.refuse_any(&format!("{name}.initializer"), segment.initializer.problem())?;
        self.refuse_any(&format!("{name}.optimizer"), segment.optimizer.problem())?;
        if !segment.l2.is_finite() || segment.l2 < 0.0 {
            return at("l2", "must be zero or a positive number");
        }
        if !self.dense && segment.l2_scope == Some(Scope::Table) {
            return at(
                "l2_scope",
                "a dynamic table has no fixed set of rows, so a step cannot update every row; set \
                 `dense = true` for the table (with `max_rows`), or `l2_scope = \"touched\"`",
            );
        }
        self.validate_scope(segment)?;
        self.refuse_any(name, segment.clip.and_then(|clip| clip.problem()))?;
        let Some(bounds) = segment.bounds else { return Ok(()) };
        if let Some(reason) = bounds.problem() {
            return at("bounds", reason);
        }
        let inward = self.dtype.inward(bounds);
        if inward.low > inward.high {
            let dtype = self.dtype.name();
            return at(
                "bounds",
                &format!(
                    "no number of {dtype}, the table's `dtype`, lies between the bounds; widen them"
                ),
            );
        }
        Ok(())
    }

    /// Checks that the scope of the optimizer is possible in this table and agrees with the scope
    /// of the regulariser.
    fn validate_scope(&self, segment: &SegmentSpec) -> Result<()> {
        let at = |reason: String| self.refuse(&format!("{}.optimizer.scope", segment.name), reason);
        let rule = match segment.optimizer {
            OptimizerSpec::Adam { .. } => "Adam",
            _ => "momentum",
        };
        match segment.optimizer.scope() {
            Some(Some(Scope::Touched)) if self.l2_is_whole(segment) => at(format!(
                "a regulariser over the whole table gives every row a gradient, so {rule} cannot \
                 be lazy here; set `l2_scope = \"touched\"`, or remove `scope` for exact {rule}"
            )),
            Some(Some(Scope::Table)) if !self.dense => at(format!(
                "exact {rule} updates every row at every step, but a dynamic table has no fixed set of rows; \
                 set `dense = true` for the table (with `max_rows`), or `scope = \"touched\"` for lazy {rule}"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the smallest `max_bytes` that lets the table hold one row.
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

/// Returns the reason why a name is not valid, or `None` if it is valid. Names become folder names,
/// so only characters that every file system accepts are allowed.
fn name_problem(name: &str) -> Option<&'static str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        Some("must not be empty")
    } else if name.len() > 128 {
        Some("must have at most 128 characters")
    } else if name.starts_with('.') {
        Some("must not begin with a dot")
    } else if !name.chars().all(legal) {
        Some(
            "must contain only letters, digits, `_`, `-` and `.`, because it becomes the name of a folder",
        )
    } else {
        None
    }
}
