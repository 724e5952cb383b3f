//! Tests of clients that send wrong bytes, too many bytes or none. The server must live, answer
//! others, and not take much memory.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use serde_json::json;

use super::proxy::op;
use super::raw::{
    DIM, Head, Raw, apply, connect, frame, header, hello, plan, pull, push, send_and_read_all,
};
use super::servers::ServerProcess;

/// The most memory that a bad client may cost the server.
const MOST_MEMORY: u64 = 64 << 20;

fn start() -> (tempfile::TempDir, ServerProcess) {
    let store = tempfile::tempdir().expect("a temporary folder");
    let server = ServerProcess::start(store.path(), &[]);
    (store, server)
}

/// Trains a step on the keys, and asserts that the rows have moved against the gradients.
fn train_step(victim: &mut Raw, step: u64, keys: &[u64]) {
    let gradients = vec![0.25; keys.len() * DIM];
    let plan = plan(0, keys);
    let pulled = victim.ask(op::PULL, step, &pull(&plan)).unwrap();
    // The mark of counts and the form of the rows come first.
    assert_eq!(pulled.len(), 2 + keys.len() * DIM * 4);
    let before = victim.lookup(keys);
    victim.ask(op::PUSH, step, &push(&plan, &gradients)).unwrap();
    victim.ask(op::APPLY, step, &apply()).unwrap();
    for (after, before) in victim.lookup(keys).iter().zip(before) {
        assert_eq!(*after, before - 0.125);
    }
}

/// The smallest key, a key in the middle, and the greatest key.
const KEYS: [u64; 3] = [0, 9 << 52, u64::MAX];

#[test]
fn wrong_bytes_end_only_their_own_connection() {
    let (_store, mut server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    train_step(&mut victim, 1, &KEYS);
    let hello_head = Head { op: op::HELLO, session: 5, ..Head::default() };
    let greeting = frame(hello_head, &hello("victim"));
    let mut torn = greeting.clone();
    *torn.last_mut().unwrap() ^= 1;
    let mut other_header = greeting.clone();
    other_header[9] ^= 1;
    let push_head = Head { op: op::PUSH, generation: 1, session: 77, number: 9, step: 2 };
    let unknown = Head { op: 999, ..Head::default() };
    let mut garbage = b"ZPS1".to_vec();
    garbage.extend((0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8));
    let wrong = [
        ("garbage behind the right begin", garbage),
        ("text", b"GET / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\r\n".repeat(9)),
        ("zeros", vec![0; 4096]),
        ("a length of 2^63", header(hello_head, 1 << 63)),
        ("the greatest length", header(hello_head, u64::MAX)),
        ("a length of 2^63 after hello", [&greeting[..], &header(push_head, 1 << 63)].concat()),
        ("a wrong checksum of the body", torn),
        ("a wrong checksum of the header", other_header),
        ("an unknown operation", frame(unknown, b"")),
        ("a push before hello", frame(push_head, &push(&plan(0, &KEYS), &[0.0; 12]))),
        ("a large hello", frame(hello_head, &vec![b' '; 100 << 10])),
    ];
    let (refused, memory) = (server.count("refused_frames"), server.memory());
    for (at, (name, bytes)) in wrong.iter().enumerate() {
        let answer = send_and_read_all(&server.address, bytes);
        assert!(server.is_running(), "{name}");
        // A server that closes a connection with unread bytes resets it, which may lose the answer.
        assert!(answer.is_empty() || answer.contains("\"text\":"), "{name}: {answer}");
        assert_eq!(server.count("refused_frames"), refused + at as u64 + 1, "{name}");
    }
    assert!(server.memory() < memory + MOST_MEMORY);
    train_step(&mut victim, 2, &KEYS);
}

#[test]
fn a_wrong_question_is_an_error_and_the_session_goes_on() {
    let (_store, mut server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    train_step(&mut victim, 1, &KEYS);
    let good = plan(0, &KEYS);
    let mut too_many = good.clone();
    too_many[13..17].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut many_tables = good.clone();
    many_tables[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
    let rows = |count: usize| vec![1.0; count * DIM];
    let mut other_form = push(&good, &rows(3));
    let form = other_form.len() - 3 * DIM * size_of::<f32>() - 1;
    other_form[form] = 2;
    let mut halves = push(&good, &rows(3));
    halves[form] = 1;
    let wrong = [
        ("unsorted keys", op::PULL, pull(&plan(0, &[9 << 52, 3])), "table 0"),
        ("repeated keys", op::PULL, pull(&plan(0, &[7, 7])), "table 0"),
        ("repeated largest keys", op::PULL, pull(&plan(0, &[u64::MAX, u64::MAX])), "table 0"),
        ("unsorted keys of a push", op::PUSH, push(&plan(0, &[9 << 52, 3]), &rows(2)), "table 0"),
        ("an unknown table", op::PULL, pull(&plan(1, &KEYS)), "table 1"),
        ("the greatest table", op::LOOKUP, plan(u16::MAX, &KEYS), "table 65535"),
        ("many tables", op::PULL, pull(&many_tables), "65535 tables"),
        ("more keys than bytes", op::PULL, pull(&too_many), "too early"),
        ("too few gradients", op::PUSH, push(&good, &rows(2)), "too early"),
        ("too many gradients", op::PUSH, push(&good, &rows(4)), "push"),
        ("gradients of an unknown form", op::PUSH, other_form, "the unknown form 2"),
        ("twice the bytes of halves", op::PUSH, halves, "too many"),
        ("an empty push", op::PUSH, Vec::new(), "too early"),
        ("a short end of a step", op::APPLY, vec![1, 2], "too early"),
        ("an operation that is no question", op::ANSWER, Vec::new(), "answer"),
        ("a folder above the store", op::RESTORE, restore("../../etc"), "below the store"),
        ("no folder", op::RESTORE, restore("none"), ""),
    ];
    for (name, op, body, text) in wrong {
        let error = victim.ask(op, 2, &body).expect_err(name);
        assert!(error.contains(text), "{name}: {error}");
        assert!(server.is_running(), "{name}");
    }
    train_step(&mut victim, 3, &KEYS);
}

fn restore(folder: &str) -> Vec<u8> {
    let part = json!({ "table": "items", "rows": 0, "dirty_epoch": 1, "parts": [] });
    json!({ "folder": folder, "tables": [part], "below": [[]] }).to_string().into_bytes()
}

#[test]
fn gradients_that_are_not_finite_change_no_row() {
    let (_store, server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    train_step(&mut victim, 1, &KEYS);
    let before = victim.lookup(&KEYS);
    for (at, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        let (step, plan) = (2 + at as u64, plan(0, &KEYS));
        victim.ask(op::PULL, step, &pull(&plan)).unwrap();
        victim.ask(op::PUSH, step, &push(&plan, &vec![value; KEYS.len() * DIM])).unwrap();
        let report = victim.ask(op::APPLY, step, &apply()).unwrap();
        let dropped = report.as_chunks::<8>().0.last().map(|bytes| u64::from_le_bytes(*bytes));
        assert_eq!(dropped, Some(KEYS.len() as u64), "{value}");
        assert_eq!(victim.lookup(&KEYS), before, "{value}");
    }
    train_step(&mut victim, 5, &KEYS);
}

#[test]
fn a_trainer_of_another_job_or_version_is_refused() {
    let (_store, server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    let greet = |hello: &[u8]| frame(Head { op: op::HELLO, session: 5, ..Head::default() }, hello);
    let join_head = Head { op: op::JOIN, generation: 1, session: 5, ..Head::default() };
    let join = json!({ "job": "other", "client": 6, "trainers": 1 }).to_string();
    let other_version = hello("victim");
    let text = String::from_utf8(other_version).unwrap().replace("\"wire\":3", "\"wire\":4");
    let bytes = [greet(&hello("victim")), frame(join_head, join.as_bytes())].concat();
    for (bytes, text) in [(bytes, "another job"), (greet(text.as_bytes()), "version 4 of the wire")]
    {
        let mut stream = connect(&server.address);
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut said).unwrap();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(text), "{said}");
    }
    train_step(&mut victim, 1, &KEYS);
}

#[test]
fn a_client_that_never_reads_costs_little_memory() {
    let (_store, mut server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    train_step(&mut victim, 1, &KEYS);
    let memory = server.memory();
    let status = frame(Head { op: op::STATUS, ..Head::default() }, b"");
    let mut deaf = connect(&server.address);
    let mut frames = 0u64;
    let error = loop {
        match deaf.write_all(&status) {
            Ok(()) => frames += 1,
            Err(error) => break error,
        }
        assert!(frames < 10_000_000, "the server takes any number of questions");
    };
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    assert!(frames > 100 && server.is_running());
    // The own session does not read either. Only a limited number of answers is kept for it.
    let keys: Vec<u64> = (0..1000).map(|key| key << 44).collect();
    for _ in 0..400 {
        victim.send(op::LOOKUP, 0, &plan(0, &keys));
    }
    assert!(server.memory() < memory + MOST_MEMORY, "{} -> {}", memory, server.memory());
    assert!(server.status()["is_open"].as_bool() == Some(true));
}

#[test]
fn a_thousand_idle_connections_cost_little_memory() {
    zillion_device::machine::raise_file_limit();
    let (_store, mut server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    train_step(&mut victim, 1, &KEYS);
    let memory = server.memory();
    // Half of the connections announce a body that never comes.
    let begun = header(Head { op: op::HELLO, ..Head::default() }, 60 << 10);
    let idle: Vec<TcpStream> = (0..1000)
        .map(|at| {
            let mut stream = connect(&server.address);
            if at % 2 == 0 {
                stream.write_all(&begun).unwrap();
            }
            stream
        })
        .collect();
    train_step(&mut victim, 2, &KEYS);
    assert!(server.count("connections") >= 1000);
    assert!(server.memory() < memory + MOST_MEMORY, "{} -> {}", memory, server.memory());
    drop(idle);
    train_step(&mut victim, 3, &KEYS);
    assert!(server.is_running());
}

/// Opens a connection of another session, says hello, and begins a push of `body` bytes.
fn begin_push(server: &str, session: u64, body: u64) -> TcpStream {
    let mut stream = connect(server);
    let greeting = frame(Head { op: op::HELLO, session, ..Head::default() }, &hello("victim"));
    stream.write_all(&greeting).unwrap();
    super::proxy::read_frame(&mut stream).unwrap();
    let head = Head { op: op::PUSH, generation: 1, session, number: 1, step: 1 };
    stream.write_all(&header(head, body)).unwrap();
    stream
}

#[test]
fn announced_bodies_hold_no_memory_of_other_trainers() {
    let (_store, mut server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    // The announced bodies have three times the bytes that may wait for the tables.
    let announced: Vec<TcpStream> =
        (0..48).map(|at| begin_push(&server.address, 1000 + at, 64 << 20)).collect();
    train_step(&mut victim, 1, &KEYS);
    assert_eq!(server.count("bytes_in_flight"), 0);
    assert!(server.count("connections") >= 48);
    drop(announced);
    train_step(&mut victim, 2, &KEYS);
    assert!(server.is_running());
}

#[test]
fn bodies_that_stop_half_way_give_way_to_others() {
    let store = tempfile::tempdir().expect("a temporary folder");
    let limits = ["--max-frame-mib", "16", "--total-in-flight-mib", "32"];
    let mut server = ServerProcess::start(store.path(), &limits);
    let mut victim = Raw::open(&server.address, "victim");
    let half = vec![0u8; 8 << 20];
    let stopped: Vec<TcpStream> = (0..4)
        .map(|at| {
            let mut stream = begin_push(&server.address, 1000 + at, 16 << 20);
            stream.write_all(&half).unwrap();
            stream
        })
        .collect();
    let keys: Vec<u64> = (0..100_000).map(|key| key << 40).collect();
    train_step(&mut victim, 1, &keys);
    assert!(server.count("bytes_in_flight") <= 48 << 20);
    assert!(server.count("refused_frames") >= 1, "no connection was closed for being slow");
    drop(stopped);
    assert!(server.is_running());
}

#[test]
fn large_frames_that_arrive_together_do_not_wait_for_each_other() {
    let store = tempfile::tempdir().expect("a temporary folder");
    let limits = ["--max-frame-mib", "16", "--total-in-flight-mib", "20"];
    let mut server = ServerProcess::start(store.path(), &limits);
    let mut victim = Raw::open(&server.address, "victim");
    let address = server.address.clone();
    let send = |session: u64| {
        let body = vec![7u8; 12 << 20];
        let mut stream = begin_push(&address, session, body.len() as u64);
        stream.write_all(&body).unwrap();
        stream.write_all(&xxhash_rust::xxh3::xxh3_64_with_seed(&body, 1).to_le_bytes()).unwrap();
        // The server does not know the session, which it says only after the whole frame.
        let answer = super::proxy::read_frame(&mut stream).unwrap();
        assert_eq!(u16::from_le_bytes([answer[4], answer[5]]), op::FAILURE);
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..6).map(|at| scope.spawn(move || send(1000 + at))).collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
    train_step(&mut victim, 1, &KEYS);
    assert_eq!(server.count("bytes_in_flight"), 0);
    assert!(server.is_running());
}

#[test]
fn a_step_that_ends_with_another_rate_than_its_push_is_refused() {
    let (_store, server) = start();
    let mut victim = Raw::open(&server.address, "victim");
    let before = victim.lookup(&KEYS);
    let plan = plan(0, &KEYS);
    victim.ask(op::PULL, 1, &pull(&plan)).unwrap();
    victim.ask(op::PUSH, 1, &push(&plan, &[0.25; 3 * DIM])).unwrap();
    let other = [0.5f32.to_le_bytes(), 1f32.to_le_bytes()].concat();
    let error = victim.ask(op::APPLY, 1, &other).unwrap_err();
    assert!(error.contains("factor 0.5") && error.contains("pushed with 1"), "{error}");
    victim.ask(op::APPLY, 1, &apply()).unwrap();
    for (after, before) in victim.lookup(&KEYS).iter().zip(before) {
        assert_eq!(*after, before - 0.125);
    }
}
