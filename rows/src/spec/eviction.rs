//! The eviction of rows: the condition under which a row is removed, and the statistics of use that
//! the condition may need.

use serde::{Deserialize, Serialize};

use super::span::{EventSpan, Span};

/// The condition under which a row is removed. In a job file: `eviction = { kind = "unseen", steps
/// = 10000 }`.
///
/// If the table has a limit (`max_rows`, `max_bytes`), every kind except `never` makes room at the
/// limit: it removes the rows with the lowest priority. If `below` is set, rows are also removed on
/// schedule: when it is the turn of a slot, the slot loses the rows with a value lower than
/// `below`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// Rows are never removed. A table at its limit refuses new keys.
    #[default]
    Never,
    /// A row is removed when its last push is more than `steps` steps ago. The count of a waiting
    /// key is dropped by the same rule. Every step visits some of the slots: each slot is visited
    /// once in `steps` steps, or once in 4096 steps if `steps` is larger. A removed key that occurs
    /// again is treated as a new key. At the limit, the rows with the oldest last push are removed
    /// first.
    Unseen {
        /// The number of steps, at least 1.
        steps: u64,
    },
    /// A row is removed when its last push is more than `span` of event time ago. The rest is as
    /// with `unseen`, but each slot is visited once in an eighth of the span.
    UnseenFor {
        /// The span of event time.
        span: EventSpan,
    },
    /// At the limit, the rows with the oldest last push are removed first.
    Lru,
    /// The rows with the fewest pushes are removed first. For this comparison, the count of pushes
    /// is halved for every `half_life` since the last push.
    Lfu {
        /// The number of steps or the span of event time after which a count is halved.
        half_life: Span,
        /// The value of the aged count below which rows are removed on schedule; absent if no row
        /// is removed on schedule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// The number of steps in which every row is compared with `below` once. 4096 is used if
        /// the setting is absent or above 4096.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// The rows with the lowest score are removed first:
    /// `show_weight * shows + click_weight * clicks`, with the decay of the table's statistics.
    Score {
        /// The weight of a show, at least 0.
        show_weight: f64,
        /// The weight of a click, at least 0.
        click_weight: f64,
        /// The score below which rows are removed on schedule; absent if no row is removed on
        /// schedule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// The number of steps in which every row is compared with `below` once. 4096 is used if
        /// the setting is absent or above 4096.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// The rows with the smallest L2 norm of their weights, over all segments, are removed first.
    L2 {
        /// The norm below which rows are removed on schedule; absent if no row is removed on
        /// schedule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// The number of steps in which every row is compared with `below` once. 4096 is used if
        /// the setting is absent or above 4096.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
}

/// The settings of the statistics of shows and clicks that each row has. The statistics decay by
/// periods. In a job file: `statistics = { decay = 0.98, every_steps = 5000 }`, or
/// `statistics = { decay = 0.98, every = "1 day" }`.
///
/// Periods are counted in steps or in event time, and never by a clock. The metadata of a row
/// already have the step or the event time of its last push, so decay needs no further word per
/// row. A repeated run decays in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredStatistics", into = "StoredStatistics")]
pub struct UseStatistics {
    /// The factor by which shows and clicks are multiplied after each period, above 0 and at most
    /// 1.
    pub decay: f32,
    /// The length of a period.
    pub period: Span,
}

/// The keys of [`UseStatistics`] in a job file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredStatistics {
    decay: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_steps: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<EventSpan>,
}

impl TryFrom<StoredStatistics> for UseStatistics {
    type Error = String;

    fn try_from(stored: StoredStatistics) -> Result<Self, String> {
        let period = match (stored.every_steps, stored.every) {
            (Some(steps), None) => Span::Steps(steps.into()),
            (None, Some(span)) => Span::EventTime(span),
            (None, None) => {
                return Err("the length of a period is missing; set `every_steps = 10000`, or \
                            `every = \"1 day\"` for a period of event time"
                    .to_owned());
            }
            (Some(_), Some(_)) => {
                return Err("a period cannot be counted both in steps and in event time; remove \
                            `every_steps` or `every`"
                    .to_owned());
            }
        };
        Ok(Self { decay: stored.decay, period })
    }
}

impl From<UseStatistics> for StoredStatistics {
    fn from(statistics: UseStatistics) -> Self {
        let (every_steps, every) = match statistics.period {
            Span::Steps(steps) => (Some(u32::try_from(steps).unwrap_or(u32::MAX)), None),
            Span::EventTime(span) => (None, Some(span)),
        };
        Self { decay: statistics.decay, every_steps, every }
    }
}

impl UseStatistics {
    /// Creates the settings of statistics whose periods have a number of steps.
    pub const fn by_steps(decay: f32, steps: u32) -> Self {
        Self { decay, period: Span::Steps(steps as u64) }
    }

    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !(self.decay > 0.0 && self.decay <= 1.0) {
            return Some(("decay", "must be above 0 and at most 1 (1 means no decay)"));
        }
        (self.period == Span::Steps(0)).then_some(("every_steps", "must be at least 1"))
    }

    /// Returns the length of a period in the unit of the table's clock: steps, or seconds of event
    /// time.
    #[inline(always)]
    pub fn every(&self) -> u32 {
        u32::try_from(self.period.units()).unwrap_or(u32::MAX)
    }

    /// Returns the factor by which shows and clicks decay from `last` to `now`, which are steps or
    /// seconds of event time. The factor changes only when a whole period ends.
    #[inline(always)]
    pub fn left(&self, last: u32, now: u32) -> f32 {
        let every = self.every();
        let periods = (now / every).saturating_sub(last / every);
        power(self.decay.into(), periods) as f32
    }
}

/// Returns `base^exponent` by repeated squaring, with the same bits on every machine.
#[inline(always)]
pub(super) fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

impl Eviction {
    /// Returns whether rows are never removed.
    pub fn is_never(&self) -> bool {
        *self == Self::Never
    }

    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Self::Unseen { steps: 0 } = self {
            let reason = "must be at least 1, because rows without a push for more than this \
                          number of steps are removed";
            return Some(("steps", reason));
        }
        if let Self::Lfu { half_life: Span::Steps(0), .. } = self {
            return Some(("half_life", "must be at least 1"));
        }
        if let Self::Score { show_weight, click_weight, .. } = self {
            let is_weight = |w: f64| w.is_finite() && w >= 0.0;
            for (key, weight) in [("show_weight", *show_weight), ("click_weight", *click_weight)] {
                if !is_weight(weight) {
                    return Some((key, "must be zero or a positive number"));
                }
            }
        }
        match self.schedule() {
            (Some(below), _) if !(below.is_finite() && below > 0.0) => {
                Some(("below", "must be a positive number"))
            }
            (_, Some(0)) => Some(("every", "must be at least 1")),
            (None, Some(_)) => Some((
                "every",
                "has no effect, because `below` is not set; set `below`, or remove `every`",
            )),
            _ => None,
        }
    }

    /// Returns the span by which the kind measures the age of a row, with the name of its setting;
    /// `None` if the kind measures no age.
    pub fn age(&self) -> Option<(&'static str, Span)> {
        match *self {
            Self::Never | Self::Lru | Self::Score { .. } | Self::L2 { .. } => None,
            Self::Unseen { steps } => Some(("steps", Span::Steps(steps))),
            Self::UnseenFor { span } => Some(("span", Span::EventTime(span))),
            Self::Lfu { half_life, .. } => Some(("half_life", half_life)),
        }
    }

    /// Returns the name of the kind in job files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Unseen { .. } => "unseen",
            Self::UnseenFor { .. } => "unseen_for",
            Self::Lru => "lru",
            Self::Lfu { .. } => "lfu",
            Self::Score { .. } => "score",
            Self::L2 { .. } => "l2",
        }
    }

    /// Returns the value below which rows are removed on schedule, or `None` if no such value is
    /// set or the kind has no such setting.
    pub fn below(&self) -> Option<f64> {
        self.schedule().0
    }

    /// Returns the settings `below` and `every`. Both are `None` for a kind that does not have
    /// them.
    pub fn schedule(&self) -> (Option<f64>, Option<u64>) {
        match *self {
            Self::Never | Self::Unseen { .. } | Self::UnseenFor { .. } | Self::Lru => (None, None),
            Self::Lfu { below, every, .. }
            | Self::Score { below, every, .. }
            | Self::L2 { below, every } => (below, every),
        }
    }

    /// Returns whether the eviction removes rows in a table without a limit.
    pub fn is_scheduled(&self) -> bool {
        matches!(self, Self::Unseen { .. } | Self::UnseenFor { .. }) || self.schedule().0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_goes_by_whole_periods() {
        let statistics = UseStatistics::by_steps(0.5, 10);
        assert_eq!(statistics.left(19, 20), 0.5);
        assert_eq!(statistics.left(10, 19), 1.0);
        assert_eq!(statistics.left(0, 35), 0.125);
        assert_eq!(statistics.left(20, 10), 1.0);
        assert_eq!(statistics.left(0, u32::MAX), 0.0);
    }
}
