//! The benchmark `zillion bench cold-start`: the time until a server is ready, and the memory of
//! one server and of two servers that share a cache.
//!
//! The time is measured in two cases. With an empty cache, the server hashes all bytes of the
//! version before it uses them. If the whole version is in the cache, the server only maps the
//! files. The registry is a local folder that was written shortly before, so its bytes come from
//! the page cache of the system. The benchmark therefore measures the hashing and not the disk.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_device::machine::process::cpu_seconds;

use crate::args::BenchColdStartArgs;
use crate::criteo::{Requests, open_model, publish};
use crate::load::bodies::Recipe;
use crate::print_outcome;
use crate::server::{Asker, Memory, ServerChild};
use zillion_console::compute_pool;

/// The number of requests that each server answers before its memory is measured.
const REQUESTS: usize = 1000;
const BODIES: usize = 200;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    /// The total size of the version's files, in bytes.
    bytes: u64,
    publish_seconds: f64,
    /// The time from the start of the process until the server is ready, if the cache is empty.
    empty_cache_seconds: f64,
    empty_cache_gb_s: f64,
    /// The median time from the start of the process until the server is ready, if the cache
    /// contains the whole version. `full_cache_max_seconds` is the longest such time.
    full_cache_seconds: f64,
    full_cache_max_seconds: f64,
    starts: usize,
    ready: Memory,
    /// The number of requests that each server answered before its memory was measured.
    requests: usize,
    candidates: usize,
    one_server: Memory,
    /// The memory of the first one of two servers that share a cache.
    first_of_two: Memory,
    second_of_two: Memory,
    /// The number of processors that other programs kept busy while servers loaded versions. `None`
    /// if the system does not report the times.
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &BenchColdStartArgs, is_json: bool) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let published = open_model(&folder.join("registry"))?;
    eprintln!("publishing {} rows", args.rows);
    let began = std::time::Instant::now();
    let version = publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    let publish_seconds = began.elapsed().as_secs_f64();
    let bytes: u64 = version.files().iter().map(|(_, file)| file.bytes).sum();

    let start = |name: &str| ServerChild::start_in(folder, name, None);
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
    print_outcome(&outcome, is_json)
}

/// Sends requests to the server, one after another.
fn ask(server: &ServerChild, args: &BenchColdStartArgs) -> Result<()> {
    let rows = args.candidates.get();
    let bodies = Requests::new(args.rows.get(), rows, BODIES).bodies(&Recipe::v2(rows))?;
    let messages: Vec<Bytes> = bodies.into_iter().map(|body| body.json).collect();
    let asker = Asker::new(server.url())?;
    let answered = asker.post_all(&server.target()?, &messages, REQUESTS);
    answered.with_context(|| format!("the log of the server: {}", server.read_log()))?;
    Ok(())
}
