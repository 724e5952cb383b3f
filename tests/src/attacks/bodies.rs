//! Tests of request bodies and answers in flight, which share one budget of bytes.

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::codegen::tokio_stream::{self, StreamExt as _};

use super::victim::{SLACK_BYTES, Victim, predict_body, predict_path, publish, wait_until};
use super::wire::{self, Kept};
use crate::server::PATIENCE;

const MIB: usize = 1 << 20;

/// Returns the head of a POST request with a body of `bytes` bytes. If `bytes` is 0, the head
/// announces a body in chunks.
fn head(bytes: usize) -> String {
    let length = match bytes {
        0 => "Transfer-Encoding: chunked".to_owned(),
        bytes => format!("Content-Length: {bytes}"),
    };
    format!("POST {} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n", predict_path())
}

/// Checks that the server returns all bytes to its budget and still answers.
fn check_given_back(victim: Victim) {
    wait_until("all bytes are given back", || {
        victim.metric("zillion_serving_bytes_in_flight") == 0.0
    });
    victim.survives();
}

#[test]
fn bodies_in_flight_share_a_budget() {
    let place = publish(&[]);
    let budget = (8 * MIB).to_string();
    let limits = ["--max-bytes-in-flight", &budget, "--receive-ms", "3000"];
    let victim = Victim::start(&place, &limits);
    let before = victim.resident();
    // Each connection announces a body of 1 MiB, and sends half of it. Eight halves fit into the
    // half of the budget that one address may hold.
    let mut connections: Vec<Kept> = (0..40)
        .map(|_| {
            let mut kept = Kept::open(&victim.public);
            kept.send(head(MIB).as_bytes()).expect("the server reads");
            // A server that refuses the request may close the connection at the same time.
            let _ = kept.send(&vec![b' '; MIB / 2]);
            kept
        })
        .collect();
    let statuses: Vec<Option<u16>> = connections
        .iter_mut()
        .map(|kept| kept.read_reply().ok().map(|reply| reply.status))
        .collect();
    // The others are refused at once, and these when their time is over. A client whose connection
    // was reset while it sent may miss the answer.
    let count = |status| statuses.iter().filter(|found| **found == Some(status)).count();
    assert!((1..=8).contains(&count(408)), "{statuses:?}");
    assert!(count(429) >= 1, "{statuses:?}");
    let lost = statuses.iter().filter(|status| status.is_none()).count();
    assert_eq!(count(408) + count(429) + lost, 40, "{statuses:?}");
    let grown = victim.peak().saturating_sub(before);
    eprintln!("40 bodies of 1 MiB: memory grew by {} KiB", grown >> 10);
    assert!(grown <= 8 * MIB as u64 + SLACK_BYTES, "{grown} bytes");
    drop(connections);
    check_given_back(victim);
}

#[test]
fn heads_alone_keep_nobody_out() {
    let place = publish(&[]);
    let budget = (8 * MIB).to_string();
    let limits = ["--max-bytes-in-flight", &budget, "--receive-ms", "60000"];
    let victim = Victim::start(&place, &limits);
    // The heads announce five times the budget, and no byte of it follows.
    let heads: Vec<Kept> = (0..40)
        .map(|_| {
            let mut kept = Kept::open(&victim.public);
            kept.begin_post(&predict_path(), MIB);
            kept
        })
        .collect();
    let body = predict_body(&[&[1]]);
    let reply = wire::post(&victim.public, &predict_path(), "", &body).expect("an answer");
    assert_eq!(reply.status, 200, "{reply:?}");
    drop(heads);
    check_given_back(victim);
}

#[test]
fn chunks_count_as_they_come() {
    let place = publish(&[]);
    let budget = (8 * MIB).to_string();
    let limits = ["--max-bytes-in-flight", &budget, "--receive-ms", "60000"];
    let victim = Victim::start(&place, &limits);
    let before = victim.resident();
    let piece = [format!("{MIB:x}\r\n").as_bytes(), &vec![b' '; MIB], b"\r\n"].concat();
    let mut connections = Vec::new();
    for _ in 0..20 {
        let mut kept = Kept::open(&victim.public);
        let sent = kept.send(head(0).as_bytes()).and_then(|()| kept.send(&piece));
        connections.push((kept, sent.is_ok()));
    }
    // One address may hold half of the budget.
    wait_until("the share of the address is used up", || {
        victim.metric("zillion_serving_bytes_in_flight") >= (2 * MIB) as f64
    });
    let refused = wire::post(&victim.public, &predict_path(), "", &vec![b' '; 3 * MIB]);
    assert_eq!(refused.expect("an answer").status, 429);
    let grown = victim.peak().saturating_sub(before);
    eprintln!("20 bodies in chunks: memory grew by {} KiB", grown >> 10);
    assert!(grown <= 8 * MIB as u64 + SLACK_BYTES, "{grown} bytes");
    drop(connections);
    check_given_back(victim);
}

#[test]
fn streams_of_one_connection_share_the_budget() {
    let place = publish(&[]);
    let budget = (8 * MIB).to_string();
    let limits = ["--max-bytes-in-flight", &budget, "--receive-ms", "60000"];
    let victim = Victim::start(&place, &limits);
    let before = victim.resident();
    let piece = Bytes::from(vec![b' '; MIB]);
    let statuses = wire::run(PATIENCE, async {
        let stream = tokio::net::TcpStream::connect(&victim.public).await.expect("a connection");
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        tokio::spawn(connection);
        let mut answers = tokio::task::JoinSet::new();
        for _ in 0..100 {
            // The body never ends. It is sent in pieces of 1 MiB.
            let pieces = (0..3).map({
                let piece = piece.clone();
                move |_| Ok::<_, std::convert::Infallible>(Frame::data(piece.clone()))
            });
            let body = StreamBody::new(tokio_stream::iter(pieces).chain(tokio_stream::pending()));
            let request = hyper::Request::post(format!("http://localhost{}", predict_path()));
            let request = request.body(body).expect("a request");
            sender.ready().await.expect("the connection is open");
            answers.spawn(sender.send_request(request));
        }
        let mut statuses = Vec::new();
        // Four bodies of 3 MiB do not fit into the budget. Most requests are refused, and a few
        // requests wait.
        while statuses.len() < 90 {
            let answer = answers.join_next().await.expect("streams").expect("no panic");
            statuses.push(answer.expect("an answer").status().as_u16());
        }
        statuses
    });
    assert!(statuses.iter().all(|&status| status == 429), "{statuses:?}");
    let grown = victim.peak().saturating_sub(before);
    eprintln!("100 streams of 3 MiB: memory grew by {} KiB", grown >> 10);
    assert!(grown <= 8 * MIB as u64 + SLACK_BYTES, "{grown} bytes");
    check_given_back(victim);
}

#[test]
fn clients_that_do_not_read_are_closed() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--write-ms", "500"]);
    let body = predict_body(&[&[1]]);
    // Over HTTP/1, the clients request more answers than the buffers of a socket can hold.
    let mut readers: Vec<Kept> = (0..3).map(|_| Kept::open(&victim.public)).collect();
    let request = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    for kept in &mut readers {
        kept.send(request.as_bytes()).expect("the server reads");
    }
    wait_until("slow readers are closed", || victim.closed("unread") >= 3.0);
    // Over HTTP/2, the clients announce a window of 0 bytes. The answers wait in the server
    // although its socket is free.
    let mut streams: Vec<Kept> = (0..3).map(|_| Kept::open(&victim.public)).collect();
    for kept in &mut streams {
        let mut bytes = wire::http2_preface(0);
        (0..100u32).for_each(|i| bytes.extend(wire::http2_get(2 * i + 1, "/openapi.json")));
        kept.send(&bytes).expect("the server reads");
    }
    for kept in &mut streams {
        kept.read_to_close();
    }
    // A window of one byte makes the server begin each answer, and pings make it write.
    for window in [0, 1] {
        let closed = victim.closed("unread");
        let mut kept = Kept::open(&victim.public);
        let mut bytes = wire::http2_preface(window);
        (0..100u32).for_each(|i| bytes.extend(wire::http2_get(2 * i + 1, "/openapi.json")));
        kept.send(&bytes).expect("the server reads");
        wait_until("a client that only pings is closed", || {
            // The server may have closed the connection meanwhile.
            let _ = kept.send(&wire::HTTP2_PING);
            victim.closed("unread") > closed
        });
    }
    let reply = wire::post(&victim.public, &predict_path(), "", &body).expect("an answer");
    assert_eq!(reply.status, 200, "{reply:?}");
    victim.survives();
}
