//! Tests of clients that open connections and send nothing or too little.

use super::victim::{Pulse, Victim, predict_body, predict_path, publish};
use super::wire::{self, Kept};
use crate::server::PATIENCE;

/// The number of silent connections. It is larger than the default limit of the server.
const SILENT: usize = 1100;

/// Returns the first bytes of several connections, with a name for each. No connection sends more
/// bytes.
fn openings() -> [(&'static str, Vec<u8>); 5] {
    [
        ("silent", Vec::new()),
        ("half a method", b"GE".to_vec()),
        ("half a preface", b"PRI * HT".to_vec()),
        ("half a head", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le".to_vec()),
        ("HTTP/2 without requests", wire::http2_preface(65_535)),
    ]
}

#[test]
fn silent_connections_keep_nobody_out() {
    let place = publish(&[]);
    let limits = ["--receive-ms", "2000", "--idle-ms", "2000"];
    let victim = Victim::start(&place, &limits);
    let body = predict_body(&[&[1]]);
    for (what, bytes) in openings() {
        let mut silent: Vec<Kept> = (0..SILENT)
            .map(|_| {
                let mut kept = Kept::open(&victim.public);
                // The server may have closed the connection to accept a newer one.
                let _ = kept.send(&bytes);
                kept
            })
            .collect();
        let pulses = [Pulse::start(&victim.admin), Pulse::start(&victim.public)];
        for _ in 0..20 {
            let reply = wire::post(&victim.public, &predict_path(), "", &body);
            assert_eq!(reply.expect("an answer").status, 200, "{what}");
        }
        let [admin, public] = pulses.map(Pulse::finish);
        admin.assert_alive(&format!("{SILENT} connections, {what}, administration"));
        public.assert_alive(&format!("{SILENT} connections, {what}, public"));
        // In the end, all of them are closed.
        for kept in &mut silent {
            kept.read_to_close();
        }
    }
    let closed = |reason| victim.closed(reason);
    assert!(closed("evicted") > 0.0, "the oldest idle connections make room");
    assert!(closed("silent") > 0.0, "the others are closed in time");
    victim.survives();
}

#[test]
fn watches_of_health_keep_nobody_out() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--max-connections", "16"]);
    // Nobody must prove an identity to watch, and a watch has no end.
    let (began, all_began) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let address = victim.public.clone();
    let watcher = std::thread::spawn(move || {
        wire::run(4 * PATIENCE, async {
            let mut watches = Vec::new();
            for _ in 0..40 {
                watches.push(wire::watch(&address).await.expect("a watch begins"));
            }
            began.send(()).expect("the test waits");
            // The end is the drop of the other side.
            let _ = ended.await;
        });
    });
    all_began.recv_timeout(PATIENCE).expect("every watch begins");
    let pulses = [Pulse::start(&victim.admin), Pulse::start(&victim.public)];
    let body = predict_body(&[&[1]]);
    for _ in 0..20 {
        let reply = wire::post(&victim.public, &predict_path(), "", &body);
        assert_eq!(reply.expect("an answer").status, 200);
    }
    let [admin, public] = pulses.map(Pulse::finish);
    admin.assert_alive("40 watches, administration");
    public.assert_alive("40 watches, public");
    assert!(victim.closed("evicted") >= 20.0, "the oldest watches make room");
    drop(end);
    watcher.join().expect("the watcher ends");
    victim.survives();
}

#[test]
fn a_listener_has_connections_of_its_own() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--max-connections", "4"]);
    let _busy: Vec<Kept> = (0..4)
        .map(|_| {
            let mut kept = Kept::open(&victim.public);
            kept.begin_post(&predict_path(), 9);
            kept
        })
        .collect();
    let mut fifth = Kept::open(&victim.public);
    assert!(fifth.ask("GET /healthz", b"").is_err(), "a fifth connection is refused");
    assert_eq!(wire::get(&victim.admin, "/healthz").expect("an answer").status, 200);
}

#[test]
fn one_address_has_a_limit_of_its_own() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--max-connections-per-address", "4"]);
    // A connection in the middle of a request is not closed to accept another one.
    let mut busy: Vec<Kept> = (0..4)
        .map(|_| {
            let mut kept = Kept::open(&victim.public);
            kept.begin_post(&predict_path(), 9);
            kept
        })
        .collect();
    let mut fifth = Kept::open(&victim.public);
    assert!(fifth.ask("GET /healthz", b"").is_err(), "a fifth connection is refused");
    for kept in &mut busy {
        kept.send(b"{\"in\": 1}").expect("the server reads");
        assert_eq!(kept.read_reply().expect("an answer").status, 400);
    }
    // The connections are idle now, so the oldest one is closed to accept another one.
    assert_eq!(wire::get(&victim.public, "/healthz").expect("an answer").status, 200);
    assert!(victim.closed("address_full") > 0.0);
    victim.survives();
}
