//! `zillion quickstart`: the whole loop on data that it makes itself, with the command of each step.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_device::Workers;
use zillion_trainer::{EpochReport, Job, Observer, StepReport, TrainOptions, TrainReport, train};

use super::data_synth::{self, Synthetic};
use super::{figure, files, print_json, workers};
use crate::args::QuickstartArgs;
use crate::exit::Stop;
use crate::progress::Progress;
use crate::{job_file, signals};

/// Everything a script may want to know.
#[derive(Serialize)]
struct Outcome {
    data: Synthetic,
    job: PathBuf,
    test_auc: Option<f64>,
    test_logloss: Option<f64>,
    /// (test AUC - 0.5) / (truth's AUC - 0.5).
    share_of_ceiling: Option<f64>,
    samples_per_second: Option<f64>,
    checkpoint: PathBuf,
    interrupted_at_step: u64,
    steps: u64,
    resumed_to_same_bytes: bool,
    commands: Vec<String>,
    seconds: f64,
}

pub(crate) fn run(args: &QuickstartArgs) -> Result<()> {
    let began = Instant::now();
    let place = Place::new(&args.output);
    if args.output.exists() {
        return Err(Stop::Refused(format!(
            "the folder is there already: remove it, or choose another one with --output: {}",
            args.output.display()
        ))
        .into());
    }
    let workers = workers(args.threads)?;
    let stop = signals::stop_flag()?;

    eprintln!("1. a click log of {} rows, by seed {}", args.rows, args.seed);
    let data = data_synth::write(args.seed, args.rows, &place.data, &workers, &files()?)?;
    data.tell();
    std::fs::write(&place.job, job_text(args, &place))
        .with_context(|| format!("cannot write {}", place.job.display()))?;
    eprintln!("   job file: {}", place.job.display());

    eprintln!("2. train DeepFM on {} threads", workers.threads());
    let report = sitting(&place, &place.first, &workers, &stop, false, &mut Progress::new())?;
    if report.interrupted {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.first));
    }
    let test_auc = report.test.as_ref().and_then(|t| t.auc);
    let share = share_of_ceiling(test_auc, data.truth_auc);
    eprintln!(
        "   test auc {} of a ceiling of {}{}",
        figure(test_auc, 5),
        figure(data.truth_auc, 5),
        share.map_or_else(String::new, |s| {
            format!(": {:.0} % of the way from guessing to the truth", 100.0 * s)
        })
    );

    eprintln!("3. the same again, interrupted and resumed");
    let own_stop = Arc::new(AtomicBool::new(false));
    let mut interrupter =
        Interrupter { after: report.steps / 3, stop: own_stop.clone(), signal: stop.clone() };
    let cut = sitting(&place, &place.second, &workers, &own_stop, false, &mut interrupter)?;
    if stop.load(Ordering::Relaxed) {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.second));
    }
    let whole = sitting(&place, &place.second, &workers, &stop, true, &mut Progress::new())?;
    if whole.interrupted {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.second));
    }
    let same = same_bytes(&report.checkpoint, &whole.checkpoint)?;
    if !same {
        bail!(
            "the resumed run ended in other bytes, which it must not: compare {} with {}",
            report.checkpoint.display(),
            whole.checkpoint.display()
        );
    }
    eprintln!(
        "   stopped after step {} of {}, resumed: every byte of the best checkpoint is the same",
        cut.steps, whole.steps
    );

    let commands = place.commands();
    let outcome = Outcome {
        job: place.job.clone(),
        test_auc,
        test_logloss: report.test.as_ref().and_then(|t| t.logloss),
        share_of_ceiling: share,
        samples_per_second: report.samples_per_second,
        checkpoint: report.checkpoint.clone(),
        interrupted_at_step: cut.steps,
        steps: whole.steps,
        resumed_to_same_bytes: same,
        commands: commands.iter().map(|(_, command)| command.clone()).collect(),
        seconds: began.elapsed().as_secs_f64(),
        data,
    };
    eprintln!("done in {:.1} s; each step by hand:", outcome.seconds);
    for (what, command) in &commands {
        eprintln!("  # {what}\n  {command}");
    }
    if args.json {
        print_json(&outcome)?;
    }
    Ok(())
}

/// Trains until the end or until stopped.
fn sitting(
    place: &Place,
    run: &Path,
    workers: &Arc<Workers>,
    stop: &Arc<AtomicBool>,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<TrainReport> {
    let value = job_file::load(&place.job, std::iter::empty(), &[run_setting(run)])?;
    let options =
        TrainOptions { resume, workers: workers.clone(), files: files()?, stop: stop.clone() };
    Ok(train(Job::from_value(value)?, options, observer)?)
}

/// Stops a run on its way: in the middle of an epoch where it takes long enough to be watched there, at
/// the end of its first epoch otherwise. A person's Ctrl-C counts as well.
struct Interrupter {
    after: u64,
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicBool>,
}

impl Observer for Interrupter {
    fn step(&mut self, report: &StepReport) {
        if report.step >= self.after || self.signal.load(Ordering::Relaxed) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn epoch(&mut self, _: &EpochReport) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// How much of the way from 0.5 to the truth's AUC was gone.
fn share_of_ceiling(auc: Option<f64>, truth: Option<f64>) -> Option<f64> {
    let (auc, truth) = (auc?, truth?);
    (truth > 0.5).then(|| (auc - 0.5) / (truth - 0.5))
}

/// Whether two folders hold the same files with the same bytes.
fn same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let list = |folder: &Path| -> Result<Vec<(std::ffi::OsString, PathBuf)>> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut entries: Vec<_> = entries
            .map(|e| e.map(|e| (e.file_name(), e.path())))
            .collect::<std::io::Result<_>>()?;
        entries.sort();
        Ok(entries)
    };
    let (a, b) = (list(a)?, list(b)?);
    if a.len() != b.len() {
        return Ok(false);
    }
    for ((name, a), (other, b)) in a.into_iter().zip(b) {
        let same = name == other
            && a.is_dir() == b.is_dir()
            && match a.is_dir() {
                true => same_bytes(&a, &b)?,
                false => std::fs::read(&a)? == std::fs::read(&b)?,
            };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where everything goes.
struct Place {
    data: PathBuf,
    job: PathBuf,
    first: PathBuf,
    second: PathBuf,
}

impl Place {
    fn new(output: &Path) -> Self {
        Self {
            data: output.join("data"),
            job: output.join("job.toml"),
            first: output.join("run"),
            second: output.join("resumed"),
        }
    }

    /// What a person would type for each step, from the same folder.
    fn commands(&self) -> Vec<(&'static str, String)> {
        let (zillion, job) = (program(), word(&self.job));
        let test = word(self.data.join("test.parquet"));
        let train = word(self.data.join("train.parquet"));
        let run = word(&self.first);
        let again = self.first.with_file_name("again");
        vec![
            ("look at the data", format!("{zillion} data inspect {train} --against {test}")),
            ("what will the job cost, what could go wrong", format!("{zillion} check {job}")),
            (
                "train; Ctrl-C stops it in good order",
                format!("{zillion} train {job} --set {}", word(run_setting(&again))),
            ),
            ("go on after Ctrl-C, a crash, or for more epochs", self.resume(&again)),
            ("test the best epoch's checkpoint", format!("{zillion} eval {run} --data {test}")),
            (
                "a probability for each row",
                format!(
                    "{zillion} predict {run} {test} > {}",
                    word(self.first.with_file_name("scores.csv"))
                ),
            ),
            ("the job with every default", format!("{zillion} train {job} --print-config")),
        ]
    }

    fn resume(&self, run: &Path) -> String {
        format!("{} train {} --set {} --resume", program(), word(&self.job), word(run_setting(run)))
    }
}

fn run_setting(run: &Path) -> String {
    format!("run.output={}", toml::Value::from(run.to_string_lossy().as_ref()))
}

/// This binary, so that what is printed runs where it is printed.
fn program() -> String {
    let Ok(path) = std::env::current_exe() else { return "zillion".to_owned() };
    let here = std::env::current_dir().unwrap_or_default();
    match path.strip_prefix(here) {
        Ok(below) => word(Path::new(".").join(below)),
        Err(_) => word(path),
    }
}

/// A path or setting as one word of a shell.
fn word(text: impl AsRef<std::ffi::OsStr>) -> String {
    let text = text.as_ref().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,@%+".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn job_text(args: &QuickstartArgs, place: &Place) -> String {
    let root = toml::Value::from(place.data.to_string_lossy().as_ref());
    let output = toml::Value::from(place.first.to_string_lossy().as_ref());
    let threads = args.threads.map_or_else(String::new, |n| format!("threads = {n}\n"));
    let mut job = format!(
        r#"# DeepFM on a synthetic click log: 26 ids and 13 numbers a row, as Criteo's.
name = "quickstart"
seed = {seed}

[data]
root = {root}            # relative to the folder that zillion is started in
train = "train.parquet"
valid = "valid.parquet"
test = "test.parquet"

[labels.click]
column = "label"

# Settings of every table; a section [tables.C3] would override them for one. An id gets a row when
# training first meets it. Adagrad gives rare ids long steps and frequent ones short steps.
[tables."*"]
dim = 8
initializer = {{ kind = "normal", std = 0.01 }}
optimizer = {{ kind = "adagrad", lr = 0.05, initial_accumulator = 0.001 }}

[model]
kind = "deepfm"
hidden = [64, 32]
dropout = 0.2

[train]
epochs = 4
batch_size = 1024
optimizer = {{ kind = "adam", lr = 1e-3 }}
# An epoch that validates no better cuts the learning rates; the second in a row ends training.
plateau = {{ factor = 0.1, patience = 2 }}

[run]
output = {output}
{threads}
# A number becomes the id of its bucket: twenty buckets of equal count, told from the training data. That
# learns effects of any shape, and a missing value is a bucket of its own. The other way would be
# kind = "numeric" with a transform.
"#,
        seed = args.seed,
    );
    for i in 1..=zillion_reader::NUMERIC_FIELDS {
        let _ = writeln!(job, "[features.I{i}]\nkind = \"bucketized\"\nbuckets = 20");
    }
    job.push_str("\n# Each id has a table of its own name; a missing value is an id of its own.\n");
    for i in 1..=zillion_reader::ID_FIELDS {
        let _ = writeln!(job, "[features.C{i}]\nkind = \"id\"");
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_survives_a_shell() {
        assert_eq!(word("runs/a-b_c.d=1"), "runs/a-b_c.d=1");
        assert_eq!(word("my runs/it's"), r"'my runs/it'\''s'");
        assert_eq!(word(""), "''");
    }
}
