//! The benchmark `zillion bench wire`: the times of the same requests in every protocol, divided
//! into stages.
//!
//! The server runs in a separate process and receives one request at a time over one connection.
//! The next request is sent after the answer to the last one, so the figures show single requests
//! and not a queue. The times in the server come from its histograms of stages. The rest of a
//! request's time belongs to the client, to the operating system and to the framing of HTTP or
//! gRPC. The stage `score` is the work of the engine; all other time is the cost of the protocol.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;

use crate::args::{BenchWireArgs, Protocol};
use crate::criteo::{MODEL, Requests, open_model, publish};
use crate::load::bodies::Recipe;
use crate::load::figures::{Percentiles, round};
use crate::load::target::Target;
use crate::print_outcome;
use crate::server::{Asker, Series, ServerChild, Setup};
use zillion_console::compute_pool;

/// The number of different requests.
const DIFFERENT: usize = 64;
/// The number of ids that describe the user in a rank request. All numbers of a rank request also
/// belong to the user.
const CONTEXT_IDS: usize = 13;
const STAGES: [&str; 6] = ["receive", "queue", "parse", "score", "log", "write"];

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    threads: Option<usize>,
    /// Whether all requests are logged.
    request_log: bool,
    runs: Vec<Measured>,
    /// The number of processors that other programs kept busy, without this process and the server.
    /// The figures are valid if this number is below 0.25.
    other_cpus: Option<f64>,
}

/// The figures of one protocol and one size of requests.
#[derive(Serialize)]
struct Measured {
    candidates: usize,
    protocol: &'static str,
    requests: usize,
    request_bytes: usize,
    answer_bytes: usize,
    #[serde(flatten)]
    latency: Percentiles,
    mean_ms: f64,
    /// The mean processor time of the server for a request, in milliseconds, with all its threads.
    server_cpu_ms: Option<f64>,
    /// The mean time in milliseconds of each stage in [`STAGES`], as the server reports it. The key
    /// of a stage is its name with `_ms` at the end, such as `queue_ms`.
    #[serde(flatten)]
    stages: BTreeMap<String, f64>,
    /// The time outside these stages, which belongs to the client, the operating system and the
    /// framing.
    rest_ms: f64,
}

pub(crate) fn run(args: &BenchWireArgs, is_json: bool) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let published = open_model(&folder.join("registry"))?;
    eprintln!("publishing {} rows", args.rows);
    publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    let log = folder.join("requests");
    let server = ServerChild::start(Setup {
        name: Some("server"),
        cache: Some(&folder.join("cache")),
        // If a run has no problems, the server logs nothing at this level.
        level: "warn",
        threads: args.threads,
        request_log: args.request_log.then_some(&log),
        ..Setup::new(MODEL, &folder.join("registry"), &folder.join("server.log"))
    })?;
    server.wait_ready()?;
    let before = (CpuTimes::now(), cpu_seconds(server.pid()), Instant::now());
    let mut runs = Vec::new();
    for candidates in args.candidates.iter().map(|candidates| candidates.get()) {
        for (protocol, name) in [
            (Protocol::V2, "v2 over HTTP, JSON"),
            (Protocol::Predict, "TF-Serving's predict, JSON"),
            (Protocol::Rank, "rank, JSON"),
            (Protocol::Grpc, "v2 over gRPC, raw tensors"),
        ] {
            eprintln!("{candidates} candidates, {name}");
            runs.push(measure(&server, args, candidates, protocol, name)?);
        }
    }
    let cpus = CpuTimes::now().since(&before.0);
    let spent = before.1.zip(cpu_seconds(server.pid())).map(|(then, now)| now - then);
    let servers = spent.map(|spent| spent / before.2.elapsed().as_secs_f64());
    let outcome = Outcome {
        rows: args.rows.get(),
        threads: args.threads.map(std::num::NonZeroUsize::get),
        request_log: args.request_log,
        runs,
        other_cpus: cpus.other_cpus.zip(servers).map(|(all, own)| (all - own).max(0.0)),
    };
    print_outcome(&outcome, is_json)
}

fn measure(
    server: &ServerChild,
    args: &BenchWireArgs,
    candidates: usize,
    protocol: Protocol,
    name: &'static str,
) -> Result<Measured> {
    let ids = (1..=CONTEXT_IDS).map(|i| format!("C{i}"));
    let context = match protocol {
        Protocol::Rank => ids.chain((1..=13).map(|i| format!("I{i}"))).collect(),
        _ => Vec::new(),
    };
    let recipe = Recipe { protocol, context, ..Recipe::v2(candidates) };
    let requests = Requests::new(args.rows.get(), candidates, DIFFERENT);
    let messages = requests.bodies(&recipe)?.into_iter();
    let messages: Vec<Bytes> =
        messages.map(|body| body.message(protocol, MODEL, None)).collect::<Result<_>>()?;
    let target = Target::new(server.url(), MODEL, None, protocol)?;
    let asker = Asker::new(server.url())?;
    // Each different request is sent once before the measurement, so that pages are mapped and
    // buffers have their final sizes.
    asker.post_all(&target, &messages, DIFFERENT)?;
    let count = args.requests.map_or_else(|| usual_count(candidates), std::num::NonZeroUsize::get);
    let before = server.series()?;
    let cpu_before = cpu_seconds(server.pid());
    let (times, answer_bytes) = asker.post_all(&target, &messages, count)?;
    let spent = cpu_before.zip(cpu_seconds(server.pid())).map(|(then, now)| now - then);
    let after = server.series()?;
    let mean = times.iter().sum::<Duration>().as_secs_f64() / count as f64 * 1e3;
    let stages = STAGES.map(|stage| stage_ms(&before, &after, stage));
    let named = STAGES.into_iter().zip(stages);
    Ok(Measured {
        candidates,
        protocol: name,
        requests: count,
        request_bytes: messages.first().map_or(0, Bytes::len),
        answer_bytes,
        latency: Percentiles::of(times),
        mean_ms: round(mean),
        server_cpu_ms: spent.map(|spent| round(spent / count as f64 * 1e3)),
        stages: named.map(|(stage, ms)| (format!("{stage}_ms"), round(ms))).collect(),
        rest_ms: round(mean - stages.iter().sum::<f64>()),
    })
}

/// Returns the mean time of a stage between two scrapes, in milliseconds.
fn stage_ms(before: &Series, after: &Series, stage: &str) -> f64 {
    let grown = |what: &str| {
        let series = format!("zillion_serving_stage_seconds_{what}{{stage=\"{stage}\"}}");
        after.sample(&series) - before.sample(&series)
    };
    grown("sum") / grown("count").max(1.0) * 1e3
}

/// Returns a number of requests with which a figure is stable after a few seconds of measurement.
fn usual_count(candidates: usize) -> usize {
    match candidates {
        0..=10 => 5000,
        11..=200 => 1000,
        _ => 300,
    }
}
