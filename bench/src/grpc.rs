//! The benchmark `zillion bench grpc`: the capacity of a server with its network, and the latencies
//! below the capacity.
//!
//! The server runs in a separate process. For each protocol and each number of rows in a request:
//!
//! 1. A closed loop keeps some requests in flight for some seconds. This run measures the capacity,
//!    in answers and in rows per second.
//! 2. An open loop sends requests at a share of this capacity, and counts a latency from the time
//!    at which its request was due.
//!
//! Both runs are repeated. The figures are those of the repetition with the median capacity and of
//! the one with the median p99. The generator is one thread of this process and shares the
//! processors with the server, so the processor time of both sides stands beside every figure.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use serde::Serialize;
use zillion_console::compute_pool;
use zillion_console::exit::Stop;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;
use zillion_scorer::DenseType;

use crate::args::{BenchGrpcArgs, Protocol};
use crate::criteo::{MODEL, Requests, UserPart, open_model, publish};
use crate::load::answers::Answers;
use crate::load::bodies::Recipe;
use crate::load::closed_loop::{self, Load};
use crate::load::figures::{Figures, Percentiles, round};
use crate::load::open_loop::{self, Plan};
use crate::load::target::Target;
use crate::print_outcome;
use crate::server::{Asker, Place, ServerChild};

/// The number of different requests.
const DIFFERENT: usize = 64;
/// The time limit of a request in an open loop.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    threads: Option<usize>,
    server_cpus: Option<String>,
    /// The number type of the dense layers.
    dense: DenseType,
    /// The GPU of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    connections: usize,
    streams: usize,
    seconds: f64,
    repeat: usize,
    runs: Vec<Measured>,
    /// The number of processors that other programs kept busy, without this process and the server.
    other_cpus: Option<f64>,
}

/// The figures of one protocol and one number of rows in a request.
#[derive(Serialize)]
struct Measured {
    protocol: Protocol,
    candidates: usize,
    /// The number of ids that all rows of a request share.
    shared_fields: usize,
    request_bytes: usize,
    answer_bytes: usize,
    capacity: Capacity,
    /// The latencies at a share of the capacity.
    open: Open,
}

/// The figures of a closed loop.
#[derive(Clone, Serialize)]
struct Capacity {
    requests_s: f64,
    rows_s: f64,
    answers: usize,
    failures: BTreeMap<String, u64>,
    #[serde(flatten)]
    cost: Cost,
    /// The latencies of the answers, counted from the sending of their requests.
    #[serde(flatten)]
    latency: Percentiles,
}

/// The figures of an open loop.
#[derive(Clone, Serialize)]
struct Open {
    /// The number of requests per second that were due.
    rate: f64,
    /// The number of answers with scores per second.
    achieved_rate: f64,
    requests: u64,
    failures: BTreeMap<String, u64>,
    #[serde(flatten)]
    cost: Cost,
    /// The latencies of all requests, counted from their due times.
    #[serde(flatten)]
    latency: Percentiles,
}

/// The processor time of both sides for each answer, in milliseconds.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    server_cpu_ms: Option<f64>,
    client_cpu_ms: Option<f64>,
}

/// The processor times of the server and of this process at one moment.
struct CpuMark([Option<f64>; 2]);

impl CpuMark {
    fn now(server: &ServerChild) -> Self {
        Self([server.pid(), std::process::id()].map(cpu_seconds))
    }

    /// Returns the cost of each of `answers` answers since this moment.
    fn cost(&self, server: &ServerChild, answers: usize) -> Cost {
        let [server_cpu_ms, client_cpu_ms] = [0, 1].map(|side| {
            let spent = Self::now(server).0[side]? - self.0[side]?;
            Some(round(spent / answers.max(1) as f64 * 1e3))
        });
        Cost { server_cpu_ms, client_cpu_ms }
    }
}

pub(crate) fn run(args: &BenchGrpcArgs, is_json: bool) -> Result<()> {
    let is_only_grpc = args.protocol.iter().all(|protocol| *protocol == Protocol::Grpc);
    if args.streams.get() > 1 && !is_only_grpc {
        let reason = "--streams: only a connection of gRPC has several requests in flight; set \
                      --protocol grpc, or leave out --streams";
        return Err(Stop::Usage(reason.to_owned()).into());
    }
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let published = open_model(&folder.join("registry"))?;
    eprintln!("publishing {} rows", args.rows);
    publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    let place = Place {
        threads: args.threads,
        cpus: args.server_cpus.as_deref(),
        dense: Some(args.dense),
        device: args.device.as_deref(),
        gpu_memory: args.gpu_memory,
    };
    let (server, _) = ServerChild::start_on(folder, "server", place)?;
    let before = (CpuTimes::now(), cpu_seconds(server.pid()), Instant::now());
    let mut runs = Vec::new();
    for candidates in args.candidates.iter().map(|candidates| candidates.get()) {
        for &protocol in &args.protocol {
            eprintln!("{candidates} rows a request, {protocol:?}");
            runs.push(measure(&server, args, candidates, protocol)?);
        }
    }
    let cpus = CpuTimes::now().since(&before.0);
    let spent = before.1.zip(cpu_seconds(server.pid())).map(|(then, now)| now - then);
    let servers = spent.map(|spent| spent / before.2.elapsed().as_secs_f64());
    let outcome = Outcome {
        rows: args.rows.get(),
        threads: args.threads.map(NonZeroUsize::get),
        server_cpus: args.server_cpus.clone(),
        dense: args.dense,
        device: args.device.clone(),
        connections: args.connections.get(),
        streams: args.streams.get(),
        seconds: args.seconds,
        repeat: args.repeat.get(),
        runs,
        other_cpus: cpus.other_cpus.zip(servers).map(|(all, own)| (all - own).max(0.0)),
    };
    print_outcome(&outcome, is_json)
}

fn measure(
    server: &ServerChild,
    args: &BenchGrpcArgs,
    candidates: usize,
    protocol: Protocol,
) -> Result<Measured> {
    // A single row shares nothing, and the rows of a predict request share nothing either.
    let is_alone = candidates == 1 || protocol == Protocol::Predict;
    let shared_fields = if is_alone { 0 } else { usize::from(args.shared_fields) };
    let user = UserPart { shared_fields, history: 0 };
    let requests = Requests::with_user(args.rows.get(), candidates, DIFFERENT, user);
    let recipe = Recipe { protocol, ..Recipe::v2(candidates) };
    let bodies = requests.bodies(&recipe)?.into_iter();
    let messages: Vec<Bytes> =
        bodies.map(|body| body.message(protocol, MODEL, None)).collect::<Result<_>>()?;
    let target = Target::new(server.url(), MODEL, None, protocol)?;
    // Each different request is sent once, so that pages are mapped and buffers have their sizes.
    let (_, answer_bytes) = Asker::new(server.url())?.post_all(&target, &messages, DIFFERENT)?;
    let warm_up = Load { time: Duration::from_secs_f64(args.warm_up), ..load(args) };
    closed_loop::run(&target, &messages, warm_up)?;

    let mut closed = Vec::new();
    for _ in 0..args.repeat.get() {
        closed.push(measure_capacity(server, &target, &messages, load(args), candidates)?);
    }
    let capacity = take_median(closed, |run| run.requests_s)?;
    let rate = args.rate.unwrap_or(capacity.requests_s * args.load_share);
    let plan = Plan {
        rate,
        requests: (rate * args.seconds).ceil() as u64,
        connections: args.connections.get() * args.streams.get(),
        timeout: PATIENCE,
        send_within: Duration::MAX,
    };
    let mut open = Vec::new();
    for _ in 0..args.repeat.get() {
        open.push(measure_open(server, &target, &messages, plan, args.streams.get())?);
    }
    let open = take_median(open, |run| run.latency.p99_ms)?;
    let request_bytes = messages.first().map_or(0, Bytes::len);
    Ok(Measured {
        protocol,
        candidates,
        shared_fields,
        request_bytes,
        answer_bytes,
        capacity,
        open,
    })
}

fn load(args: &BenchGrpcArgs) -> Load {
    Load {
        connections: args.connections.get(),
        streams: args.streams.get(),
        time: Duration::from_secs_f64(args.seconds),
    }
}

fn measure_capacity(
    server: &ServerChild,
    target: &Target,
    messages: &[Bytes],
    load: Load,
    candidates: usize,
) -> Result<Capacity> {
    let mark = CpuMark::now(server);
    let run = closed_loop::run(target, messages, load)?;
    let answers = run.latencies.len();
    let cost = mark.cost(server, answers);
    ensure!(answers > 0, "no request was answered: {:?}", run.failures);
    let requests_s = answers as f64 / run.elapsed.as_secs_f64();
    Ok(Capacity {
        requests_s: round(requests_s),
        rows_s: round(requests_s * candidates as f64),
        answers,
        failures: run.failures,
        cost,
        latency: Percentiles::of(run.latencies),
    })
}

fn measure_open(
    server: &ServerChild,
    target: &Target,
    messages: &[Bytes],
    plan: Plan,
    streams: usize,
) -> Result<Open> {
    let mark = CpuMark::now(server);
    let run = open_loop::run_streams(target, messages, plan, streams, Answers::new(false))?;
    let figures = Figures::of(&run.done, &plan, run.elapsed);
    let cost = mark.cost(server, usize::try_from(figures.ok)?);
    Ok(Open {
        rate: round(plan.rate),
        achieved_rate: round(figures.achieved_rate),
        requests: figures.requests,
        failures: figures.failures,
        cost,
        latency: figures.latency,
    })
}

/// Returns the run with the upper median of a figure.
fn take_median<T>(mut runs: Vec<T>, figure: impl Fn(&T) -> f64) -> Result<T> {
    runs.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
    let middle = runs.len() / 2;
    match runs.into_iter().nth(middle) {
        Some(run) => Ok(run),
        None => bail!("there is no run to choose from; set --repeat to at least 1"),
    }
}
