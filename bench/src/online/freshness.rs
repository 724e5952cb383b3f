//! The benchmark `zillion bench online freshness`: the time from an event to the first answer that
//! knows it.
//!
//! A source in this process writes events at a constant rate. `zillion online` learns from them,
//! publishes and writes checkpoints, and `zillion serve` follows the versions, each in a process of
//! its own. One client asks for a prediction every ten milliseconds. Files that no version needs
//! are collected meanwhile.
//!
//! The log of decisions tells which events each batch contains, the registry which batches each
//! version contains, and the client when a version first answered. So the figure is measured for
//! each event from its own time, with the wait until its file is written. The times are those of
//! the system's clock, which all processes share.

mod answers;
mod figures;
mod samples;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_console::open_registry;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;
use zillion_registry::{Model, Retention, VersionId};

use self::answers::{AnswerFigures, Answers};
use self::figures::{Freshness, Made, Slow};
use self::samples::Samples;
use super::contents::Contents;
use super::events::Events;
use super::job::{EVENTS, JobSettings, MODEL, REGISTRY, RUN};
use super::run::OnlineRun;
use super::source::{Source, now_ms};
use crate::args::OnlineFreshnessArgs;
use crate::load::bodies::Recipe;
use crate::server::{ServerChild, Setup, Summary};
use crate::{print_outcome, scratch_folder};

/// The age at which files of events are removed. No kept checkpoint needs them then.
const KEPT: Duration = Duration::from_secs(120);
/// The time between two collections of files.
const COLLECT: Duration = Duration::from_secs(60);
/// The age below which a collection keeps a file.
const GRACE: Duration = Duration::from_secs(60);
/// The time within which the last events must reach an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of the slowest versions that are shown.
const SLOWEST: usize = 10;

#[derive(Serialize)]
struct Outcome {
    rate: u64,
    seconds: f64,
    /// The time from an event to the first answer whose version contains it.
    freshness: Freshness,
    /// The part of this time up to the publication of the version.
    until_published: Freshness,
    /// For each version that answered, the time from its publication to its first answer.
    until_answered: Freshness,
    /// The number of events that no answer knew.
    unanswered: u64,
    versions: u64,
    /// The number of versions that never answered, because the next one was there.
    overtaken: u64,
    batches: usize,
    lingered: u64,
    checkpoints: u64,
    collections: u64,
    collected_files: u64,
    answers: AnswerFigures,
    /// The seconds of each stage of the thread that trains.
    stages: std::collections::BTreeMap<String, f64>,
    publish: Summary,
    checkpoint: Summary,
    load: Summary,
    merges: f64,
    slowest: Vec<Slow>,
    online_cpus: Option<f64>,
    server_cpus: Option<f64>,
    own_cpus: f64,
    /// The number of processors that other programs kept busy, without the three of the benchmark.
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &OnlineFreshnessArgs, is_json: bool) -> Result<()> {
    let folder = scratch_folder(args.place.folder.as_deref())?;
    let outcome = measure(args, folder.path())?;
    print_outcome(&outcome, is_json)?;
    if outcome.unanswered > 0 || outcome.answers.failed > 0 {
        bail!(
            "{} events reached no answer, and {} requests failed",
            outcome.unanswered,
            outcome.answers.failed
        );
    }
    Ok(())
}

fn measure(args: &OnlineFreshnessArgs, folder: &Path) -> Result<Outcome> {
    let job = JobSettings {
        publish_seconds: args.publish_seconds,
        checkpoint_seconds: args.checkpoint_seconds,
        threads: args.place.threads,
        ..JobSettings::default()
    };
    job.write(folder)?;
    std::fs::create_dir_all(folder.join(EVENTS))?;
    let mut online = OnlineRun::start(folder, "online")?;
    let metrics = online.metrics()?;
    let (cpus, began) = (CpuTimes::now(), Instant::now());
    let source = Source::steady(&folder.join(EVENTS), args.rate.get(), args.seconds, KEPT)?;
    let registry = open_folder(folder, &mut online)?;
    let server = ServerChild::start(Setup {
        cache: Some(&folder.join("cache")),
        level: "warn",
        ..Setup::new(MODEL, &folder.join(REGISTRY), &folder.join("server.log"))
    })?;
    server.wait_ready()?;
    let body = Recipe::v2(1).body(Events::new(2).draw(0).columns())?.json;
    let answers = Answers::start(server.target()?, body)?;
    let from_ms = now_ms() + (args.warm_up * 1e3) as i64;
    let mut samples = Samples::start(metrics, server.url())?;
    let (mut collections, mut collected_files, mut collected) = (0, 0, Instant::now());
    while !source.has_ended() {
        std::thread::sleep(Duration::from_millis(100));
        online.check()?;
        if collected.elapsed() >= COLLECT {
            let at = now_ms();
            let removed = registry
                .collect(Retention { keep: 16, grace: GRACE, ..Retention::default() }, false)?;
            samples.note_collection(at..now_ms());
            (collections, collected_files) =
                (collections + 1, collected_files + removed.removed_files);
            collected = Instant::now();
        }
    }
    let events = source.events();
    let written = source.finish()?;
    wait_for_rows(&registry, &answers, events)?;
    let wall = began.elapsed().as_secs_f64();
    let cpus = CpuTimes::now().since(&cpus);
    let of = |used: Option<f64>| used.map(|seconds| seconds / wall);
    let (online_cpus, server_cpus) = (of(online.cpu_seconds()), of(cpu_seconds(server.pid())));
    let samples = samples.finish()?;
    let (firsts, answer_figures) = answers.finish()?;
    online.stop()?;
    let contents = Contents::read(&folder.join(RUN))?;
    let made = made_versions(&registry)?;
    let table = figures::Table::new(&contents, &made, &firsts, from_ms);
    let waits = table.waits(&contents, &written);
    let slowest = waits.slowest(SLOWEST).into_iter().map(|slow| samples.explain(slow)).collect();
    let others = online_cpus.zip(server_cpus).map(|(online, server)| online + server);
    Ok(Outcome {
        rate: args.rate.get(),
        seconds: args.seconds,
        freshness: Freshness::of(waits.answered_ms.clone()),
        until_published: Freshness::of(waits.published_ms.clone()),
        until_answered: Freshness::of(table.until_answered()),
        unanswered: waits.unanswered,
        versions: made.len() as u64,
        overtaken: table.overtaken,
        batches: contents.batches.len(),
        lingered: contents.lingered,
        checkpoints: contents.checkpoints,
        collections,
        collected_files,
        answers: answer_figures,
        stages: samples.stages(),
        publish: samples.online("zillion_trainer_publish_seconds"),
        checkpoint: samples.online("zillion_trainer_checkpoint_seconds"),
        load: samples.server("zillion_serving_load_seconds"),
        merges: samples.merges(),
        slowest,
        online_cpus,
        server_cpus,
        own_cpus: cpus.own_cpus,
        other_cpus: cpus.other_cpus.zip(others).map(|(all, own)| (all - own).max(0.0)),
    })
}

/// Opens the registry when the run has made its first version.
fn open_folder(folder: &Path, online: &mut OnlineRun) -> Result<Model> {
    let url = folder.join(REGISTRY).display().to_string();
    let began = Instant::now();
    loop {
        if folder.join(REGISTRY).exists() {
            let model = open_registry(&url)?.model(MODEL)?;
            if model.latest().is_ok_and(|latest| latest.is_some()) {
                return Ok(model);
            }
        }
        online.check()?;
        if began.elapsed() > PATIENCE {
            bail!("the run has published nothing after {PATIENCE:?}; see its log in the folder");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until an answer has come from a version with this number of rows.
fn wait_for_rows(registry: &Model, answers: &Answers, rows: u64) -> Result<()> {
    let began = Instant::now();
    loop {
        let newest = answers.newest();
        if newest > 0 && registry.version(VersionId(newest))?.origin.cursor.row >= rows {
            return Ok(());
        }
        // The figures then say how many events no answer knew.
        if began.elapsed() > PATIENCE {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns all versions in their order.
fn made_versions(registry: &Model) -> Result<Vec<Made>> {
    let latest = registry.latest()?.context("the run has published no version")?;
    let read = |number| {
        let version = registry.version(VersionId(number))?;
        let (rows, published_ms) = (version.origin.cursor.row, version.published_ms as i64);
        Ok(Made { number, rows, published_ms })
    };
    (1..=latest.0).map(read).collect()
}
