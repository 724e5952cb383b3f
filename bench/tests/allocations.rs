//! A test that counts the allocations of a request of one row, on a server that is warm.
//!
//! The request is scored where it is read, so that all its work is on the thread of the test. The
//! server has no socket: its connection is in memory. The counts are those of the engine alone, and
//! those of a whole call of gRPC with its frames of HTTP/2.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_bench::example::{MODEL, publish, requests};
use zillion_device::{CountingAllocator, Files};
use zillion_serving::{Domain, Follow, InMemoryServer, Limits, Selector, ServeConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The rows of the table.
const ROWS: u64 = 1000;

/// The most allocations of the engine for a row: mostly the columns of the batch and of the plan,
/// for 39 inputs.
const MOST_OF_ENGINE: u64 = 400;

/// The most allocations of a whole call: those of the engine, the columns of the request, and those
/// of the protocol.
const MOST_OF_CALL: u64 = 600;

/// Starts a server whose only model is loaded.
fn start(folder: &std::path::Path) -> Arc<Domain> {
    let registry = publish(folder, ROWS).expect("a version is published");
    let config = ServeConfig {
        models: vec![(MODEL.to_owned(), Follow::Latest)],
        cache: folder.join("cache"),
        threads: NonZeroUsize::MIN.get(),
        // The thread that looks for new versions must not allocate during a count.
        poll: Duration::from_secs(3600),
        limits: Limits { inline_time: Duration::from_secs(10), ..Limits::default() },
        ..ServeConfig::default()
    };
    let metrics = prometheus::Registry::new();
    let domain = Domain::start(&config, &registry, &Files::new(), &metrics).expect("a domain");
    let began = Instant::now();
    while !domain.is_ready() {
        assert!(began.elapsed() < Duration::from_secs(120), "the version is not loaded");
        std::thread::sleep(Duration::from_millis(5));
    }
    Arc::new(domain)
}

/// Returns the bytes of a connection of HTTP/2 on which a client calls `ModelInfer` with each of
/// these messages.
fn connection(messages: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // Names and values without Huffman's code: the method, the scheme, and literals.
    let mut head = vec![0x83, 0x86];
    for (name, value) in [
        (&[0x04][..], "/inference.GRPCInferenceService/ModelInfer"),
        (&[0x01], "localhost"),
        (&b"\0\x0ccontent-type"[..], "application/grpc"),
        (b"\0\x02te", "trailers"),
    ] {
        head.extend_from_slice(name);
        head.push(value.len() as u8);
        head.extend_from_slice(value.as_bytes());
    }
    for (at, message) in messages.iter().enumerate() {
        let stream = (2 * at as u32 + 1).to_be_bytes();
        // The kind of a frame of headers is 1 and of data 0. The flags end the headers, or the
        // stream.
        for (kind, flags, content) in [(1, 4, &head[..]), (0, 1, message)] {
            bytes.extend_from_slice(&(content.len() as u32).to_be_bytes()[1..]);
            bytes.extend_from_slice(&[kind, flags]);
            bytes.extend_from_slice(&stream);
            bytes.extend_from_slice(content);
        }
    }
    bytes
}

/// Returns the smallest number of allocations of several runs of `work`: another thread may allocate
/// during one of them.
fn count(mut work: impl FnMut()) -> u64 {
    let counts = (0..10).map(|_| {
        let before = ALLOCATOR.count();
        work();
        ALLOCATOR.count() - before
    });
    counts.min().expect("there are ten runs")
}

#[test]
fn a_small_request_allocates_little() {
    let folder = tempfile::tempdir().expect("a folder");
    let domain = start(folder.path());
    let requests = requests(ROWS, 60).expect("requests");
    let host = domain.host(MODEL).expect("the model");
    let version = host.resolve(&Selector::Default).expect("a version");

    let score = |(columns, _): &(_, _)| drop(version.servable.score(1, columns).expect("a score"));
    requests.iter().for_each(score);
    let of_engine = count(|| requests.iter().for_each(score)) / requests.len() as u64;

    let server = InMemoryServer::new(&domain).expect("a server");
    let messages: Vec<&[u8]> = requests.iter().map(|(_, message)| &message[..]).collect();
    let [short, long] = [20, messages.len()].map(|calls| connection(&messages[..calls]));
    let answered = || version.statistics.totals().success.count;
    // The first requests go to the pool, and their client may leave before their turn.
    let began = Instant::now();
    loop {
        let before = answered();
        server.answer(&long);
        if answered() - before == messages.len() as u64 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "not all requests are answered");
    }
    let before = answered();
    let of_short = count(|| drop(server.answer(&short)));
    let of_long = count(|| drop(server.answer(&long)));
    assert_eq!(answered() - before, 10 * (20 + messages.len() as u64));
    let of_call = of_long.saturating_sub(of_short) / (messages.len() as u64 - 20);

    println!("allocations of a request: {of_engine} of the engine, {of_call} of the whole call");
    assert!((1..=MOST_OF_ENGINE).contains(&of_engine), "{of_engine} allocations of the engine");
    assert!((of_engine..=MOST_OF_CALL).contains(&of_call), "{of_call} allocations of a call");
}
