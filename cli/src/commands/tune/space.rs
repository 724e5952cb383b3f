//! The space of a tune: the keys that differ between trials, and the values that they may have.

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_config::ConfigError;
use zillion_feature::random;
use zillion_nn::Mode;
use zillion_trainer::{Job, TuneRange, TuneValues};

use super::assign::{assign, describe, format_value};

/// The sections and keys at the root of a job that a tune may change.
const SECTIONS: [&str; 6] = ["data", "features", "model", "seed", "tables", "train"];
/// The keys that a tune may not change, each with the reason.
const FIXED: [(&str, &str); 11] = [
    ("data.root", "is the same for all trials; remove it from the space"),
    ("data.train", "is the same for all trials; remove it from the space"),
    (
        "data.valid",
        "is the same for all trials, which are compared over it; remove it from the space",
    ),
    ("data.test", "is not read by a tune; remove it from the space"),
    ("data.sample", "is the resource of a tune in rows; remove it from the space"),
    ("data.rejects", "changes no result; remove it from the space"),
    (
        "train.epochs",
        "is the resource, and the outcome names the best epoch of each trial; remove it from the space",
    ),
    (
        "train.plateau.metric",
        "is the metric by which trials are compared; remove it from the space",
    ),
    ("train.plateau.task", "is the task by which trials are compared; remove it from the space"),
    ("train.keep", "changes no result; remove it from the space"),
    ("train.checkpoint_every", "changes no result; remove it from the space"),
];
/// The factor around the learning rate of the job in the default space.
const RATE_FACTOR: f64 = 8.0;
/// The number of draws for a trial that differs from the earlier ones. A small space of choices may
/// have fewer different trials than the job asks for.
const MOST_DRAWS: u64 = 256;

/// The space of a tune, with the job that it changes.
pub(super) struct Space {
    /// The job as written, without the section `[tune]`.
    job: Table,
    /// The same job with every default.
    resolved: Table,
    ranges: Vec<TuneRange>,
}

impl Space {
    /// Returns the space that the job declares, or the default space of its model. `written` is the
    /// job as its file has it.
    ///
    /// # Errors
    /// Returns an error that names the key if a key is unknown or may not be changed, or if the job
    /// refuses a value of a range.
    pub(super) fn new(written: &Table, job: &Job) -> Result<Self> {
        let resolved: Table = job.in_force()?.parse().context("the printed job is not TOML")?;
        let mut written = written.clone();
        written.remove("tune");
        let mut space = Self { job: written, resolved, ranges: Vec::new() };
        let declared = job.tune.as_ref().map(|tune| tune.ranges()).transpose()?.unwrap_or_default();
        if declared.is_empty() {
            space.ranges = space.default_ranges();
            return Ok(space);
        }
        for range in declared {
            space.check(&range, job)?;
            space.ranges.push(range);
        }
        Ok(space)
    }

    /// Returns the ranges of the space.
    pub(super) fn ranges(&self) -> &[TuneRange] {
        &self.ranges
    }

    /// Returns the values of all trials. The first trial has none, because it is the job as
    /// written. The values of a trial depend on the seed and its number, and not on the number of
    /// trials. There may be fewer trials than wanted if the space has no more.
    pub(super) fn draw_trials(&self, seed: u64, wanted: usize) -> Vec<Vec<Value>> {
        let mut trials: Vec<Vec<Value>> = vec![Vec::new()];
        if self.ranges.is_empty() {
            return trials;
        }
        let written: Vec<Option<String>> =
            self.ranges.iter().map(|range| describe(&self.resolved, &range.path)).collect();
        let is_written = |values: &Vec<Value>| {
            let mut pairs = values.iter().zip(&written);
            pairs.all(|(value, written)| Some(format_value(value)) == *written)
        };
        for number in 1..wanted as u64 {
            let of_trial = random::combine(seed, number);
            let drawn = (0..MOST_DRAWS).map(|attempt| {
                let seed = random::combine(of_trial, attempt);
                self.ranges.iter().map(|range| draw(range, seed)).collect::<Vec<Value>>()
            });
            let mut fresh = drawn.filter(|values| !trials.contains(values) && !is_written(values));
            let Some(values) = fresh.next() else { break };
            trials.push(values);
        }
        trials
    }

    /// Returns the texts of the values of a trial. Those of the first trial are the values of the
    /// job.
    pub(super) fn describe(&self, values: &[Value]) -> Vec<(String, String)> {
        let text = |(at, range): (usize, &TuneRange)| {
            let text = match values.get(at) {
                Some(value) => Some(format_value(value)),
                None => describe(&self.resolved, &range.path),
            };
            (range.key(), text.unwrap_or_else(|| "absent".to_owned()))
        };
        self.ranges.iter().enumerate().map(text).collect()
    }

    /// Returns the job of a trial as its file would have it.
    pub(super) fn job_of(&self, values: &[Value]) -> Table {
        let mut job = self.job.clone();
        for (range, value) in self.ranges.iter().zip(values) {
            assign(&mut job, &self.resolved, &range.path, value);
        }
        job
    }

    /// Checks that the job accepts the values of a range: each choice, or both ends.
    fn check(&self, range: &TuneRange, job: &Job) -> Result<()> {
        let path = range.path.as_slice();
        let key = range.key();
        let first = path.first().map_or("", String::as_str);
        if !SECTIONS.contains(&first) {
            return Err(ConfigError::unknown_key("tune.space", first, &SECTIONS).into());
        }
        // A table above a fixed key would replace the key too.
        let is_related = |fixed: &str| {
            key == fixed
                || key.starts_with(&format!("{fixed}."))
                || fixed.starts_with(&format!("{key}."))
        };
        if let Some((_, reason)) = FIXED.iter().find(|(fixed, _)| is_related(fixed)) {
            return Err(ConfigError::at("", *reason).under(&key).under("tune.space").into());
        }
        if let ("features", Some(name)) = (first, path.get(1)) {
            let known: Vec<&str> =
                job.schema.features.iter().map(|feature| feature.name.as_str()).collect();
            if !known.contains(&name.as_str()) {
                return Err(ConfigError::unknown_key("tune.space.features", name, &known).into());
            }
        }
        for value in list_ends(&range.values) {
            let mut changed = self.job.clone();
            assign(&mut changed, &self.resolved, path, &value);
            read(changed).with_context(|| {
                format!("`tune.space.{key}`: the job refuses the value {}", format_value(&value))
            })?;
        }
        Ok(())
    }

    /// Returns the default space: the keys that matter most and that the model has, around the
    /// values of the job.
    fn default_ranges(&self) -> Vec<TuneRange> {
        let number = |key: &[&str]| {
            let text = describe(&self.resolved, &path_of(key))?;
            text.parse::<f64>().ok().filter(|number| number.is_finite())
        };
        let mut ranges = Vec::new();
        let text = |key: &[&str]| describe(&self.resolved, &path_of(key));
        let kind = text(&["model", "kind"]).unwrap_or_default();
        let has_layers = !["lr", "fm"].contains(&kind.as_str());
        let has_hidden = text(&["model", "hidden"]).is_some_and(|hidden| hidden != "[]");
        let rates = [
            (&["tables", "*", "optimizer", "lr"][..], true),
            (&["train", "optimizer", "lr"][..], has_layers),
        ];
        for (key, is_used) in rates {
            if let Some(rate) = number(key).filter(|rate| *rate > 0.0 && is_used) {
                let (low, high) = (rate / RATE_FACTOR, rate * RATE_FACTOR);
                let values = TuneValues::Numbers { low, high, is_log: true, is_whole: false };
                ranges.push(TuneRange { path: path_of(key), values });
            }
        }
        let mut add_choices = |key: &[&str], choices: Vec<Value>| {
            let path = path_of(key);
            let is_accepted = |value: &Value| {
                let mut changed = self.job.clone();
                assign(&mut changed, &self.resolved, &path, value);
                read(changed).is_ok()
            };
            let choices: Vec<Value> = choices.into_iter().filter(is_accepted).collect();
            if choices.len() > 1 {
                ranges.push(TuneRange { path, values: TuneValues::Choices(choices) });
            }
        };
        let dim = number(&["tables", "*", "dim"]).map(|dim| dim as i64);
        let dim = dim.filter(|dim| (2..=1024).contains(dim));
        if let Some(dim) = dim {
            let choices = [dim / 2, dim, dim * 2].map(Value::Integer);
            add_choices(&["tables", "*", "dim"], choices.into());
        }
        let floats =
            |numbers: &[f64]| numbers.iter().copied().map(Value::Float).collect::<Vec<_>>();
        if number(&["tables", "*", "l2"]).is_some() {
            add_choices(&["tables", "*", "l2"], floats(&[0.0, 1e-6, 1e-5, 1e-4]));
        }
        // Pairs of ids learn nothing while their vectors are near zero.
        if dim.is_some() && number(&["tables", "*", "initializer", "std"]).is_some() {
            add_choices(&["tables", "*", "initializer", "std"], floats(&[0.01, 0.1]));
        }
        if has_hidden && number(&["model", "dropout"]).is_some() {
            add_choices(&["model", "dropout"], floats(&[0.0, 0.1, 0.2, 0.4]));
        }
        ranges
    }
}

/// Reads a job and builds its model, which finds values that do not fit together.
pub(super) fn read(job: Table) -> Result<Job> {
    let job = Job::from_value(Value::Table(job))?;
    job.graph(Mode::Train)?;
    Ok(job)
}

fn path_of(key: &[&str]) -> Vec<String> {
    key.iter().map(|&name| name.to_owned()).collect()
}

fn list_ends(values: &TuneValues) -> Vec<Value> {
    match values {
        TuneValues::Choices(choices) => choices.clone(),
        TuneValues::Numbers { low, high, is_whole, .. } => {
            [*low, *high].map(|number| number_value(number, *is_whole)).into()
        }
    }
}

fn number_value(number: f64, is_whole: bool) -> Value {
    if is_whole { Value::Integer(number as i64) } else { Value::Float(number) }
}

/// Draws a value of a range.
fn draw(range: &TuneRange, seed: u64) -> Value {
    let word = random::text_seed(seed, &range.key());
    // The highest 53 bits are a number from 0 (included) to 1 (excluded).
    let share = (word >> 11) as f64 / (1u64 << 53) as f64;
    match &range.values {
        TuneValues::Choices(choices) => {
            let at = (share * choices.len() as f64) as usize;
            choices[at.min(choices.len() - 1)].clone()
        }
        TuneValues::Numbers { low, high, is_log, is_whole } => {
            // A whole number has the interval up to the next one.
            let end = if *is_whole { high + 1.0 } else { *high };
            let number = match is_log {
                true => (low.ln() + share * (end.ln() - low.ln())).exp(),
                false => low + share * (end - low),
            };
            let number = if *is_whole { number.floor() } else { round(number) };
            number_value(number.clamp(*low, *high), *is_whole)
        }
    }
}

/// Rounds a number to three significant digits, so that a value is easy to read and to copy.
fn round(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use zillion_console::exit::format_error;

    use super::*;

    const JOB: &str = "[features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n[labels.y]\n[model]\nkind = 'deepfm'\nhidden = [8]\n\
                       [tables.'*']\ndim = 4\n";

    fn space(model: &str, more: &str) -> Result<Space, String> {
        let text = format!("{}\n{more}", JOB.replace("kind = 'deepfm'\nhidden = [8]", model));
        let written: Table = text.parse().expect("TOML");
        let job = Job::from_value(Value::Table(written.clone())).map_err(|e| e.to_string())?;
        Space::new(&written, &job).map_err(|error| format_error(&error))
    }

    fn declared(line: &str) -> Result<Space, String> {
        space("kind = 'deepfm'\nhidden = [8]", &format!("[tune.space]\n{line}\n"))
    }

    #[test]
    fn the_default_space_has_only_keys_of_the_model() {
        let keys = |model: &str| -> Vec<String> {
            space(model, "").expect("a space").ranges().iter().map(TuneRange::key).collect()
        };
        assert_eq!(
            keys("kind = 'deepfm'\nhidden = [8]"),
            [
                "tables.*.optimizer.lr",
                "train.optimizer.lr",
                "tables.*.dim",
                "tables.*.l2",
                "tables.*.initializer.std",
                "model.dropout"
            ]
        );
        assert_eq!(keys("kind = 'lr'"), ["tables.*.optimizer.lr", "tables.*.l2"]);
        assert_eq!(
            keys("kind = 'fm'"),
            ["tables.*.optimizer.lr", "tables.*.dim", "tables.*.l2", "tables.*.initializer.std"]
        );
    }

    #[test]
    fn a_wrong_key_or_value_is_refused_by_name() {
        for (line, words) in [
            (
                "'modle.dropout' = { choices = [0.1] }",
                "unknown key `tune.space.modle`; did you mean `model`?",
            ),
            (
                "'model.droput' = { choices = [0.1] }",
                "unknown key `model.droput`; did you mean `dropout`?",
            ),
            (
                "'tables.usr.dim' = { choices = [4] }",
                "unknown key `tables.usr`; did you mean `user`?",
            ),
            ("'features.usr.table' = { choices = ['a'] }", "did you mean `user`?"),
            ("data = { choices = [{ valid = 'other.csv' }] }", "tune.space.data"),
            ("'model.dropout' = { low = 0.5, high = 1.5 }", "the job refuses the value 1.5"),
            ("'train.optimizer.lr' = { choices = [0.1, -1] }", "the job refuses the value -1"),
            (
                "'train.epochs' = { low = 1, high = 9 }",
                "`tune.space.train.epochs`: is the resource",
            ),
            ("'data.valid' = { choices = ['x'] }", "are compared over it"),
            ("'run.threads' = { choices = [1] }", "unknown key `tune.space.run`"),
        ] {
            let error = declared(line).err().expect(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn trials_differ_and_do_not_depend_on_their_number() {
        let space = declared(
            "'train.optimizer.lr' = { low = 1e-4, high = 1e-1, log = true }\n\
             'tables.*.dim' = { choices = [2, 4, 8] }\n'train.batch_size' = { low = 10, high = 12 }",
        )
        .expect("a space");
        let trials = space.draw_trials(7, 200);
        assert_eq!(trials.len(), 200);
        assert!(trials[0].is_empty());
        assert_eq!(space.draw_trials(7, 20), trials[..20]);
        assert_ne!(space.draw_trials(8, 20)[1..], trials[1..20]);
        let column = |at: usize| trials[1..].iter().map(move |trial| trial[at].clone());
        let rates: Vec<f64> = column(0).filter_map(|value| value.as_float()).collect();
        assert_eq!(rates.len(), 199);
        assert!(rates.iter().all(|rate| (1e-4..=1e-1).contains(rate)), "{rates:?}");
        // A third of the logarithms is in each decade.
        let low = rates.iter().filter(|rate| **rate < 1e-3).count();
        assert!((40..95).contains(&low), "{low}");
        for size in [10, 11, 12] {
            let count = column(2).filter(|value| value.as_integer() == Some(size)).count();
            assert!((40..95).contains(&count), "{size}: {count}");
        }
        let job = Job::from_value(Value::Table(space.job_of(&trials[1]))).expect("a job");
        assert_eq!(Some(job.train.optimizer.lr()), trials[1][0].as_float());
        let first = space.describe(&[]);
        assert_eq!(first[1], ("tables.*.dim".to_owned(), "4".to_owned()));
    }

    #[test]
    fn a_small_space_has_fewer_trials() {
        let space = declared("'tables.*.dim' = { choices = [2, 4, 8] }").expect("a space");
        let dims: Vec<Vec<Value>> = space.draw_trials(1, 50);
        // The job itself has the dimension 4.
        assert_eq!(dims.len(), 3, "{dims:?}");
    }
}
