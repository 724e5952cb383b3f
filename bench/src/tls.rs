//! The benchmark `zillion bench tls`: the cost of TLS on kept connections, and the effect of many
//! new connections on the requests of others.
//!
//! One server process has two listeners with the same APIs: one without TLS, and one with TLS and a
//! certificate that the benchmark makes. For each number of rows in a request there are several
//! rounds. In a round, a few connections to the plain listener and then to the TLS listener each
//! send the next request after the answer to the last one. The round gives the answers per second
//! of both listeners, and the median of the rounds is reported.
//!
//! Then requests are sent to the TLS listener at a constant rate, first alone and then while
//! another thread opens and closes connections with full handshakes at a given rate. The difference
//! of the two latencies is the effect of the handshakes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde::Serialize;
use zillion_console::compute_pool;

use crate::args::BenchTlsArgs;
use crate::criteo::{MODEL, Requests, open_model, publish};
use crate::load::answers::Answers;
use crate::load::bodies::Recipe;
use crate::load::figures::{Figures, Percentiles, round};
use crate::load::open_loop::{self, Plan};
use crate::load::target::{Target, Tls};
use crate::print_outcome;
use crate::server::{ServerChild, Setup};

/// The number of different requests.
const DIFFERENT: usize = 16;
/// The number of connections of the runs with kept connections.
const CONNECTIONS: usize = 4;
/// The rate at which all requests of a run are due at once.
const AT_ONCE: f64 = 1e9;
/// The number of rounds of each number of rows.
const ROUNDS: usize = 5;
/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    kept: Vec<Kept>,
    handshakes: Handshakes,
}

/// The answers per second on kept connections, for one number of rows in a request.
#[derive(Serialize)]
struct Kept {
    candidates: usize,
    request_bytes: usize,
    plain: f64,
    tls: f64,
    /// The median over the rounds of the ratio of the two rates.
    share: f64,
}

/// The latencies of requests over TLS, without and with handshakes of other connections.
#[derive(Serialize)]
struct Handshakes {
    /// The number of handshakes per second that were due.
    offered: f64,
    /// The number of handshakes per second that were made.
    made: f64,
    candidates: usize,
    requests_per_second: f64,
    without: Percentiles,
    with: Percentiles,
}

pub(crate) fn run(args: &BenchTlsArgs, is_json: bool) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let published = open_model(&folder.join("registry"))?;
    eprintln!("publishing {} rows", args.rows);
    publish(&published, args.rows.get(), folder, &compute_pool(None)?)?;
    let config = make_certificate(folder)?;
    let server = ServerChild::start(Setup {
        cache: Some(&folder.join("cache")),
        level: "warn",
        threads: args.threads,
        config: Some(&folder.join("serve.toml")),
        ..Setup::new(MODEL, &folder.join("registry"), &folder.join("server.log"))
    })?;
    server.wait_ready()?;
    let tls_url = server.other_url().context("the server announced only one listener")?;

    let mut kept = Vec::new();
    for candidates in args.candidates.iter().map(|candidates| candidates.get()) {
        eprintln!("{candidates} rows a request");
        let recipe = Recipe::v2(candidates);
        let messages = messages(args, candidates, &recipe)?;
        let plain = Target::new(server.url(), MODEL, None, recipe.protocol)?;
        let tls = Target::new_tls(tls_url, MODEL, None, recipe.protocol, config.clone())?;
        let count = if candidates <= 10 { 20_000 } else { 2000 };
        let mut rounds = Vec::new();
        measure_rate(&plain, &messages, count / 4)?;
        for _ in 0..ROUNDS {
            let plain = measure_rate(&plain, &messages, count)?;
            let tls = measure_rate(&tls, &messages, count)?;
            rounds.push((plain, tls, tls / plain));
        }
        kept.push(Kept {
            candidates,
            request_bytes: messages.first().map_or(0, Bytes::len),
            plain: round(median(rounds.iter().map(|round| round.0))),
            tls: round(median(rounds.iter().map(|round| round.1))),
            share: round(median(rounds.iter().map(|round| round.2))),
        });
    }
    let handshakes = measure_handshakes(args, tls_url, &config)?;
    print_outcome(&Outcome { rows: args.rows.get(), kept, handshakes }, is_json)
}

fn messages(args: &BenchTlsArgs, candidates: usize, recipe: &Recipe) -> Result<Vec<Bytes>> {
    let bodies = Requests::new(args.rows.get(), candidates, DIFFERENT).bodies(recipe)?;
    bodies.into_iter().map(|body| body.message(recipe.protocol, MODEL, None)).collect()
}

/// Makes a certificate for 127.0.0.1, writes it with its key and the settings of a server with two
/// listeners, and returns the settings of a client that trusts it.
fn make_certificate(folder: &Path) -> Result<Tls> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
        .context("cannot make a certificate for the benchmark")?;
    let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
    fs::write(&certificate, certified.cert.pem())?;
    fs::write(&key, certified.signing_key.serialize_pem())?;
    let settings = format!(
        "[[serve.listener]]\naddress = '127.0.0.1:0'\n\n[[serve.listener]]\n\
         address = '127.0.0.1:0'\ntls = {{ certificate = '{}', key = '{}' }}\n",
        certificate.display(),
        key.display()
    );
    fs::write(folder.join("serve.toml"), settings)?;
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).context("the certificate cannot be trusted")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("the TLS versions of the client cannot be set")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls(Arc::new(client)))
}

/// Measures the answers per second of a few connections that are never idle.
fn measure_rate(target: &Target, messages: &[Bytes], count: u64) -> Result<f64> {
    let plan = Plan {
        rate: AT_ONCE,
        requests: count,
        connections: CONNECTIONS,
        timeout: TIMEOUT,
        send_within: Duration::MAX,
    };
    let run = open_loop::run(target, messages, plan, Answers::new(false))?;
    let figures = Figures::of(&run.done, &plan, run.elapsed);
    ensure!(figures.failed == 0, "some requests failed: {:?}", figures.failures);
    Ok(figures.achieved_rate)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Measures the latencies of requests at a constant rate, without and with handshakes beside them.
fn measure_handshakes(args: &BenchTlsArgs, url: &str, config: &Tls) -> Result<Handshakes> {
    let candidates = 1;
    let recipe = Recipe::v2(candidates);
    let messages = messages(args, candidates, &recipe)?;
    let target = Target::new_tls(url, MODEL, None, recipe.protocol, config.clone())?;
    let plan = Plan {
        rate: args.requests,
        requests: (args.requests * args.seconds).ceil() as u64,
        connections: CONNECTIONS,
        timeout: TIMEOUT,
        send_within: Duration::MAX,
    };
    let latencies = || -> Result<Percentiles> {
        let run = open_loop::run(&target, &messages, plan, Answers::new(false))?;
        let figures = Figures::of(&run.done, &plan, run.elapsed);
        ensure!(figures.failed == 0, "some requests failed: {:?}", figures.failures);
        Ok(figures.latency)
    };
    eprintln!("requests alone, then beside {} handshakes per second", args.handshakes);
    let without = latencies()?;
    let stop = AtomicBool::new(false);
    let (with, made) = std::thread::scope(|scope| {
        let began = Instant::now();
        let maker =
            scope.spawn(|| make_handshakes(&target.address, config, args.handshakes, &stop));
        let with = latencies();
        stop.store(true, Ordering::Relaxed);
        let made = maker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (with, made.map(|made| made as f64 / began.elapsed().as_secs_f64()))
    });
    Ok(Handshakes {
        offered: args.handshakes,
        made: round(made?),
        candidates,
        requests_per_second: args.requests,
        without,
        with: with?,
    })
}

/// Opens connections at a rate, makes a full handshake on each, and closes them. Returns the number
/// of handshakes.
fn make_handshakes(address: &str, tls: &Tls, rate: f64, stop: &AtomicBool) -> Result<u64> {
    // A client without stored sessions makes a full handshake each time.
    let mut config = (*tls.0).clone();
    config.resumption = rustls::client::Resumption::disabled();
    let config = Arc::new(config);
    let name = ServerName::try_from("127.0.0.1")?;
    let began = Instant::now();
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = Duration::from_secs_f64(made as f64 / rate);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let connection = ClientConnection::new(config.clone(), name.clone())?;
        let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
        stream.sock.set_nodelay(true)?;
        // The handshake ends with the first write; the answer shows that the server has ended it.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut first = [0u8; 12];
        stream.read_exact(&mut first)?;
        ensure!(first.ends_with(b"200"), "/healthz was not answered with status 200");
        made += 1;
    }
    Ok(made)
}
