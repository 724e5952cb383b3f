//! The benchmark `zillion bench overload`: a server under a load above its capacity.
//!
//! For each number of rows in a request, a server in a separate process gets three kinds of load:
//!
//! 1. One connection sends one request at a time. This run measures the latency without load.
//! 2. A few connections each send the next request after the answer to the last one. This run
//!    measures the capacity, in answers per second.
//! 3. An open loop sends requests at a multiple of the capacity. This run measures the goodput in
//!    each second, and the latencies of admitted requests and of refusals (429).
//!
//! The generator runs on the same machine as the server and takes processors from the server. It
//! takes more of them in the third run, and for this reason alone the goodput can fall below the
//! capacity. The figures `own_cpus` and `server_cpus` of the third run show the processors of both
//! sides. With `--server-cpus`, the server keeps to some processors in all runs. A generator that
//! cannot send at the planned rate leaves requests out, and `sent` shows the number of requests per
//! second that reached the server.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde::Serialize;
use zillion_console::compute_pool;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;

use crate::args::BenchOverloadArgs;
use crate::criteo::{MODEL, Requests, open_model, publish};
use crate::load::answers::Answers;
use crate::load::bodies::Recipe;
use crate::load::figures::{Figures, Percentiles, round};
use crate::load::open_loop::{self, Done, Outcome as Ended, Plan};
use crate::load::target::Target;
use crate::print_outcome;
use crate::server::{Asker, Place, ServerChild};

/// The number of different requests.
const DIFFERENT: usize = 16;
/// The number of connections in the run that measures the capacity, for each thread of the server
/// that scores.
const CONNECTIONS_A_THREAD: usize = 2;
/// The length of the run that measures the capacity, in seconds.
const CAPACITY_SECONDS: f64 = 5.0;
/// The rate at which all requests of a run are due at once.
const AT_ONCE: f64 = 1e9;
/// The time limit of a request in the runs without overload.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of a request in the run with overload.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time that a request of the overload waits in the generator.
const SEND_WITHIN: Duration = Duration::from_millis(10);
/// The HTTP status of a refused request.
const REFUSED: u16 = 429;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    threads: Option<usize>,
    seconds: f64,
    factor: f64,
    connections: usize,
    runs: Vec<Measured>,
}

/// The figures of the requests with one number of rows.
#[derive(Serialize)]
struct Measured {
    candidates: usize,
    request_bytes: usize,
    unloaded: Percentiles,
    /// The number of answers per second without overload.
    capacity: f64,
    /// The number of requests per second that were due.
    offered: f64,
    /// The number of requests per second that the generator was able to send.
    sent: f64,
    /// The number of answers with scores per second in the overload.
    goodput: f64,
    /// The goodput divided by the capacity.
    goodput_share: f64,
    goodput_by_second: Vec<u64>,
    /// The latencies of the requests that were answered with scores, counted from their due times.
    admitted: Percentiles,
    /// The latencies of the refused requests, counted from their due times.
    refused: Percentiles,
    refusals: usize,
    /// The number of failed requests, by status or by kind of failure.
    failures: BTreeMap<String, u64>,
    own_cpus: f64,
    server_cpus: Option<f64>,
}

pub(crate) fn run(args: &BenchOverloadArgs, is_json: bool) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let published = open_model(&folder.join("registry"))?;
    eprintln!("publishing {} rows", args.rows);
    publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    let mut runs = Vec::new();
    for candidates in args.candidates.iter().map(|candidates| candidates.get()) {
        eprintln!("{candidates} rows a request");
        // Each number of rows has its own server, so the server has learned nothing from other
        // requests.
        let name = format!("server-{candidates}");
        let place =
            Place { threads: args.threads, cpus: args.server_cpus.as_deref(), ..Place::default() };
        let (server, _) = ServerChild::start_on(folder, &name, place)?;
        runs.push(measure(&server, args, candidates)?);
    }
    let outcome = Outcome {
        rows: args.rows.get(),
        threads: args.threads.map(NonZeroUsize::get),
        seconds: args.seconds,
        factor: args.factor,
        connections: args.connections.get(),
        runs,
    };
    print_outcome(&outcome, is_json)
}

fn measure(server: &ServerChild, args: &BenchOverloadArgs, candidates: usize) -> Result<Measured> {
    let requests = Requests::new(args.rows.get(), candidates, DIFFERENT);
    let recipe = Recipe { protocol: args.protocol, ..Recipe::v2(candidates) };
    let messages = requests.bodies(&recipe)?.into_iter();
    let messages: Vec<Bytes> =
        messages.map(|body| body.message(args.protocol, MODEL, None)).collect::<Result<_>>()?;
    let target = Target::new(server.url(), MODEL, None, args.protocol)?;

    let asker = Asker::new(server.url())?;
    asker.post_all(&target, &messages, DIFFERENT)?;
    let began = Instant::now();
    let count = if candidates <= 10 { 2000 } else { 200 };
    let (times, _) = asker.post_all(&target, &messages, count)?;
    let alone = count as f64 / began.elapsed().as_secs_f64();

    let capacity = measure_capacity(&target, &messages, args.threads, alone)?;
    let rate = args.factor * capacity;
    let plan = Plan {
        rate,
        requests: (rate * args.seconds).ceil() as u64,
        connections: args.connections.get(),
        timeout: TIMEOUT,
        send_within: SEND_WITHIN,
    };
    let before = (CpuTimes::now(), cpu_seconds(server.pid()), Instant::now());
    let run = open_loop::run(&target, &messages, plan, Answers::new(false))?;
    let elapsed = before.2.elapsed().as_secs_f64();
    let spent = before.1.zip(cpu_seconds(server.pid())).map(|(then, now)| now - then);
    let cpus = CpuTimes::now().since(&before.0);
    let figures = Figures::of(&run.done, &plan, run.elapsed);
    let ended = |wanted: u16| -> Vec<Duration> {
        let is_wanted = |done: &&Done| done.outcome == Ended::Status(wanted);
        run.done.iter().filter(is_wanted).map(|done| done.latency).collect()
    };
    let refused = ended(REFUSED);
    let goodput = figures.ok as f64 / args.seconds;
    Ok(Measured {
        candidates,
        request_bytes: messages.first().map_or(0, Bytes::len),
        unloaded: Percentiles::of(times),
        capacity: round(capacity),
        offered: round(rate),
        sent: round(figures.sent as f64 / args.seconds),
        goodput: round(goodput),
        goodput_share: round(goodput / capacity),
        goodput_by_second: figures.slices.iter().map(|s| s.requests - s.failed).collect(),
        admitted: Percentiles::of(ended(200)),
        refusals: refused.len(),
        refused: Percentiles::of(refused),
        failures: figures.failures,
        own_cpus: cpus.own_cpus,
        server_cpus: spent.map(|spent| round(spent / elapsed)),
    })
}

/// Measures the number of answers per second. A few connections send requests without a pause.
/// `alone` is the rate of a single connection.
fn measure_capacity(
    target: &Target,
    messages: &[Bytes],
    threads: Option<NonZeroUsize>,
    alone: f64,
) -> Result<f64> {
    let threads = threads.unwrap_or_else(zillion_device::machine::cpus).get();
    let plan = Plan {
        rate: AT_ONCE,
        requests: (alone * threads as f64 * CAPACITY_SECONDS).ceil() as u64,
        connections: threads * CONNECTIONS_A_THREAD,
        timeout: PATIENCE,
        send_within: Duration::MAX,
    };
    let run = open_loop::run(target, messages, plan, Answers::new(false))?;
    let figures = Figures::of(&run.done, &plan, run.elapsed);
    ensure!(
        figures.ok > 0,
        "no request was answered while the capacity was measured: {:?}",
        figures.failures
    );
    Ok(figures.achieved_rate)
}
