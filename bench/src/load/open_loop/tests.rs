//! Tests of the open loop with servers that stall, close connections or do not answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc;

use super::super::figures::Figures;
use super::*;

/// Starts a server and returns the target for requests to it. The server calls `handle` with the
/// number and the body of each request, and answers with the returned text. If `handle` returns
/// `None`, the server closes the connection.
fn server(handle: impl Fn(u64, &[u8]) -> Option<String> + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shared = Arc::new((handle, Mutex::new(0u64)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, shared) = (stream.unwrap(), shared.clone());
            std::thread::spawn(move || {
                let (handle, count) = &*shared;
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(body) = request(&mut reader) {
                    let number = {
                        let mut count = count.lock().unwrap();
                        *count += 1;
                        *count - 1
                    };
                    let Some(answer) = handle(number, &body) else { return };
                    respond(&stream, &answer);
                }
            });
        }
    });
    let host = address.clone();
    Target { address, host, path: "/v1/models/m:rank".to_owned(), is_grpc: false, tls: None }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn respond(mut stream: &TcpStream, answer: &str) {
    let (status, body) = answer.split_once(' ').unwrap();
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n");
    // The client may have closed the connection, so a failed write is ignored.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn plan(rate: f64, requests: u64, connections: usize) -> Plan {
    Plan {
        rate,
        requests,
        connections,
        timeout: Duration::from_secs(10),
        send_within: Duration::MAX,
    }
}

fn outcomes(run: &Run) -> Vec<Outcome> {
    let mut done = run.done.clone();
    done.sort_by_key(|done| done.request);
    done.iter().map(|done| done.outcome).collect()
}

#[test]
fn waiting_for_a_stalled_server_counts() {
    // One of 100 requests is due every 5 ms. The sixth request stalls the only connection for 300
    // ms, and about sixty other requests become due in this time. A closed loop would report only
    // one slow request.
    let target = server(|number, _| {
        if number == 5 {
            std::thread::sleep(Duration::from_millis(300));
        }
        Some("200 {}".to_owned())
    });
    let plan = plan(200.0, 100, 1);
    let run = run(&target, &["{}".into()], plan, Answers::new(false)).unwrap();
    assert_eq!(outcomes(&run), vec![Outcome::Status(200); 100]);
    let slow = run.done.iter().filter(|done| done.latency >= Duration::from_millis(50)).count();
    assert!((35..100).contains(&slow), "{slow} requests waited");
    let figures = Figures::of(&run.done, &plan, run.elapsed);
    assert!(figures.latency.p50_ms < figures.latency.p90_ms);
    assert_eq!((run.connections_made, figures.failed), (1, 0));
}

#[test]
fn bodies_go_in_turn_and_the_rate_holds() {
    let (sender, seen) = mpsc::channel();
    let sender = Mutex::new(sender);
    let target = server(move |_, body| {
        sender.lock().unwrap().send(body.to_vec()).unwrap();
        Some(r#"200 {"model_version":"7","scores":[]}"#.to_owned())
    });
    let bodies = ["a", "b", "c"].map(Bytes::from);
    let run = run(&target, &bodies, plan(100.0, 30, 4), Answers::new(true)).unwrap();
    assert!(run.elapsed >= Duration::from_millis(290), "{:?}", run.elapsed);
    assert_eq!(run.answers.versions["7"], 30);
    let mut counts = [0; 3];
    seen.try_iter().for_each(|body| counts[usize::from(body[0] - b'a')] += 1);
    assert_eq!(counts, [10; 3]);
}

#[test]
fn failures_are_counted_and_connections_made_again() {
    let target = server(|number, _| match number {
        2 => None,
        4 => Some("503 {}".to_owned()),
        _ => Some("200 {}".to_owned()),
    });
    let run = run(&target, &["{}".into()], plan(100.0, 7, 1), Answers::new(false)).unwrap();
    let ok = Outcome::Status(200);
    let wanted = [ok, ok, Outcome::Broken, ok, Outcome::Status(503), ok, ok];
    assert_eq!((outcomes(&run), run.connections_made), (wanted.to_vec(), 2));
}

#[test]
fn nobody_listening_is_a_failure_of_each_request() {
    // The port was bound and then released, so no server listens on it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let target =
        Target { host: address.clone(), address, path: "/".to_owned(), is_grpc: false, tls: None };
    let run = run(&target, &["{}".into()], plan(1000.0, 5, 2), Answers::new(false)).unwrap();
    assert_eq!(outcomes(&run), [Outcome::NoConnection; 5]);
}

#[test]
fn a_request_has_an_end_sent_or_not() {
    let target = server(|_, _| {
        std::thread::sleep(Duration::from_millis(1500));
        Some("200 {}".to_owned())
    });
    // All requests are due at once. When the first request times out, the time of the later
    // requests is over too.
    let plan = Plan { timeout: Duration::from_millis(200), ..plan(1e6, 3, 1) };
    let run = run(&target, &["{}".into()], plan, Answers::new(false)).unwrap();
    assert_eq!(outcomes(&run), [Outcome::Timeout, Outcome::NotSent, Outcome::NotSent]);
    assert!(run.done.iter().all(|done| done.latency >= Duration::from_millis(190)));
}
