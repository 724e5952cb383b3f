//! The benchmark `zillion bench online kills`: a run that is killed again and again.
//!
//! Events are written with random pauses, so that many batches end because their rows have waited
//! long enough, and partitions become idle and return. The run is killed by SIGKILL at random
//! moments and started again. At the end its log is repeated in another folder with another
//! registry. No event may be lost or doubled, and all versions must be equal, apart from what names
//! the run and the time.

mod compare;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_console::open_registry;
use zillion_device::machine::CpuTimes;
use zillion_feature::random::combine;

use self::compare::{Compared, compare};
use super::contents::{Contents, log_bytes, next_decision};
use super::events::share;
use super::job::{EVENTS, JobSettings, MODEL, REGISTRY, RUN};
use super::run::{OnlineRun, replay};
use super::source::Source;
use super::writer::PartitionWriter;
use crate::args::OnlineKillsArgs;
use crate::{print_outcome, scratch_folder};

/// The folder of the repeated run, and its registry.
const AGAIN: (&str, &str) = ("again", "registry-again");
/// The time within which the run must consume what is left after the last kill.
const PATIENCE: Duration = Duration::from_secs(600);
/// The time between two looks at the log of the run.
const PAUSE: Duration = Duration::from_millis(10);
/// The share of batches that must have ended by waiting.
const LINGERED: f64 = 1.0 / 3.0;
/// The part of the time between two kills, at its beginning and at its end, without a kill.
const MARGIN: f64 = 0.05;

#[derive(Serialize)]
struct Outcome {
    kills: u32,
    seconds: f64,
    bytes: u64,
    /// The number of messages that were written, and those that batches contain.
    written: u64,
    messages: u64,
    rows: u64,
    lost: u64,
    doubled: u64,
    /// The number of spans of the log that do not begin where the span before them ended.
    gaps: u64,
    batches: usize,
    lingered_share: f64,
    checkpoints: u64,
    idles: u64,
    backs: u64,
    /// The seconds from each start after a kill to the first new decision; absent where the next
    /// kill came first.
    recovery_seconds: Vec<Option<f64>>,
    longest_recovery_seconds: f64,
    replay_seconds: f64,
    replay_rows_per_second: f64,
    versions: Compared,
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &OnlineKillsArgs, is_json: bool) -> Result<()> {
    let folder = scratch_folder(args.place.folder.as_deref())?;
    let outcome = measure(args, folder.path())?;
    print_outcome(&outcome, is_json)?;
    let Outcome { lost, doubled, gaps, versions, lingered_share, .. } = &outcome;
    if *lost + *doubled + *gaps > 0 || !versions.are_equal() {
        bail!(
            "{lost} events were lost and {doubled} doubled, {gaps} spans do not fit, and {} of {} \
             versions differ; report this",
            versions.different,
            versions.compared
        );
    }
    if *lingered_share < LINGERED {
        bail!(
            "only {:.0} % of the batches ended by waiting, so the drill says little; write fewer \
             bytes in more seconds",
            lingered_share * 100.0
        );
    }
    Ok(())
}

fn measure(args: &OnlineKillsArgs, folder: &Path) -> Result<Outcome> {
    let job = JobSettings {
        linger_seconds: 0.1,
        idle_seconds: 1.0,
        checkpoint_seconds: args.checkpoint_seconds,
        // The replay begins at the beginning of the log.
        keep: 1_000_000,
        threads: args.place.threads,
        ..JobSettings::default()
    };
    job.write(folder)?;
    let run = folder.join(RUN);
    let events = folder.join(EVENTS);
    std::fs::create_dir_all(&events)?;
    let (cpus, began) = (CpuTimes::now(), Instant::now());
    let source = Source::with_pauses(&events, args.bytes.0, args.seconds, args.seed)?;
    let mut recoveries = Vec::new();
    let mut known = 0;
    for kill in 0..args.kills {
        let mut online = OnlineRun::start(folder, &format!("online-{kill}"))?;
        let until = began + moment(args, kill);
        let recovery = watch(&mut online, &run, &mut known, |_| Instant::now() >= until)?;
        // The first start recovers nothing.
        recoveries.extend((kill > 0).then_some(recovery));
        online.kill()?;
        eprintln!(
            "kill {} of {} after {:.1} s",
            kill + 1,
            args.kills,
            began.elapsed().as_secs_f64()
        );
    }
    let mut online = OnlineRun::start(folder, "online-last")?;
    let recovery = watch(&mut online, &run, &mut known, |is_new| is_new && source.has_ended())?;
    recoveries.extend((args.kills > 0).then_some(recovery));
    let writers = source.finish()?;
    let written: u64 = writers.iter().map(|writer| writer.events).sum();
    wait_until_learned(&mut online, &folder.join(REGISTRY), written)?;
    online.stop()?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("repeating the log");
    let replayed = replay(folder, RUN, AGAIN)?.as_secs_f64();
    let contents = Contents::read(&run)?;
    let model = |registry: &str| -> Result<_> {
        Ok(open_registry(&folder.join(registry).display().to_string())?.model(MODEL)?)
    };
    let versions = compare(&model(REGISTRY)?, &model(AGAIN.1)?)?;
    let learned = versions.rows;
    let unread = unread_bytes(&contents, &writers);
    if unread > 0 {
        bail!("{unread} bytes of the partitions were not consumed; report this");
    }
    let longest = recoveries.iter().flatten().copied().fold(0.0, f64::max);
    Ok(Outcome {
        kills: args.kills,
        seconds,
        bytes: writers.iter().map(|writer| writer.bytes).sum(),
        written,
        messages: contents.messages,
        rows: learned,
        lost: written.saturating_sub(contents.messages.min(learned)),
        doubled: contents.messages.max(learned).saturating_sub(written),
        gaps: contents.gaps,
        batches: contents.batches.len(),
        lingered_share: contents.lingered as f64 / contents.batches.len().max(1) as f64,
        checkpoints: contents.checkpoints,
        idles: contents.idles,
        backs: contents.backs,
        recovery_seconds: recoveries,
        longest_recovery_seconds: longest,
        replay_seconds: replayed,
        replay_rows_per_second: (contents.rows() as f64 / replayed).round(),
        versions,
        other_cpus: CpuTimes::now().since(&cpus).other_cpus,
    })
}

/// Returns the time of a kill since the start. Each kill has an equal part of the time of the
/// events, and comes at a random moment of it.
fn moment(args: &OnlineKillsArgs, kill: u32) -> Duration {
    let part = args.seconds / f64::from(args.kills);
    let random = share(combine(args.seed ^ 0x6b69_6c6c, u64::from(kill)));
    Duration::from_secs_f64(part * (f64::from(kill) + MARGIN + (1.0 - 2.0 * MARGIN) * random))
}

/// Watches a run until `is_over`, which is told whether there was a new decision. Returns the time
/// from the start of the run to its first new decision. `known` is a number that the log has
/// reached.
fn watch(
    online: &mut OnlineRun,
    run: &Path,
    known: &mut u64,
    is_over: impl Fn(bool) -> bool,
) -> Result<Option<f64>> {
    // The process has only begun, so that these are the decisions of the process before it.
    *known = next_decision(run, *known)?;
    let bytes = log_bytes(run);
    let mut first = None;
    while !is_over(first.is_some()) {
        online.check()?;
        let at = online.started.elapsed().as_secs_f64();
        // The log is read only if it has grown.
        if first.is_none() && log_bytes(run) != bytes && next_decision(run, *known)? > *known {
            first = Some((at * 1e3).round() / 1e3);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(first)
}

/// Waits until a version has learned from all events.
fn wait_until_learned(online: &mut OnlineRun, registry: &Path, written: u64) -> Result<()> {
    let began = Instant::now();
    let model = open_registry(&registry.display().to_string())?.model(MODEL)?;
    loop {
        online.check()?;
        let latest = model.latest()?.context("the run has published no version")?;
        let rows = model.version(latest)?.origin.cursor.row;
        if rows >= written {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("the last version has learned from {rows} of {written} events");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the number of bytes of the partitions that the log does not contain.
fn unread_bytes(contents: &Contents, writers: &[PartitionWriter]) -> u64 {
    let ends = contents.ends_by_name();
    let unread = |(number, writer): (usize, &PartitionWriter)| {
        let end = ends.get(PartitionWriter::name(number).as_str()).copied().unwrap_or_default();
        writer.bytes.abs_diff(end)
    };
    writers.iter().enumerate().map(unread).sum()
}
