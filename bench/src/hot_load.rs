//! The benchmark `zillion bench hot-load`: a server under constant load, while it receives one
//! delta per second and some rollbacks.
//!
//! All parts run at the same time, as in production: requests in an open loop, a model that is
//! trained and published, and a server in a separate process that follows the versions. Each answer
//! names its version and is compared bit for bit with the scores of this version, so an answer that
//! mixes two versions is detected.
//!
//! A run has these parts, in this order:
//!
//! * a warm-up, which is not measured;
//! * a part in which no version is loaded;
//! * the deltas, with the rollbacks spread over them;
//! * a rollback over many deltas to an older version, and a delta with this version as its parent.

mod feed;
mod parts;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;
use zillion_registry::{Model, STABLE};

use crate::args::{BenchHotLoadArgs, Protocol};
use crate::criteo::{Requests, open_model};
use crate::load::answers::{Answers, Checked};
use crate::load::bodies::Recipe;
use crate::load::open_loop::{self, Plan};
use crate::print_outcome;
use crate::server::{Memory, Series, ServerChild, Summary};
use feed::Feed;
use parts::Part;
use watch::{Freshness, Watch};

/// The number of different requests.
const BODIES: usize = 16;
const CONNECTIONS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(10);
/// The length of the warm-up. It is needed because the pages of the files are not mapped before the
/// first requests.
const WARM_UP: Duration = Duration::from_secs(2);
/// The number of deltas that the last rollback undoes, or all deltas if there are fewer.
const FAR: usize = 100;
/// The maximum time until the server must answer with a new version.
const PATIENCE: Duration = Duration::from_secs(60);
/// The target for the maximum time of a slice of a load, in seconds.
const SLICE_SECONDS: f64 = 5e-4;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    delta_rows: usize,
    rate: f64,
    candidates: usize,
    requests: u64,
    failed: u64,
    failures: BTreeMap<String, u64>,
    check: Checked,
    versions_seen: usize,
    quiet: Part,
    loads: Part,
    /// The part from the rollback over many deltas to the end.
    last: Part,
    memory_before: Memory,
    memory_after: Memory,
    published: usize,
    rollbacks: usize,
    /// The number of deltas that were published more than a tenth of a second too late.
    late: usize,
    freshness: Freshness,
    load: LoadFigures,
    far: FarRollback,
    /// The number of lines in the server's log. The log contains only warnings and errors.
    server_log_lines: usize,
    own_cpus: f64,
    server_cpus: Option<f64>,
    /// The number of processors that other programs kept busy, without this process and the server.
    /// The figures of a run are valid if this number is below 0.25.
    other_cpus: Option<f64>,
}

/// The figures that the server reports about its loading of versions.
#[derive(Serialize)]
struct LoadFigures {
    versions: Summary,
    slices: Summary,
    /// The share of slices whose time does not exceed the bound in `slices_within_bound_ms`. This
    /// bound is the largest bound of the histogram that does not exceed half a millisecond.
    slices_within: f64,
    slices_within_bound_ms: f64,
    /// The processor times of the slices. They exclude the time in which other work interrupted a
    /// slice.
    cpu_slices: Summary,
    cpu_slices_within: f64,
    failures: f64,
    layers_at_end: f64,
}

/// The figures of a rollback over many deltas to an older version, and of the delta that is
/// published after it.
#[derive(Serialize)]
struct FarRollback {
    deltas: usize,
    /// The time of the call that moves the pointer.
    call_ms: f64,
    /// The time from the move of the pointer to the first answer with the older version, in
    /// seconds.
    answers_after_seconds: f64,
    /// Whether the server serves the next delta, and the older version is the parent of this delta.
    branched: bool,
    branch_rows: u64,
    branch_answers_after_seconds: f64,
}

pub(crate) fn run(args: &BenchHotLoadArgs, is_json: bool) -> Result<()> {
    let outcome = measure(args)?;
    print_outcome(&outcome, is_json)?;
    let Checked { mismatches, unchecked, .. } = outcome.check;
    if outcome.failed > 0 || mismatches > 0 || unchecked > 0 {
        bail!(
            "{} requests failed, {mismatches} answers were wrong, {unchecked} could not be checked",
            outcome.failed
        );
    }
    Ok(())
}

fn measure(args: &BenchHotLoadArgs) -> Result<Outcome> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let model = open_model(&folder.join("registry"))?;
    eprintln!("making a base of {} rows", args.rows);
    let mut feed = Feed::new(&model, args.rows.get(), folder)?;
    feed.publish_base()?;
    let (server, _) = ServerChild::start_in(folder, "server", args.threads)?;
    let draw = |candidates, different| {
        Requests::new(args.rows.get(), candidates, different).bodies(&Recipe::v2(candidates))
    };
    let bodies = draw(args.candidates.get(), BODIES)?;
    let watch = Watch::start(server.target()?, draw(1, 1)?.remove(0).json)?;

    let quiet_end = WARM_UP + Duration::from_secs_f64(args.quiet_seconds);
    let loads_end = quiet_end + Duration::from_secs(args.deltas as u64);
    let end = loads_end + Duration::from_secs_f64(args.last_seconds);
    let plan = Plan {
        rate: args.rate,
        requests: (args.rate * end.as_secs_f64()).ceil() as u64,
        connections: CONNECTIONS,
        timeout: TIMEOUT,
        send_within: Duration::MAX,
    };
    let target = server.target()?;
    let texts: Vec<Bytes> = bodies.iter().map(|body| body.json.clone()).collect();
    let (cpus, server_cpu) = (CpuTimes::now(), cpu_seconds(server.pid()));
    let start = Instant::now();
    let load = std::thread::Builder::new()
        .name("zillion-loadgen".to_owned())
        .spawn(move || open_loop::run(&target, &texts, plan, Answers::new(true)))?;

    sleep_until(start + quiet_end);
    let memory_before = Memory::read(server.pid())?;
    let series = server.series()?;
    eprintln!("publishing {} deltas", args.deltas);
    let (rollbacks, late) = publish_deltas(args, &model, &mut feed, &watch, start + quiet_end)?;
    watch.settle(PATIENCE)?;
    sleep_until(start + loads_end);
    let memory_after = Memory::read(server.pid())?;
    let loads_end = start.elapsed();
    eprintln!("rolling back over many deltas");
    let far = roll_back_far(args, &model, &mut feed, &watch)?;

    let Ok(run) = load.join() else { bail!("the thread that sends requests panicked") };
    let run = run?;
    let wall = start.elapsed().as_secs_f64();
    let cpus = CpuTimes::now().since(&cpus);
    let server_cpus = cpu_seconds(server.pid()).zip(server_cpu).map(|(now, then)| now - then);
    let server_cpus = server_cpus.map(|seconds| seconds / wall);
    let (freshness, unanswered) = watch.freshness();
    watch.stop()?;
    let load = load_figures(&server, &series)?;
    let log = server.read_log();
    if let Some(line) = log.lines().next() {
        eprintln!("the server's log begins with: {line}");
    }
    drop(server);
    eprintln!("checking {} answers", run.done.len());
    // The check uses a cache of its own, and not the cache of the server. Therefore layers that the
    // server has merged are checked too.
    let cache = folder.join("check");
    let check = run.answers.compare(Protocol::V2, None, &model, &bodies, &cache)?;
    let parts = |from, to| Part::of(&run.done, &plan, from..to);
    let all = crate::load::figures::Figures::of(&run.done, &plan, run.elapsed);
    Ok(Outcome {
        rows: args.rows.get(),
        delta_rows: args.delta_rows.get(),
        rate: args.rate,
        candidates: args.candidates.get(),
        requests: all.requests,
        failed: all.failed + unanswered,
        failures: all.failures,
        check,
        versions_seen: run.answers.versions.len(),
        quiet: parts(WARM_UP, quiet_end),
        loads: parts(quiet_end, loads_end),
        last: parts(loads_end, end),
        memory_before,
        memory_after,
        published: args.deltas + 2,
        rollbacks,
        late,
        freshness,
        load,
        far,
        server_log_lines: log.lines().count(),
        own_cpus: cpus.own_cpus,
        server_cpus,
        other_cpus: cpus.other_cpus.zip(server_cpus).map(|(other, own)| (other - own).max(0.0)),
    })
}

/// Publishes one delta per second, starting at `start`. Each rollback happens half-way between two
/// deltas. Returns the number of rollbacks and the number of deltas that were published too late.
fn publish_deltas(
    args: &BenchHotLoadArgs,
    model: &Model,
    feed: &mut Feed,
    watch: &Watch,
    start: Instant,
) -> Result<(usize, usize)> {
    let (mut rollbacks, mut late) = (0, 0);
    for delta in 0..args.deltas {
        let due = start + Duration::from_secs(delta as u64);
        sleep_until(due);
        late += usize::from(due.elapsed() > Duration::from_millis(100));
        watch.record_move(feed.publish_delta(args.delta_rows.get())?);
        let behind_it = (delta + 1) * (args.rollbacks + 1) / args.deltas.max(1);
        if behind_it > rollbacks && rollbacks < args.rollbacks {
            sleep_until(due + Duration::from_millis(500));
            let moved = model.rollback(STABLE, None, "bench", None)?;
            watch.record_move(moved.to.version);
            feed.set_parent(moved.to.version)?;
            rollbacks += 1;
        }
    }
    Ok((rollbacks, late))
}

/// Rolls back over [`FAR`] deltas to an older version, and publishes a delta with this version as
/// its parent.
fn roll_back_far(
    args: &BenchHotLoadArgs,
    model: &Model,
    feed: &mut Feed,
    watch: &Watch,
) -> Result<FarRollback> {
    let chain = model.chain(model.pointer(STABLE)?.to.version)?;
    let deltas = FAR.min(chain.len() - 1);
    let to = chain[chain.len() - 1 - deltas].version;
    let began = Instant::now();
    model.rollback(STABLE, Some(to), "bench", None)?;
    let call = began.elapsed();
    watch.record_move(to);
    let answers_after_seconds = watch.settle(PATIENCE)?;
    // For one second, the server answers with the version to which the pointer was rolled back.
    std::thread::sleep(Duration::from_secs(1));
    feed.set_parent(to)?;
    let branch = feed.publish_delta(args.delta_rows.get())?;
    watch.record_move(branch);
    let branch_answers_after_seconds = watch.settle(PATIENCE)?;
    let branch = model.version(branch)?;
    Ok(FarRollback {
        deltas,
        call_ms: (call.as_secs_f64() * 1e6).round() / 1e3,
        answers_after_seconds,
        branched: branch.parent.is_some_and(|parent| parent.version == to),
        branch_rows: branch.layer.rows(),
        branch_answers_after_seconds,
    })
}

fn load_figures(server: &ServerChild, before: &Series) -> Result<LoadFigures> {
    let now = server.series()?;
    let came = |name: &str| now.histogram(name).since(&before.histogram(name));
    let slices = came("zillion_serving_load_slice_seconds");
    let (slices_within, bound) = slices.share_within(SLICE_SECONDS);
    let cpu_slices = came("zillion_serving_load_slice_cpu_seconds");
    let (cpu_slices_within, _) = cpu_slices.share_within(SLICE_SECONDS);
    let failures = "zillion_serving_load_failures_total";
    Ok(LoadFigures {
        versions: came("zillion_serving_load_seconds").summary(),
        slices: slices.summary(),
        slices_within,
        slices_within_bound_ms: bound * 1e3,
        cpu_slices: cpu_slices.summary(),
        cpu_slices_within,
        failures: now.value(failures) - before.value(failures),
        layers_at_end: now.value("zillion_serving_layers"),
    })
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}
