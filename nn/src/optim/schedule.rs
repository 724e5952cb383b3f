//! The learning-rate schedule by steps: a linear warm-up, followed by a decay.
//!
//! The factor depends only on the step. So a checkpoint does not store the schedule, and a resumed
//! run computes the same bits. The learning rates of the dense parameters and, by default, those of
//! the tables are multiplied by this factor. If there is also a plateau schedule, they are
//! multiplied by its factor too.

use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, factor, not_negative, share};

/// The settings of the schedule by steps, as a job writes them: `{ warmup_steps = 1000, decay = {
/// kind = "cosine", steps = 50000 } }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// The number of steps in which the rate grows linearly. The last of these steps has the full
    /// rate. With 0, the rate has its full value until the decay begins.
    pub warmup_steps: u64,
    /// The rate at the start of the warm-up, as a share of the full rate.
    #[serde(deserialize_with = "share")]
    pub warmup_from: f64,
    /// The rule that lowers the rate after the warm-up. If it is `None`, the rate stays at its full
    /// value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<Decay>,
    /// Whether the rates of tables follow the schedule too.
    pub tables: bool,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self { warmup_steps: 0, warmup_from: 0.0, decay: None, tables: true }
    }
}

/// A rule that lowers the rate. Steps are counted after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// A decay by half a cosine, from the full rate to the share `to` of the full rate (Loshchilov,
    /// Hutter 2017, without restarts): `to + (1 - to) * (1 + cos(pi * n / steps)) / 2`. After
    /// `steps` steps, the rate stays at this share.
    Cosine {
        /// The number of steps until the rate has reached `to`.
        #[serde(deserialize_with = "at_least_one")]
        steps: u64,
        /// The share of the full rate at which the decay ends.
        #[serde(default = "default_to", deserialize_with = "factor")]
        to: f64,
    },
    /// A decay by a straight line, from the full rate to the share `to` of the full rate. After
    /// `steps` steps, the rate stays at this share.
    Linear {
        /// The number of steps until the rate has reached `to`.
        #[serde(deserialize_with = "at_least_one")]
        steps: u64,
        /// The share of the full rate at which the decay ends.
        #[serde(default = "default_to", deserialize_with = "factor")]
        to: f64,
    },
    /// A decay at intervals: the share is `factor ^ floor(n / every)`, but never below `floor`.
    Step {
        /// The interval between two changes of the rate, in steps.
        #[serde(deserialize_with = "at_least_one")]
        every: u64,
        /// The number by which each change multiplies the rate.
        #[serde(default = "default_factor", deserialize_with = "factor")]
        factor: f64,
        /// The minimum share of the full rate.
        #[serde(default, deserialize_with = "not_negative")]
        floor: f64,
    },
}

impl ScheduleSpec {
    /// Returns the factor of the learning rate in step `step` of the run, counted from 1. The
    /// factor is always above 0.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup_steps {
            let done = step as f64 / self.warmup_steps as f64;
            return self.warmup_from + (1.0 - self.warmup_from) * done;
        }
        // The first step after the warm-up has the full rate.
        let behind = step.saturating_sub(self.warmup_steps + 1);
        self.decay.map_or(1.0, |decay| decay.after(behind))
    }

    /// Returns the key of the first invalid setting and the reason, or `None` if all settings are
    /// valid.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        if self.warmup_steps == 0 && self.decay.is_none() {
            return Some((
                "",
                "has neither `warmup_steps` nor `decay` and changes nothing; set one, or remove it",
            ));
        }
        if self.warmup_steps == 0 && self.warmup_from != 0.0 {
            return Some((
                "warmup_from",
                "has no effect without `warmup_steps`; set `warmup_steps`, or remove it",
            ));
        }
        match self.decay {
            Some(Decay::Step { floor, .. }) if floor > 1.0 => {
                Some(("decay.floor", "is a share of the rate and must be at most 1"))
            }
            _ => None,
        }
    }
}

impl Decay {
    /// Returns the factor in the `n`th step after the warm-up, counted from 0.
    fn after(self, n: u64) -> f64 {
        let share = |steps: u64| n.min(steps) as f64 / steps as f64;
        match self {
            Self::Cosine { steps, to } => {
                let falling = 0.5 * (1.0 + (std::f64::consts::PI * share(steps)).cos());
                to + (1.0 - to) * falling
            }
            Self::Linear { steps, to } => to + (1.0 - to) * (1.0 - share(steps)),
            Self::Step { every, factor, floor } => {
                // A rate of 0 would be invalid. This minimum is far below any rate that changes a
                // weight.
                factor.powf((n / every) as f64).max(floor).max(f64::from(f32::MIN_POSITIVE))
            }
        }
    }
}

fn default_to() -> f64 {
    0.01
}
fn default_factor() -> f64 {
    0.1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(text: &str) -> ScheduleSpec {
        toml::from_str(text).unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }

    #[test]
    fn warms_up_and_then_falls_along_a_cosine() {
        let spec = spec("warmup_steps = 4\ndecay = { kind = 'cosine', steps = 10, to = 0.1 }");
        let warm: Vec<f64> = (1..=5).map(|step| spec.at(step)).collect();
        assert_eq!(warm, [0.25, 0.5, 0.75, 1.0, 1.0]);
        // In the middle, the factor is half way between 1 and 0.1. From the end on, it stays at
        // 0.1.
        close(spec.at(10), 0.55);
        close(spec.at(5 + 2), 0.1 + 0.9 * 0.5 * (1.0 + (0.2 * std::f64::consts::PI).cos()));
        close(spec.at(15), 0.1);
        close(spec.at(1_000_000), 0.1);
    }

    #[test]
    fn falls_by_steps_and_lines() {
        let steps = spec("decay = { kind = 'step', every = 3, factor = 0.5, floor = 0.2 }");
        let found: Vec<f64> = (1..=10).map(|step| steps.at(step)).collect();
        assert_eq!(found, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2]);
        let line = spec("decay = { kind = 'linear', steps = 4, to = 0.2 }");
        for (step, expected) in [(1, 1.0), (2, 0.8), (3, 0.6), (5, 0.2), (99, 0.2)] {
            close(line.at(step), expected);
        }
        let warm = spec("warmup_steps = 2\nwarmup_from = 0.5");
        assert_eq!([warm.at(1), warm.at(2), warm.at(3), warm.at(500)], [0.75, 1.0, 1.0, 1.0]);
    }

    proptest! {
        /// Checks that the factor is always a valid rate. Tables refuse a rate that is 0, negative,
        /// or not a number.
        #[test]
        fn is_always_a_rate(
            warmup in 0u64..100, from in 0.0f64..=1.0, steps in 1u64..1000, to in 1e-6f64..=1.0,
            step in 1u64..100_000, kind in 0..3,
        ) {
            let decay = match kind {
                0 => Decay::Cosine { steps, to },
                1 => Decay::Linear { steps, to },
                _ => Decay::Step { every: steps, factor: to, floor: 0.0 },
            };
            let spec = ScheduleSpec {
                warmup_steps: warmup, warmup_from: from, decay: Some(decay), tables: true,
            };
            let found = spec.at(step) as f32;
            prop_assert!(found > 0.0 && found <= 1.0, "{}", found);
            prop_assert!(spec.at(step + 1) <= spec.at(step).max(1e-30) || step <= warmup);
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for bad in [
            "decay = { kind = 'cosine' }",
            "decay = { kind = 'cosine', steps = 0 }",
            "decay = { kind = 'cosine', steps = 5, to = 0 }",
            "decay = { kind = 'step', every = 5, factor = 1.5 }",
            "decay = { kind = 'exponential', steps = 5 }",
            "warmup_from = -0.1",
            "warmup = 5",
        ] {
            assert!(toml::from_str::<ScheduleSpec>(bad).is_err(), "{bad}");
        }
        assert_eq!(spec("").problem().unwrap().0, "");
        assert_eq!(
            spec("warmup_from = 0.5\ndecay = { kind = 'linear', steps = 1 }").problem().unwrap().0,
            "warmup_from"
        );
        let floor = spec("decay = { kind = 'step', every = 5, floor = 2 }");
        assert_eq!(floor.problem().unwrap().0, "decay.floor");
        let good = spec("warmup_steps = 5\ntables = false");
        assert_eq!(good.problem(), None);
        assert_eq!(toml::from_str::<ScheduleSpec>(&toml::to_string(&good).unwrap()).unwrap(), good);
    }
}
