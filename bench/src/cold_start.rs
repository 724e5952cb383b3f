//! The benchmark `zillion bench cold-start`: the time that a server takes to be ready, and the
//! memory of one server and of two servers that share a cache.
//!
//! The time is measured in two cases: with an empty cache, where every byte of the version is
//! hashed before it is used, and with the whole version in the cache, where files are only mapped.
//! The registry is a local folder that was written just before, so its bytes come from the system's
//! page cache: the benchmark measures the hashing, not the disk.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;
use zillion_registry::{MoveKind, STABLE};

use crate::args::{BenchColdStartArgs, Protocol};
use crate::criteo::{MODEL, Requests, publish};
use crate::load::bodies::Recipe;
use crate::server::{Asker, Memory, ServerChild, Setup};
use zillion_console::{compute_pool, create_registry, print_json};

/// The number of requests that are sent before memory is measured.
const REQUESTS: usize = 1000;
const BODIES: usize = 200;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    /// The bytes of all files of the version.
    bytes: u64,
    publish_seconds: f64,
    /// The time from the start of the process until the server is ready, with an empty cache.
    empty_cache_seconds: f64,
    empty_cache_gb_s: f64,
    /// The median of the times from the start of the process until the server is ready, with the
    /// whole version in the cache. `full_cache_max_seconds` is the longest of these times.
    full_cache_seconds: f64,
    full_cache_max_seconds: f64,
    starts: usize,
    ready: Memory,
    /// The number of requests that each server answered before its memory was measured.
    requests: usize,
    candidates: usize,
    one_server: Memory,
    /// The memory of the first of two servers that share a cache.
    first_of_two: Memory,
    second_of_two: Memory,
    /// The processors that other programs kept busy while versions were loaded.
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &BenchColdStartArgs) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let registry = folder.join("registry");
    let published = create_registry(&registry.display().to_string())?.model(MODEL)?;
    eprintln!("publishing {} rows", args.rows);
    let began = std::time::Instant::now();
    let version = publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    published.promote(STABLE, version.version, MoveKind::Promote, "bench", None)?;
    let publish_seconds = began.elapsed().as_secs_f64();
    let bytes: u64 = version.files().iter().map(|(_, file)| file.bytes).sum();

    let cache = folder.join("cache");
    let start = |name: &str| -> Result<(ServerChild, Duration)> {
        let server = ServerChild::start(Setup {
            model: MODEL,
            name: Some(name),
            registry: &registry,
            cache: Some(&cache),
            log: &folder.join(format!("{name}.log")),
            level: "warn",
            threads: None,
        })?;
        let ready = server.wait_ready()?;
        Ok((server, ready))
    };
    eprintln!("starting with an empty cache");
    let before = CpuTimes::now();
    let (server, empty) = start("empty")?;
    let cpus = CpuTimes::now().since(&before);
    let server_cpus = cpu_seconds(server.pid());
    let server_cpus = server_cpus.map(|seconds| seconds / empty.as_secs_f64());
    drop(server);
    eprintln!("starting with a full cache");
    let mut full = Vec::new();
    for _ in 0..args.starts.get() {
        let (server, ready) = start("full")?;
        full.push(ready);
        drop(server);
    }
    full.sort_unstable();
    let (first, ready) = start("first")?;
    full.push(ready);
    full.sort_unstable();
    let ready = Memory::read(first.pid())?;
    ask(&first, args)?;
    let one_server = Memory::read(first.pid())?;
    let (second, _) = start("second")?;
    ask(&second, args)?;
    let seconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 1e4;
    let outcome = Outcome {
        rows: args.rows.get(),
        bytes,
        publish_seconds,
        empty_cache_seconds: seconds(empty),
        empty_cache_gb_s: bytes as f64 / empty.as_secs_f64() / 1e9,
        full_cache_seconds: full.get(full.len() / 2).copied().map_or(0.0, seconds),
        full_cache_max_seconds: full.last().copied().map_or(0.0, seconds),
        starts: full.len(),
        ready,
        requests: REQUESTS,
        candidates: args.candidates.get(),
        one_server,
        first_of_two: Memory::read(first.pid())?,
        second_of_two: Memory::read(second.pid())?,
        other_cpus: cpus.other_cpus.zip(server_cpus).map(|(all, own)| (all - own).max(0.0)),
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    Ok(())
}

/// Sends the requests one after another.
fn ask(server: &ServerChild, args: &BenchColdStartArgs) -> Result<()> {
    let rows = args.candidates.get();
    let recipe = Recipe { protocol: Protocol::V2, rows, context: Vec::new(), outputs: Vec::new() };
    let requests = Requests::new(args.rows.get(), rows, BODIES);
    let mut bodies = Vec::with_capacity(BODIES);
    for i in 0..BODIES {
        bodies.push(recipe.body(requests.get(i).clone())?.json);
    }
    let target = server.target()?;
    let mut next = bodies.iter().cycle().take(REQUESTS).cloned();
    let mut wrong = None;
    Asker::new(&format!("http://{}", target.address))?.post_each(
        &target,
        || next.next(),
        |answer| match answer {
            Ok((200, _)) => {}
            Ok((status, _)) => wrong = Some(format!("the server answered {status}")),
            Err(error) => wrong = Some(format!("{error:#}")),
        },
    );
    match wrong {
        Some(wrong) => bail!("{wrong}; log of the server: {}", server.read_log()),
        None => Ok(()),
    }
}
