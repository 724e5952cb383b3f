//! The benchmark `zillion bench ps`: the keys per second and the times of requests to a parameter
//! server in a separate process, over TCP on this machine.
//!
//! The table has one vector and one linear weight in each row, with AdaGrad. It is filled by
//! pushes. Then each trainer makes steps: a pull, and a push of gradients for the same keys. A pull
//! sends the keys, as it does if the plan was not announced before. A push sends only gradients,
//! because the server knows the plan. The rows of a pull are in the client's buffer when its time
//! ends, and the time of a push includes the answer of the server.
//!
//! Each figure has one size of a request: 1,000 keys, or as many unique keys as a step of a job in
//! Criteo's shape has (24,635, here of one table). Keys are drawn uniformly from all rows, so that
//! nearly all rows are read from memory and not from a cache, or by Zipf's law.
//!
//! With several trainers, all of them take part in each step. Their gradients are then staged, and
//! the time of a push includes the wait until the server has merged and applied the gradients of
//! all trainers. The rates are those of all trainers together.
//!
//! With TLS, each byte is encrypted and decrypted on one core of each side. The difference of two
//! runs is its cost.

mod checkpoint;
mod process;
mod trainers;

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_device::machine::{CpuTimes, raise_file_limit};
use zillion_feature::LookupPlan;
use zillion_feature::random::mix64;

use crate::args::BenchPsArgs;
use crate::embedding::{Planner, Zipf};
use crate::{print_outcome, scratch_folder};
use checkpoint::{Beside, Recovery};
use process::{Encryption, ParameterServer};
use trainers::{Figure, Trainers};

/// The numbers of keys of a request.
const REQUESTS: [usize; 2] = [1000, 24_635];
/// The number of keys in all plans of a figure together. The plans are used in a cycle.
const PLANNED: usize = 3 << 20;
/// The time within which the server must take the idle connections.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    floats_a_row: usize,
    server_threads: usize,
    trainers: usize,
    is_encrypted: bool,
    /// The keys per second of the pushes that have made the rows, in millions.
    insert_mkeys_s: f64,
    server_rss_mib: f64,
    figures: Vec<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Idle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Beside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<Recovery>,
    own_cpus: f64,
    /// The processors that other programs kept busy. The server is one of them.
    other_cpus: Option<f64>,
    /// The processors that the server kept busy.
    server_cpus: Option<f64>,
}

/// The cost of idle connections.
#[derive(Serialize)]
struct Idle {
    connections: usize,
    server_rss_mib_without: f64,
    server_rss_mib_with: f64,
    kib_a_connection: f64,
    without: Figure,
    with: Figure,
}

pub(crate) fn run(args: &BenchPsArgs, is_json: bool) -> Result<()> {
    if raise_file_limit().is_none() {
        eprintln!("the limit of open files cannot be raised; --idle may need a higher one");
    }
    let duration = Duration::try_from_secs_f64(args.seconds)
        .with_context(|| format!("--seconds is {}; set it to a positive number", args.seconds))?;
    let folder = scratch_folder(None)?;
    let encryption = args.tls.then(|| Encryption::make(folder.path())).transpose()?;
    let server = ParameterServer::start(folder.path(), args.threads, args.idle, encryption)?;
    let (before, began) = (CpuTimes::now(), Instant::now());
    let mut trainers = Trainers::open(&server, folder.path(), args)?;
    eprintln!("inserting {} rows", args.rows);
    let insert = trainers.fill(args.rows)?;
    let server_rss_mib = server.resident_mib()?;

    let mut planner = Planner::new()?;
    let zipf = Zipf::new(args.rows);
    let mut figures = Vec::new();
    for keys in REQUESTS {
        for (law, is_zipf) in [("uniform", false), ("zipf", true)] {
            eprintln!("measuring requests of {keys} keys, {law}");
            let draw = |random: u64| if is_zipf { zipf.draw(random) } else { random % args.rows };
            let plans = plans(&mut planner, keys, args.rows, draw);
            figures.push(trainers.measure((keys, law), &plans, duration)?);
        }
    }
    let mut idle = None;
    if args.idle > 0 {
        eprintln!("opening {} idle connections", args.idle);
        let plans = plans(&mut planner, REQUESTS[0], args.rows, |random| random % args.rows);
        idle = Some(measure_idle(args.idle, &server, &mut trainers, &plans, duration)?);
    }
    let use_of_cpus = CpuTimes::now().since(&before);
    let server_cpus = server.cpu_seconds().map(|s| s / began.elapsed().as_secs_f64());
    let (mut beside, mut recovery) = (None, None);
    if args.checkpoint {
        let plans = plans(&mut planner, REQUESTS[0], args.rows, |random| random % args.rows);
        eprintln!("measuring steps beside a checkpoint");
        let (figures, written) = checkpoint::write(&mut trainers, folder.path(), &plans)?;
        beside = Some(figures);
        eprintln!("stopping the server, and starting another one");
        recovery = Some(checkpoint::recover(trainers, server, args, &written, &plans[0])?);
    }
    let outcome = Outcome {
        rows: args.rows,
        floats_a_row: args.dim.get() + 1,
        server_threads: args.threads.get(),
        trainers: args.clients.get(),
        is_encrypted: args.tls,
        insert_mkeys_s: insert,
        server_rss_mib,
        figures,
        idle,
        checkpoint: beside,
        recovery,
        own_cpus: use_of_cpus.own_cpus,
        other_cpus: use_of_cpus.other_cpus,
        server_cpus,
    };
    print_outcome(&outcome, is_json)
}

/// Makes the plans of a figure. Each plan has `keys` unique keys; ids that a plan has already are
/// drawn again.
fn plans(
    planner: &mut Planner,
    keys: usize,
    rows: u64,
    draw: impl Fn(u64) -> u64,
) -> Vec<Arc<LookupPlan>> {
    let count = (PLANNED / keys).min((8 * rows as usize / keys).max(8));
    let mut random = 0;
    let mut ids = std::collections::HashSet::new();
    let plan = |_| {
        ids.clear();
        while ids.len() < keys {
            random += 1;
            ids.insert(draw(mix64(random)));
        }
        Arc::new(planner.plan(ids.iter().copied()))
    };
    (0..count).map(plan).collect()
}

/// Measures steps without and with idle connections.
fn measure_idle(
    count: usize,
    server: &ParameterServer,
    trainers: &mut Trainers,
    plans: &[Arc<LookupPlan>],
    duration: Duration,
) -> Result<Idle> {
    let figure = (REQUESTS[0], "uniform");
    let without = trainers.measure(figure, plans, duration)?;
    let server_rss_mib_without = server.resident_mib()?;
    let used = server.state()?.connections;
    let connect = |_| TcpStream::connect(server.address());
    let open = (0..count).map(connect).collect::<std::io::Result<Vec<TcpStream>>>();
    let open = open.context("cannot open the idle connections; raise the limit of open files")?;
    let until = Instant::now() + PATIENCE;
    while server.state()?.connections < used + count as u64 {
        if Instant::now() > until {
            bail!("the server has not taken {count} connections within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let server_rss_mib_with = server.resident_mib()?;
    let with = trainers.measure(figure, plans, duration)?;
    Ok(Idle {
        connections: open.len(),
        server_rss_mib_without,
        server_rss_mib_with,
        kib_a_connection: (server_rss_mib_with - server_rss_mib_without) * 1024.0 / count as f64,
        without,
        with,
    })
}
