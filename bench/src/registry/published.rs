//! Versions that a training run really publishes, one after each step, and the cost of a
//! publication after very many of them beside that of the first ones.
//!
//! The model is tiny, so that nearly the whole time of a publication is spent in the registry. The
//! publisher, its deltas, manifests and moves of the pointer are those of any other run. When the
//! versions are there, a second run with an empty registry publishes its first versions in turns
//! with the next ones of the old run, so that both see the same machine.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use toml::Table;
use zillion_device::machine::CpuTimes;
use zillion_feature::random::mix64;
use zillion_registry::{Model, Retention, STABLE, VersionId};
use zillion_trainer::{Job, Observer, PublishReport, TrainOptions, TrainerPlace};

use super::pairs::{Pairs, Side};
use crate::criteo::{MODEL, open_model};
use crate::print_outcome;
use crate::turns::median;
use zillion_console::{compute_pool, durable_files, signals};

/// The number of rows of a step.
const BATCH: u64 = 4;
/// The number of users, each of which has a row in a table.
const USERS: u64 = 500;
/// The number of publications of each run that are compared.
const COMPARED: u64 = 200;
/// The number of newest versions that the publisher keeps.
const KEPT: u64 = 2000;
/// The age in seconds below which the publisher removes nothing.
const KEPT_SECONDS: u64 = 60;
/// The number of looks for a new version that are measured.
const LOOKS: usize = 100;

#[derive(Serialize)]
struct Outcome {
    versions: u64,
    /// The number of publications that wrote a base themselves.
    bases: u64,
    /// The number of bases that were merged beside the publications.
    merges: u64,
    /// The largest number of bytes that one publication sent to the store.
    largest_sent_bytes: u64,
    /// The time of the old run alone, in seconds.
    seconds: f64,
    /// The median cost of the first publications of the new run.
    first: Cost,
    /// The median cost of the publications of the old run that were made in turns with them.
    last: Cost,
    /// The median of the ratios of their times, each of the old run to the new run.
    last_to_first: f64,
    /// The same of their processor times, which other programs of the machine disturb less.
    last_to_first_cpu: f64,
    longest_ms: f64,
    /// The median time of a look of a server for a new version, in milliseconds.
    look_ms: f64,
    /// The sizes of the registry when the run has ended.
    store: Sizes,
    /// The number of versions that the settings of the publisher keep after a last collection: the
    /// newest, the young, and those on which they stand.
    kept_versions: u64,
    /// The number of files that these versions need.
    kept_files: u64,
    /// The sizes of the registry after the last collection.
    store_after_collection: Sizes,
}

/// The median cost of a publication.
#[derive(Serialize)]
struct Cost {
    ms: f64,
    /// The processor time of the process from one publication to the next one, with a step of
    /// training and with collections that run at that moment.
    cpu_ms: f64,
    /// The number of requests to the store.
    requests: f64,
    /// The number of bytes that were sent to the store.
    sent_bytes: f64,
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

/// A publication that was measured.
#[derive(Clone, Copy)]
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    requests: u64,
    sent_bytes: u64,
}

/// The observer that measures all publications, and takes turns with another one.
struct Times {
    side: Side,
    pairs: Arc<Pairs>,
    /// The number of publications that are made without turns.
    alone: u64,
    began: Instant,
    /// The time of the publications without turns.
    alone_seconds: f64,
    measured: Vec<Measured>,
    /// The processor time of the process when the turn began.
    cpu: Duration,
    /// The sums of requests and of sent bytes after the last publication.
    before: (u64, u64),
    bases: u64,
    merges: u64,
    versions: u64,
}

impl Times {
    fn new(side: Side, alone: u64, pairs: Arc<Pairs>) -> Self {
        Self {
            side,
            pairs,
            alone,
            began: Instant::now(),
            alone_seconds: 0.0,
            measured: Vec::new(),
            cpu: Duration::ZERO,
            before: (0, 0),
            bases: 0,
            merges: 0,
            versions: 0,
        }
    }
}

impl Observer for Times {
    fn report_version(&mut self, report: &PublishReport<'_>) {
        let Some(published) = report.published.filter(|published| !published.was_there) else {
            return;
        };
        let (requests, sent) = (published.store.requests, published.store.sent_bytes);
        self.measured.push(Measured {
            seconds: report.seconds,
            cpu_seconds: CpuTimes::now().own.saturating_sub(self.cpu).as_secs_f64(),
            requests: requests - self.before.0,
            sent_bytes: sent - self.before.1,
        });
        self.before = (requests, sent);
        self.bases += u64::from(published.version.is_base());
        self.merges = published.compactions.published;
        self.versions = published.version.version.0;
        let number = self.measured.len() as u64;
        if number == self.alone {
            self.alone_seconds = self.began.elapsed().as_secs_f64();
        }
        if number >= self.alone {
            self.pairs.pass(self.side);
        }
        self.cpu = CpuTimes::now().own;
    }
}

/// One of the two runs, with a folder and a registry of its own.
struct Run {
    folder: PathBuf,
    url: PathBuf,
    versions: u64,
    stop: Arc<AtomicBool>,
}

impl Run {
    fn new(folder: PathBuf, versions: u64, stop: Arc<AtomicBool>) -> Result<Self> {
        fs::create_dir_all(&folder).context("a folder cannot be created")?;
        let url = folder.join("registry");
        fs::write(folder.join("rows.csv"), rows(versions)).context("the data cannot be written")?;
        Ok(Self { folder, url, versions, stop })
    }

    /// Trains, and measures every publication.
    fn train(&self, times: &mut Times) -> Result<()> {
        let job = Job::from_value(job(&self.folder, &self.url)?.into())?;
        let options = TrainOptions {
            resume: false,
            overwrite: false,
            from: None,
            workers: compute_pool(None)?,
            files: durable_files()?,
            stop: self.stop.clone(),
            profile: None,
            in_memory: true,
            trainer: TrainerPlace::ALONE,
        };
        let report = zillion_trainer::train(job, options, times)?;
        ensure!(!report.interrupted, "the benchmark was stopped by a signal; start it again");
        let count = times.measured.len() as u64;
        ensure!(
            count == self.versions,
            "the run has published {count} versions instead of {}",
            self.versions
        );
        Ok(())
    }
}

pub(super) fn run(versions: u64, folder: &Path, is_json: bool) -> Result<()> {
    let stop = signals::stop_flag()?;
    let old = Run::new(folder.join("old"), versions + COMPARED, stop.clone())?;
    let new = Run::new(folder.join("new"), COMPARED, stop)?;
    eprintln!("publishing {versions} versions");
    let pairs = Arc::new(Pairs::new());
    let mut times = Times::new(Side::Old, versions, pairs.clone());
    let mut firsts = Times::new(Side::New, 0, pairs.clone());
    std::thread::scope(|scope| {
        let turns = pairs.clone();
        let (new, firsts) = (&new, &mut firsts);
        let second = std::thread::Builder::new()
            .name("zillion-bench-new".to_owned())
            .spawn_scoped(scope, move || {
                turns.wait(Side::New);
                let trained = new.train(firsts);
                turns.end();
                trained
            })?;
        let trained = old.train(&mut times);
        pairs.end();
        let Ok(second) = second.join() else { bail!("the second run has panicked") };
        trained.and(second)
    })?;
    let model = open_model(&old.url)?;
    let newest = model.latest()?.context("the run has published no version")?;
    ensure!(newest == VersionId(times.versions), "version {newest} is not of the run");
    let look_ms = measure_looks(&model, newest)?;
    let store = Sizes::of(&old.url.join(MODEL))?;
    let age = Duration::from_secs(KEPT_SECONDS);
    let keep = usize::try_from(KEPT)?;
    let done =
        model.collect(Retention { keep, keep_for: age, grace: age, history: true }, false)?;
    let store_after_collection = Sizes::of(&old.url.join(MODEL))?;
    ensure!(
        store_after_collection.manifests == done.kept_versions,
        "the registry has {} manifests, but its retention keeps {}",
        store_after_collection.manifests,
        done.kept_versions
    );
    let lasts = &times.measured[times.measured.len() - firsts.measured.len()..];
    let ratio = |of: fn(&Measured) -> f64| {
        let pairs = lasts.iter().zip(&firsts.measured);
        median(&mut pairs.map(|(last, first)| of(last) / of(first)).collect::<Vec<_>>())
    };
    let outcome = Outcome {
        versions,
        bases: times.bases,
        merges: times.merges,
        largest_sent_bytes: times.measured.iter().map(|m| m.sent_bytes).max().unwrap_or(0),
        seconds: times.alone_seconds,
        first: Cost::of(&firsts.measured),
        last: Cost::of(lasts),
        last_to_first: ratio(|m| m.seconds),
        last_to_first_cpu: ratio(|m| m.cpu_seconds),
        longest_ms: times.measured.iter().fold(0.0, |most: f64, m| most.max(m.seconds)) * 1e3,
        look_ms,
        store,
        kept_versions: done.kept_versions,
        kept_files: done.kept_files,
        store_after_collection,
    };
    print_outcome(&outcome, is_json)
}

impl Cost {
    /// Returns the medians of some publications.
    fn of(measured: &[Measured]) -> Self {
        let of = |figure: fn(&Measured) -> f64| {
            median(&mut measured.iter().map(figure).collect::<Vec<_>>())
        };
        Self {
            ms: (of(|m| m.seconds) * 1e6).round() / 1e3,
            cpu_ms: (of(|m| m.cpu_seconds) * 1e6).round() / 1e3,
            requests: of(|m| m.requests as f64),
            sent_bytes: of(|m| m.sent_bytes as f64),
        }
    }
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
