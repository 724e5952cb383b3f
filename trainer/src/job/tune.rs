//! The `[tune]` section: the trials of a job with other settings. Training ignores the section.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use zillion_config::{ConfigError, from_value};

use crate::error::Result;

/// The largest number of trials, which bounds the state of a tune.
const MOST_TRIALS: usize = 10_000;
/// The keys by which a table in `tune.space` is a range, and not a part of the path of a key.
const RANGE_KEYS: [&str; 4] = ["choices", "low", "high", "log"];

/// The `[tune]` section: the number of trials, their schedule and their space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TuneConfig {
    /// The number of trials. The first one is the job as written.
    pub trials: NonZeroUsize,
    /// The number by which the resource of a trial grows from rung to rung, and by which the number
    /// of trials falls; at least 2.
    pub factor: u64,
    /// The resource that grows; absent: epochs, or rows if the job has too few epochs for a second
    /// rung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<TuneResource>,
    /// The seed of the values that are drawn; absent: the seed of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The ranges of keys of the job; empty: the default space of the job's model. A key is a
    /// quoted dotted path, or a path of tables.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub space: Table,
}

/// The resource that grows from rung to rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneResource {
    /// The number of epochs. A trial of the next rung goes on from its own checkpoint.
    Epochs,
    /// The share of the training rows. A trial of the next rung begins again with more rows.
    Rows,
}

/// The range of a key of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneRange {
    /// The names on the path from the root of the job to the key.
    pub path: Vec<String>,
    /// The values that the key may have.
    pub values: TuneValues,
}

/// The values that a key may have.
#[derive(Clone, Debug, PartialEq)]
pub enum TuneValues {
    /// The values that the job lists.
    Choices(Vec<Value>),
    /// The numbers from `low` to `high`.
    Numbers {
        /// The smallest number of the range.
        low: f64,
        /// The largest number of the range, above `low`.
        high: f64,
        /// Whether the logarithms of the numbers are equally likely, instead of the numbers.
        is_log: bool,
        /// Whether only whole numbers are drawn, because both ends are whole numbers without a
        /// point.
        is_whole: bool,
    },
}

/// A range as a job writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenRange {
    choices: Option<Vec<Value>>,
    low: Option<Value>,
    high: Option<Value>,
    log: Option<bool>,
}

impl Default for TuneConfig {
    fn default() -> Self {
        let trials = NonZeroUsize::new(12).expect("a literal above zero");
        Self { trials, factor: 3, resource: None, seed: None, space: Table::new() }
    }
}

impl TuneConfig {
    /// Returns the ranges of the space, in the order of the job file.
    ///
    /// # Errors
    /// Returns an error that names the key if a range is empty or not written as a range, or if two
    /// ranges have the same key.
    pub fn ranges(&self) -> Result<Vec<TuneRange>> {
        let mut ranges: Vec<TuneRange> = Vec::new();
        collect(&[], &self.space, &mut ranges)?;
        for (at, range) in ranges.iter().enumerate() {
            if ranges[..at].iter().any(|other| other.path == range.path) {
                return Err(refuse(&range.path, "has two ranges; remove one").into());
            }
        }
        Ok(ranges)
    }

    /// Checks the settings that do not depend on the rest of the job.
    pub(super) fn check(&self) -> Result<()> {
        if self.trials.get() > MOST_TRIALS {
            let reason = format!("must be 1 to {MOST_TRIALS}, found {}", self.trials);
            return Err(ConfigError::at("tune.trials", reason).into());
        }
        if self.factor < 2 {
            let reason = format!("must be at least 2, found {}", self.factor);
            return Err(ConfigError::at("tune.factor", reason).into());
        }
        self.ranges().map(drop)
    }
}

impl TuneRange {
    /// Returns the dotted key. A name with a dot in it is quoted.
    pub fn key(&self) -> String {
        join(&self.path)
    }
}

/// Collects the ranges of a table in the space, whose path is `path`.
fn collect(path: &[String], table: &Table, ranges: &mut Vec<TuneRange>) -> Result<()> {
    for (key, value) in table {
        let mut path = path.to_vec();
        path.extend(split(key));
        let Value::Table(inner) = value else {
            let reason = format!(
                "is {}, but needs a range; write {{ choices = [..] }} or {{ low = .., high = .. }}",
                value.type_str()
            );
            return Err(refuse(&path, reason).into());
        };
        if inner.is_empty() {
            let reason = "has an empty range; write `choices`, or `low` and `high`";
            return Err(refuse(&path, reason).into());
        }
        if inner.keys().any(|key| RANGE_KEYS.contains(&key.as_str())) {
            let written: WrittenRange = from_value(value, "")
                .map_err(|error| error.under(&join(&path)).under("tune.space"))?;
            ranges.push(TuneRange { values: written.values(&path)?, path });
        } else {
            collect(&path, inner, ranges)?;
        }
    }
    Ok(())
}

impl WrittenRange {
    fn values(self, path: &[String]) -> std::result::Result<TuneValues, ConfigError> {
        let refused = |reason: &str| refuse(path, reason);
        match self {
            Self { choices: Some(choices), low: None, high: None, log: None } => {
                match choices.as_slice() {
                    [] => Err(refused("has no choice; list at least one value in `choices`")),
                    _ => Ok(TuneValues::Choices(choices)),
                }
            }
            Self { choices: Some(_), .. } => Err(refused(
                "has `choices` beside `low`, `high` or `log`; remove the one or the other",
            )),
            Self { low: Some(low), high: Some(high), log, .. } => {
                let is_whole = low.is_integer() && high.is_integer();
                let (Some(low), Some(high)) = (read_number(&low), read_number(&high)) else {
                    return Err(refused(
                        "must have finite numbers in `low` and `high`; write other values as `choices`",
                    ));
                };
                let is_log = log.unwrap_or_default();
                if low >= high {
                    let reason = format!(
                        "is empty, because `low` is {low} and `high` is {high}; `low` must be below `high`"
                    );
                    return Err(refused(&reason));
                }
                if is_log && low <= 0.0 {
                    let reason = format!(
                        "has `log = true`, which needs numbers above 0, but `low` is {low}"
                    );
                    return Err(refused(&reason));
                }
                Ok(TuneValues::Numbers { low, high, is_log, is_whole })
            }
            _ => Err(refused("needs both `low` and `high`, or `choices`")),
        }
    }
}

fn read_number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

fn refuse(path: &[String], reason: impl Into<String>) -> ConfigError {
    ConfigError::at("", reason).under(&join(path)).under("tune.space")
}

/// Splits a dotted key into its names. A dot between double quotes belongs to a name.
fn split(key: &str) -> Vec<String> {
    let (mut names, mut name, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in key.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => names.push(std::mem::take(&mut name)),
            _ => name.push(letter),
        }
    }
    names.push(name);
    names
}

fn join(path: &[String]) -> String {
    let quoted = |name: &String| match name.contains('.') {
        true => format!("\"{name}\""),
        false => name.clone(),
    };
    path.iter().map(quoted).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::super::smallest;
    use super::*;

    fn ranges(text: &str) -> Vec<TuneRange> {
        let job = smallest::read(text).unwrap_or_else(|error| panic!("{error}"));
        job.tune.expect("a section").ranges().expect("it was checked")
    }

    #[test]
    fn a_key_is_a_quoted_path_or_a_path_of_tables() {
        let found = ranges(
            "[tune]\ntrials = 5\n[tune.space]\n\"tables.*.dim\" = { choices = [4, 8] }\n\
             train.batch_size = { low = 10, high = 100 }\n\
             'tables.\"a.b\".l2' = { low = 1e-6, high = 1e-2, log = true }\n",
        );
        let keys: Vec<String> = found.iter().map(TuneRange::key).collect();
        assert_eq!(keys.len(), 3);
        let of = |key: &str| {
            let range = found.iter().find(|range| range.key() == key).expect("the key is there");
            range.values.clone()
        };
        let choices = vec![Value::Integer(4), Value::Integer(8)];
        assert_eq!(of("tables.*.dim"), TuneValues::Choices(choices));
        let whole = TuneValues::Numbers { low: 10.0, high: 100.0, is_log: false, is_whole: true };
        assert_eq!(of("train.batch_size"), whole);
        let log = TuneValues::Numbers { low: 1e-6, high: 1e-2, is_log: true, is_whole: false };
        assert_eq!(of("tables.\"a.b\".l2"), log);
    }

    #[test]
    fn the_section_is_printed_and_not_part_of_a_checkpoint() {
        let text = "[tune]\ntrials = 5\n[tune.space]\n\"tables.*.dim\" = { choices = [4, 8] }\n";
        let job = smallest::read(text).expect("it is right");
        let printed = job.in_force().expect("it prints");
        assert!(printed.contains("trials = 5") && printed.contains("tables.*.dim"), "{printed}");
        let again: Table = printed.parse().expect("TOML");
        let again = super::super::Job::from_value(again.into()).expect("a job");
        assert_eq!(again.tune, job.tune);
        assert!(job.portable().expect("a job").get("tune").is_none());
    }

    #[test]
    fn a_wrong_range_is_refused_by_its_key() {
        for (line, words) in [
            ("trials = 0", "tune.trials"),
            ("trials = 100000", "`tune.trials`: must be 1 to 10000"),
            ("factor = 1", "`tune.factor`: must be at least 2"),
            ("trails = 3", "did you mean `trials`?"),
            ("resource = 'epoch'", "did you mean `epochs`?"),
            (
                "space.'train.epochs' = 3",
                "`tune.space.train.epochs`: is integer, but needs a range",
            ),
            ("space.'a.b' = { choices = [] }", "`tune.space.a.b`: has no choice"),
            ("space.a.b = {}", "`tune.space.a.b`: has an empty range"),
            ("space.a = { low = 2, high = 2 }", "`tune.space.a`: is empty"),
            ("space.a = { low = 2 }", "needs both `low` and `high`"),
            ("space.a = { low = 'x', high = 2 }", "finite numbers"),
            ("space.a = { low = 0, high = 2, log = true }", "needs numbers above 0"),
            ("space.a = { choices = [1], log = true }", "`choices` beside"),
            ("space.a = { low = 1, high = 2, logg = true }", "did you mean `log`?"),
            ("space = { a.b = { choices = [1] }, 'a.b' = { choices = [2] } }", "has two ranges"),
        ] {
            let error = smallest::read(&format!("[tune]\n{line}\n")).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
