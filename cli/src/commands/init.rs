//! `zillion init`: writes a job file for a file of rows, which can be run at once. A comment beside
//! each guess gives its reason.

mod feature;
mod label;
mod model;
mod notes;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::Value;
use zillion_console::exit::{Stop, refuse, usage_error};
use zillion_console::{compute_pool, print_line};
use zillion_datatools::{
    DraftedModel, EventTime, Guess, Guessed, GuessedLabel, Recipe, SplitBy, SplitFile, SplitSpec,
    sniff,
};
use zillion_reader::{ColumnType, DataConfig, Dataset, Header};
use zillion_trainer::Job;

use super::data::split::{Target, print_files, split_files};
use crate::args::{InitArgs, ReadArgs};
use crate::raw_files::{Preview, preview};
use crate::text::grouped;

/// The number of first rows from which the command guesses.
const GUESS_ROWS: u64 = 200_000;
/// The possible names of a validation file beside a training file called `train`.
const VALID_NAMES: [&str; 4] = ["valid", "val", "validation", "dev"];

pub(crate) fn run(args: &InitArgs) -> Result<()> {
    let to_stdout = args.out.as_os_str() == "-";
    if !to_stdout && args.out.exists() {
        return refuse(format!(
            "the file {} exists; remove it, or choose another file with --out",
            args.out.display()
        ));
    }
    let (mut drafted, mut text, mut job) =
        draft(&args.data, args.label.as_deref(), args.model, None).map_err(name_label_option)?;
    drafted.refuse_other_headers()?;
    // The job file that is written must run. The data is therefore opened here in the same way as
    // `train` opens it.
    Dataset::open(&job.data, &job.data.files(&job.data.train)?, &job.schema)?;
    let split = match !to_stdout && !args.no_split && drafted.can_be_split() {
        true => Some(split_data(args, &drafted)?),
        false => None,
    };
    let notes = std::mem::take(&mut drafted.preview.sniffed.notes);
    let examined = drafted.rows();
    if let Some((folder, _)) = &split {
        let train = folder.join("train.parquet");
        (drafted, text, job) =
            draft(&train, Some(&drafted.label.name), args.model, Some(&drafted))?;
        Dataset::open(&job.data, &job.data.files(&job.data.train)?, &job.schema)?;
    }
    notes::print(&drafted, &examined, &notes);
    if to_stdout {
        // The line end of the text is removed, because `print_line` adds one.
        print_line(text.trim_end());
        return Ok(());
    }
    std::fs::write(&args.out, text)
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    if let Some((_, written)) = &split {
        print_files(written, |line| eprintln!("{line}"));
    }
    if split.is_some() {
        notes::print_split(&drafted);
    }
    let out = args.out.display();
    eprintln!("wrote {out}; next:\n  zillion check {out}\n  zillion train {out}");
    Ok(())
}

/// The options that resolve parts of an earlier split.
const REMEDY: &str = "or write the job file, and the parts beside it, into another folder with \
                      --out; --no-split leaves the file whole";

/// Splits a file without validation and test files beside it. The parts go into a folder beside the
/// job file. The split is by time if a column has the time of the row, by group if there is
/// a group column, and otherwise row by row. Returns the folder and its files.
fn split_data(args: &InitArgs, draft: &Draft) -> Result<(PathBuf, Vec<SplitFile>)> {
    let stem = draft.train.split('.').next().unwrap_or_default();
    let folder = args.out.parent().unwrap_or(Path::new("")).join(format!("{stem}-split"));
    let spec = |_: &[(String, ColumnType)]| {
        let guess = &draft.preview.guess;
        let time = guess.event_time.as_ref().map(|time| &time.name);
        let by = match (time, &guess.group) {
            (Some(column), _) => SplitBy::Time(column.clone()),
            (None, Some(column)) => SplitBy::Group(column.clone()),
            (None, None) => SplitBy::Row,
        };
        let parts = [("train", 0.8), ("valid", 0.1), ("test", 0.1)];
        let date_order = guess.event_time.as_ref().and_then(|time| time.date_order.as_ref());
        SplitSpec {
            by,
            date_order: date_order.map(|(order, _)| *order),
            seed: 1,
            parts: parts.map(|(name, f)| (name.to_owned(), f)).into(),
        }
    };
    let target = Target { out: &folder, replace: false, remedy: REMEDY, max_bad_rows: 0 };
    let sources = [args.data.clone()];
    let written = split_files(&sources, &ReadArgs::default(), spec, target, &compute_pool(None)?)
        .with_context(|| format!("cannot split {}", args.data.display()))?;
    Ok((folder, written))
}

/// Adds the option that names the label to an error that asks for one. The library that makes the
/// error knows only the setting.
fn name_label_option(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(Stop::Usage(text)) if text.contains("the setting `label`") => Stop::Usage(format!(
            "{text} (`--label COLUMN` names it: a column of 0 and 1, of numbers, or of texts)"
        ))
        .into(),
        _ => error,
    }
}

/// Returns the job that `init` would write for a file.
pub(crate) fn draft_job(data: &Path) -> Result<Job> {
    draft(data, None, None, None).map(|(.., job)| job)
}

/// Drafts a job for a file. `whole` is the draft for the file of which this one is the training
/// part: what only all rows tell, the label and the forms of times, is taken from it.
fn draft(
    data: &Path,
    label: Option<&str>,
    model: Option<DraftedModel>,
    whole: Option<&Draft>,
) -> Result<(Draft, String, Job)> {
    let mut preview = preview(data, GUESS_ROWS, label, &*compute_pool(None)?)?;
    let label = match (whole, &preview.guess.label) {
        (Some(whole), _) => whole.label.clone(),
        (None, Ok(label)) => label.clone(),
        (None, Err(why)) => return usage_error(format!("{why}: {}", data.display())),
    };
    if let Some(whole) = whole {
        preview.guess.keep_of(&whole.preview.guess);
        preview.guess.other_labels.clone_from(&whole.preview.guess.other_labels);
        // Files that are scored later have the form of the file that was split.
        let (own, of_whole) = (&mut preview.guess.config, &whole.preview.guess.config);
        if of_whole.is_text(&whole.folder.join(&whole.train))? {
            own.null.clone_from(&of_whole.null);
            own.encoding.clone_from(&of_whole.encoding);
            own.delimiter = of_whole.delimiter;
            own.decimal = of_whole.decimal;
            own.list_separator = of_whole.list_separator;
            own.quote = of_whole.quote;
        }
    }
    let draft = Draft::new(data, preview, label, model)?;
    let text = draft.text();
    let value: toml::Table = text
        .parse()
        .context("the drafted job is not valid TOML, which is a defect of zillion; report it")?;
    let job = Job::from_value(value.into()).context("the job that was drafted")?;
    Ok((draft, text, job))
}

/// The draft of a job file, with the guesses from which it is made.
struct Draft {
    name: String,
    folder: PathBuf,
    train: String,
    valid: Option<String>,
    test: Option<String>,
    label: GuessedLabel,
    /// The features, each with its name in the job, its column and its guessed meaning.
    features: Vec<(String, String, Guessed)>,
    left: Vec<(String, String)>,
    model: DraftedModel,
    preview: Preview,
}

impl Draft {
    fn new(
        data: &Path,
        preview: Preview,
        label: GuessedLabel,
        model: Option<DraftedModel>,
    ) -> Result<Self> {
        let file = data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = file.split('.').next().unwrap_or_default().to_owned();
        let folder = data.parent().unwrap_or(Path::new("")).to_owned();
        let sibling = |names: &[&str]| {
            let names = names.iter().map(|name| file.replacen("train", name, 1));
            names.filter(|name| *name != file).find(|name| folder.join(name).is_file())
        };
        let mut taken = BTreeSet::new();
        let (mut features, mut left) = (Vec::new(), Vec::new());
        for (column, meaning) in &preview.guess.columns {
            match meaning {
                _ if preview.sniffed.unusable.contains(column) => left.push((
                    column.clone(),
                    match column.is_empty() {
                        true => "the column has no name in the header; give it one".to_owned(),
                        false => {
                            "the header has this name more than once; rename the other columns"
                                .into()
                        }
                    },
                )),
                Guessed::Left(why) => left.push((column.clone(), why.clone())),
                _ => features.push((
                    feature_name(column, &mut taken),
                    column.clone(),
                    meaning.clone(),
                )),
            }
        }
        left.dedup();
        if preview.sniffed.unusable.contains(&label.name) {
            return usage_error(format!(
                "label column `{}` appears more than once in the header; rename the other \
                 columns of this name",
                label.name
            ));
        }
        if features.is_empty() {
            let why: Vec<String> = left.iter().map(|(c, w)| format!("\n  {c}: {w}")).collect();
            return usage_error(format!(
                "no column can be a feature; correct at least one of these columns:{}",
                why.concat()
            ));
        }
        let name = if ["train", ""].contains(&stem.as_str()) {
            folder.file_name().map_or("job".into(), |n| n.to_string_lossy().into_owned())
        } else {
            stem
        };
        let has_vector = |meaning: &Guessed| {
            let of_ids = matches!(meaning, Guessed::Id { .. } | Guessed::Ids { .. });
            of_ids || matches!(meaning, Guessed::Weighted { .. } | Guessed::Time { .. })
        };
        let vectors = features.iter().filter(|(_, _, meaning)| has_vector(meaning)).count();
        let model = model.unwrap_or(DraftedModel::for_vectors(vectors));
        if vectors == 0 && model.needs_vectors() {
            return usage_error(format!(
                "model `{model}` needs a feature with a vector, but every feature of {} is a number; \
                 choose another model, such as dnn",
                data.display()
            ));
        }
        Ok(Self {
            model,
            name: feature_name(&name, &mut BTreeSet::new()),
            train: file.clone(),
            valid: sibling(&VALID_NAMES),
            test: sibling(&["test"]),
            folder,
            label,
            features,
            left,
            preview,
        })
    }

    /// Returns whether the file may be split. There must be no validation or test file beside it.
    /// No column may have weights, because a Parquet file would store them in a separate column.
    fn can_be_split(&self) -> bool {
        let is_text = DataConfig::default().is_text(&self.folder.join(&self.train)).unwrap_or(true);
        // Only files with types of their own hold vectors.
        let has_weights = |meaning: &Guessed| match meaning {
            Guessed::Vector { .. } => is_text,
            meaning => matches!(meaning, Guessed::Weighted { .. }),
        };
        self.valid.is_none()
            && self.test.is_none()
            && !self.features.iter().any(|(_, _, meaning)| has_weights(meaning))
    }

    /// Returns the number of examined rows as text.
    fn rows(&self) -> String {
        let profile = &self.preview.profile;
        let part = if profile.complete { "" } else { "the first " };
        format!("{part}{} rows", grouped(profile.rows))
    }

    /// Returns an error if a validation or test file has a header and the training file has none,
    /// or the other way round. The drafted job could not read both.
    fn refuse_other_headers(&self) -> Result<()> {
        let has_names = |header: &Header| *header == Header::Yes;
        let own = &self.preview.sniffed.config;
        for name in self.valid.iter().chain(&self.test) {
            let path = self.folder.join(name);
            if !own.is_text(&path)? {
                continue;
            }
            let other = sniff(&path)?.config;
            let (with, without) = match (has_names(&own.header), has_names(&other.header)) {
                (true, false) => (&self.train, name),
                (false, true) => (name, &self.train),
                _ => continue,
            };
            return usage_error(format!(
                "{} has no header, but {with} beside it has one; write the names of the columns \
                 into its first line",
                self.folder.join(without).display()
            ));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "# Drafted from {} of {}: every guess has its reason beside it. Correct what is wrong,\n\
             # then `zillion check` this file, then `zillion train` it.\n\
             name = {}\nseed = 1\n",
            self.rows(),
            self.train,
            quoted(&self.name)
        );
        self.write_data_section(&mut text);
        label::write(&mut text, &self.label);
        self.write_columns(&mut text);
        text.push_str("\n# What a row holds. A missing id is an id of its own.\n");
        for (name, column, meaning) in &self.features {
            feature::write(&mut text, name, column, meaning);
        }
        if let Some(time) = &self.preview.guess.event_time {
            self.offer_parts(&mut text, time);
        }
        if !self.left.is_empty() {
            text.push_str("\n# Left out:\n");
            for (column, why) in &self.left {
                let _ = writeln!(text, "#   {}: {}", one_line(column), one_line(why));
            }
        }
        let _ = write!(text, "\n{}", self.model());
        text
    }

    /// Writes the section of the columns that are no features.
    fn write_columns(&self, text: &mut String) {
        let Guess { group, event_time, .. } = &self.preview.guess;
        if group.is_some() || event_time.is_some() {
            text.push_str("\n[columns]\n");
        }
        if let Some(group) = group {
            let _ = writeln!(text, "group = {}", quoted(group));
        }
        if let Some(EventTime { name, unit, date_order, .. }) = event_time {
            let _ = writeln!(text, "event_time = {}", quoted(name));
            if let Some(Ok(unit)) = unit.map(Value::try_from) {
                let _ = writeln!(text, "event_time_unit = {unit}");
            }
            if let Some((order, why)) = date_order
                && let Ok(order) = Value::try_from(order)
            {
                let _ = writeln!(text, "event_date_order = {order}  # {why}");
            }
        }
    }

    /// Writes features that are derived from the event time, each behind the sign of a comment.
    fn offer_parts(&self, text: &mut String, time: &EventTime) {
        text.push_str(
            "\n# Parts of the time of the row; remove the signs # before those to try. Hours and days are\n\
             # those of UTC; for another clock, add zone = \"+02:00\". A request must then send the time.\n",
        );
        let mut taken: BTreeSet<String> =
            self.features.iter().map(|(name, ..)| name.clone()).collect();
        let unit = time.own_unit.and_then(|unit| Value::try_from(unit).ok());
        let order = time.date_order.as_ref().and_then(|(order, _)| Value::try_from(order).ok());
        for (part, kind) in [
            ("hour", "kind = \"id\""),
            ("weekday", "kind = \"id\""),
            ("days", "kind = \"bucketized\"\n# buckets = 16"),
        ] {
            let name = feature_name(&format!("{}_{part}", time.name), &mut taken);
            let column = quoted(&time.name);
            let _ = writeln!(text, "# [features.{name}]\n# column = {column}\n# {kind}");
            let _ = writeln!(text, "# derive = \"{part}\"");
            if let Some(unit) = &unit {
                let _ = writeln!(text, "# time_unit = {unit}");
            }
            if let Some(order) = &order {
                let _ = writeln!(text, "# date_order = {order}");
            }
        }
    }

    fn write_data_section(&self, text: &mut String) {
        let _ = writeln!(text, "[data]");
        let root = self.folder.to_string_lossy();
        let _ = writeln!(
            text,
            "root = {}  # relative to the current folder, or else to that of this file",
            quoted(&root)
        );
        let _ = writeln!(text, "train = {}", quoted(&self.train));
        for (key, file) in [("valid", &self.valid), ("test", &self.test)] {
            let _ = match file {
                Some(file) => writeln!(text, "{key} = {}", quoted(file)),
                None => {
                    let ending = self.train.split_once('.').map_or("", |(_, ending)| ending);
                    writeln!(text, "# {key} = {}", quoted(&format!("{key}.{ending}")))
                }
            };
        }
        if self.valid.is_none() || self.test.is_none() {
            text.push_str(
                "# Without validation rows no epoch is better than another, and without test rows no AUC is\n\
                 # reported. Split by time where rows have one: the last tenth to test, the one before it\n\
                 # to validate; by user or at random otherwise.\n",
            );
        }
        // Only settings that differ from the defaults are written, so that a reader sees what is
        // special about the file.
        let plain = Value::try_from(DataConfig::default()).ok();
        let own = Value::try_from(&self.preview.guess.config).ok();
        let (Some(Value::Table(plain)), Some(Value::Table(own))) = (plain, own) else { return };
        let special: Vec<_> =
            own.iter().filter(|(key, value)| plain.get(*key) != Some(*value)).collect();
        if !special.is_empty() && self.train.ends_with(".parquet") {
            text.push_str("# The form of text files, such as those that are scored later:\n");
        }
        for (key, value) in special {
            let _ = writeln!(text, "{key} = {value}");
        }
        if matches!(self.preview.guess.config.header, Header::Names(_)) {
            text.push_str("# The file has no header: rename the columns above as you like.\n");
        }
    }

    fn model(&self) -> String {
        let profile = &self.preview.profile;
        let values = |(_, column, meaning): &(String, String, Guessed)| match meaning {
            Guessed::Id { .. } => profile.column(column).map(|column| column.distinct().0),
            _ => None,
        };
        let ids: Vec<u64> = self.features.iter().filter_map(values).collect();
        let pairs = Recipe::is_of_pairs(self.features.len(), &ids, profile.rows);
        let recipe = Recipe::new(self.model, profile.rows, pairs);
        let target = match &self.label {
            GuessedLabel { amount: Some(amount), .. } => model::Target::Amount(amount.huber_delta),
            GuessedLabel { classes: Some(_), at_least: None, .. } => model::Target::Classes,
            _ => model::Target::Binary,
        };
        model::text(&recipe, self.valid.is_some(), target)
    }
}

/// Returns a name for a column that is a bare TOML key, is not in `taken`, and can also be the name
/// of a folder.
fn feature_name(column: &str, taken: &mut BTreeSet<String>) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let mut name: String = column.chars().take(100).map(legal).collect();
    if name.is_empty() {
        name.push_str("column");
    }
    let plain = name.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{plain}_{number}");
        number += 1;
    }
    name
}

/// Replaces control characters by spaces, because the text must stay on one line of a comment.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, split_before: bool) -> String {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.csv");
        std::fs::write(&data, text).unwrap();
        if split_before {
            let parts = folder.path().join("data-split");
            std::fs::create_dir(&parts).unwrap();
            std::fs::write(parts.join("train.parquet"), "").unwrap();
        }
        let out = folder.path().join("job.toml");
        let args = InitArgs { data, out, no_split: false, label: None, model: None };
        format!("{:#}", run(&args).unwrap_err())
    }

    #[test]
    fn refusals_name_options_that_exist() {
        let rows: String = (0..200).map(|i| format!("{},{}\n", i % 7, i % 2)).collect();
        let error = refused(&format!("user,clicked\n{rows}"), true);
        assert!(error.contains("--no-split leaves the file whole"), "{error}");
        assert!(!error.contains("--force"), "{error}");

        let rows: String = (0..200).map(|i| format!("name{},place{}\n", i % 7, i % 3)).collect();
        let error = refused(&format!("user,place\n{rows}"), false);
        assert!(error.contains("texts by those that make it 1 or as classes"), "{error}");
        assert!(error.contains("(`--label COLUMN` names it"), "{error}");
    }
}
