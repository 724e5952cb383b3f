//! Versions that a training run really publishes, one after each step, and the cost of the first
//! and of the last of them.
//!
//! The model is tiny, so that nearly the whole time of a publication is spent in the registry. The
//! publisher, its deltas, manifests and moves of the pointer are those of any other run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use toml::Table;
use zillion_feature::random::mix64;
use zillion_registry::{Model, Retention, STABLE, VersionId};
use zillion_trainer::{Job, Observer, PublishReport, TrainOptions, TrainerPlace};

use crate::criteo::{MODEL, open_model};
use crate::print_outcome;
use zillion_console::{compute_pool, durable_files, signals};

/// The number of rows of a step.
const BATCH: u64 = 4;
/// The number of users, each of which has a row in a table.
const USERS: u64 = 500;
/// The number of publications at the beginning and at the end whose times are compared.
const COMPARED: usize = 100;
/// The number of newest versions that the publisher keeps.
const KEPT: u64 = 2000;
/// The age in seconds below which the publisher removes nothing.
const KEPT_SECONDS: u64 = 60;
/// The number of looks for a new version that are measured.
const LOOKS: usize = 100;

#[derive(Serialize)]
struct Outcome {
    versions: u64,
    bases: u64,
    /// The time of the whole run, in seconds.
    seconds: f64,
    /// The median time of the first publications, in milliseconds.
    first_ms: f64,
    /// The median time of the last publications, in milliseconds.
    last_ms: f64,
    /// The median time of the last publications as a multiple of that of the first ones.
    last_to_first: f64,
    longest_ms: f64,
    /// The median time of a look of a server for a new version, in milliseconds.
    look_ms: f64,
    /// The sizes of the registry when the run has ended.
    store: Sizes,
    /// The number of versions that the settings of the publisher keep after a last collection: the
    /// newest, the young, and those on which they stand.
    kept_versions: u64,
    /// The sizes of the registry after the last collection.
    store_after_collection: Sizes,
}

/// The numbers of objects of the model by the folders of the registry, and their bytes.
#[derive(Default, Serialize)]
struct Sizes {
    manifests: u64,
    manifest_bytes: u64,
    moves: u64,
    move_bytes: u64,
    files: u64,
    file_bytes: u64,
}

/// The observer that keeps the times of all publications.
#[derive(Default)]
struct Times {
    seconds: Vec<f64>,
    bases: u64,
    versions: u64,
}

impl Observer for Times {
    fn report_version(&mut self, report: &PublishReport<'_>) {
        let Some(published) = report.published.filter(|published| !published.was_there) else {
            return;
        };
        self.seconds.push(report.seconds);
        self.bases += u64::from(published.version.is_base());
        self.versions = published.version.version.0;
    }
}

pub(super) fn run(versions: u64, folder: &Path, is_json: bool) -> Result<()> {
    let url = folder.join("registry");
    fs::write(folder.join("rows.csv"), rows(versions)).context("the data cannot be written")?;
    let job = Job::from_value(job(folder, &url)?.into())?;
    let options = TrainOptions {
        resume: false,
        from: None,
        workers: compute_pool(None)?,
        files: durable_files()?,
        stop: signals::stop_flag()?,
        profile: None,
        in_memory: true,
        trainer: TrainerPlace::ALONE,
    };
    eprintln!("publishing {versions} versions");
    let mut times = Times::default();
    let began = Instant::now();
    let report = zillion_trainer::train(job, options, &mut times)?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(!report.interrupted, "the benchmark was stopped by a signal; start it again");
    let model = open_model(&url)?;
    let newest = model.latest()?.context("the run has published no version")?;
    ensure!(
        times.seconds.len() as u64 == versions && newest == VersionId(times.versions),
        "the run has published {} versions instead of {versions}",
        times.seconds.len()
    );
    let compared = COMPARED.min(times.seconds.len());
    let first_ms = median_ms(&times.seconds[..compared]);
    let last_ms = median_ms(&times.seconds[times.seconds.len() - compared..]);
    let look_ms = measure_looks(&model, newest)?;
    let store = Sizes::of(&url.join(MODEL))?;
    let age = Duration::from_secs(KEPT_SECONDS);
    let keep = usize::try_from(KEPT)?;
    let done =
        model.collect(Retention { keep, keep_for: age, grace: age, history: true }, false)?;
    let store_after_collection = Sizes::of(&url.join(MODEL))?;
    ensure!(
        store_after_collection.manifests == done.kept_versions,
        "the registry has {} manifests, but its retention keeps {}",
        store_after_collection.manifests,
        done.kept_versions
    );
    let outcome = Outcome {
        versions,
        bases: times.bases,
        seconds,
        first_ms,
        last_ms,
        last_to_first: last_ms / first_ms,
        longest_ms: times.seconds.iter().fold(0.0, |a: f64, &b| a.max(b)) * 1e3,
        look_ms,
        store,
        kept_versions: done.kept_versions,
        store_after_collection,
    };
    print_outcome(&outcome, is_json)
}

/// Returns the median time of what a server asks the registry between two of its listings.
fn measure_looks(model: &Model, newest: VersionId) -> Result<f64> {
    let known = model.pointer(STABLE)?;
    let mut seconds = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let began = Instant::now();
        model.latest_since(newest)?;
        model.pointer_since(STABLE, &known)?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    Ok(median_ms(&seconds))
}

/// Returns the median of some times, in milliseconds with three digits.
fn median_ms(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    Duration::from_secs_f64(median).as_micros() as f64 / 1e3
}

/// Returns the rows of `steps` steps.
fn rows(steps: u64) -> String {
    let mut text = "user,item,click\n".to_owned();
    for row in 0..steps * BATCH {
        let (user, item) = (mix64(row) % USERS, mix64(row ^ 0x5a5a) % 50);
        // Writing to a text never fails.
        let _ = writeln!(text, "{user},{item},{}", mix64(row ^ 0xc3) % 2);
    }
    text
}

fn job(folder: &Path, url: &Path) -> Result<Table> {
    let text = format!(
        "[data]\nroot = {folder:?}\ntrain = ['rows.csv']\n[features.user]\nkind = 'id'\n\
         [features.item]\nkind = 'id'\n[labels.click]\n[tables.'*']\ndim = 4\n\
         [model]\nkind = 'dnn'\nhidden = [4]\n[train]\nepochs = 1\nbatch_size = {BATCH}\n\
         [publish]\nregistry = {url:?}\nmodel = '{MODEL}'\nevery = 1\nparity_rows = 4\n\
         keep_versions = {KEPT}\nkeep_seconds = {KEPT_SECONDS}\n\
         [run]\noutput = {:?}\n",
        folder.join("run")
    );
    text.parse().context("the job of the benchmark is not valid")
}

impl Sizes {
    /// Counts the objects in the folder of a model.
    fn of(folder: &Path) -> Result<Self> {
        let (manifests, manifest_bytes) = count(&folder.join("versions"))?;
        let (moves, move_bytes) = count(&folder.join("pointers"))?;
        let (files, file_bytes) = count(&folder.join("files"))?;
        Ok(Self { manifests, manifest_bytes, moves, move_bytes, files, file_bytes })
    }
}

/// Returns the number of files below a folder, and the number of their bytes.
fn count(folder: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    let entries = fs::read_dir(folder)
        .with_context(|| format!("folder `{}` cannot be listed", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let (files, bytes) =
            if metadata.is_dir() { count(&entry.path())? } else { (1, metadata.len()) };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    Ok(sum)
}
