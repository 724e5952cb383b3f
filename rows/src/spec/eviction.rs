//! When a row goes, and what a table keeps of the uses of its rows.

use serde::{Deserialize, Serialize};

/// When a row goes. In a job file: `eviction = { kind = "unseen", steps = 10000 }`.
///
/// Where the table has a limit (`max_rows`, `max_bytes`), every kind but `never` makes room: the least rows go.
/// `below` makes rows go on schedule too: those that are worth less, at their slot's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// Never. A table at its limit refuses new keys.
    #[default]
    Never,
    /// When its last push lies more than a number of steps back; a key that waits to be admitted is
    /// forgotten by the same rule. Every step visits some of the slots, so that each is visited once in as
    /// many steps, or in 4096 if that is sooner: what has expired is gone by then. A key that is seen again
    /// is new. At capacity those go first that were not seen for longest.
    Unseen {
        /// Steps, from 1.
        steps: u64,
    },
    /// At capacity, those that were not seen for longest.
    Lru,
    /// Those that are used least: pushes, counted half for every `half_life` steps since the last one.
    Lfu {
        /// Steps, from 1.
        half_life: u64,
        /// On schedule: rows go whose count has aged to less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// Steps in which every row is looked at once for that; 4096 where absent, and at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Those with the lowest score, `show_weight * shows + click_weight * clicks`, decayed as the table's
    /// statistics say.
    Score {
        /// What a show is worth, from 0.
        show_weight: f64,
        /// What a click is worth, from 0.
        click_weight: f64,
        /// On schedule: rows go whose score is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// As with `lfu`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Those whose weights have the smallest L2 norm, all segments together.
    L2 {
        /// On schedule: rows go whose norm is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// As with `lfu`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
}

/// Shows and clicks of each row, decayed by periods. In a job file: `statistics = { decay = 0.98, every_steps = 5000 }`.
///
/// Periods are counted in steps and not in time: the step of a row's last push is in its metadata anyway, so that
/// decay needs no clock and no further word a row, and a run that is repeated decays alike. A day is as many steps
/// as a day's data take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseStatistics {
    /// What is left of shows and clicks after a period: above 0, at most 1.
    pub decay: f32,
    /// Steps of a period, from 1.
    pub every_steps: u32,
}

impl UseStatistics {
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !(self.decay > 0.0 && self.decay <= 1.0) {
            return Some(("decay", "must be above 0 and at most 1, which is no decay"));
        }
        (self.every_steps == 0).then_some(("every_steps", "must be at least 1"))
    }

    /// What is left at `step` of what was there at `last`, by whole periods.
    #[inline(always)]
    pub fn left(&self, last: u32, step: u32) -> f32 {
        let periods = (step / self.every_steps).saturating_sub(last / self.every_steps);
        power(self.decay.into(), periods) as f32
    }
}

/// `base^exponent` by squaring: the same bits everywhere.
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
    /// Whether rows stay for ever.
    pub fn is_never(&self) -> bool {
        *self == Self::Never
    }

    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Self::Unseen { steps: 0 } = self {
            let reason = "must be at least 1: rows go when they have not been seen for longer";
            return Some(("steps", reason));
        }
        if let Self::Lfu { half_life: 0, .. } = self {
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
                "says how often rows are held against `below`, which is not set; set it, or remove this",
            )),
            _ => None,
        }
    }

    /// The name in job files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Unseen { .. } => "unseen",
            Self::Lru => "lru",
            Self::Lfu { .. } => "lfu",
            Self::Score { .. } => "score",
            Self::L2 { .. } => "l2",
        }
    }

    /// What rows are worth less than when they go on schedule; of the kinds that rank rows.
    pub fn below(&self) -> Option<f64> {
        self.schedule().0
    }

    /// `below` and `every` of the kinds that have them.
    pub fn schedule(&self) -> (Option<f64>, Option<u64>) {
        match *self {
            Self::Never | Self::Unseen { .. } | Self::Lru => (None, None),
            Self::Lfu { below, every, .. }
            | Self::Score { below, every, .. }
            | Self::L2 { below, every } => (below, every),
        }
    }

    /// Whether rows go without a limit of the table.
    pub fn is_scheduled(&self) -> bool {
        matches!(self, Self::Unseen { .. }) || self.schedule().0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_goes_by_whole_periods() {
        let statistics = UseStatistics { decay: 0.5, every_steps: 10 };
        assert_eq!(statistics.left(19, 20), 0.5);
        assert_eq!(statistics.left(10, 19), 1.0);
        assert_eq!(statistics.left(0, 35), 0.125);
        assert_eq!(statistics.left(20, 10), 1.0);
        assert_eq!(statistics.left(0, u32::MAX), 0.0);
    }
}
