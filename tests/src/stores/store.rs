//! Tests of the object store with a real S3 server. The store connects to the server directly, or
//! through a proxy that loses responses, cuts them or hangs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use zillion_device::Files;
use zillion_feature::random::mix64;
use zillion_store::{Environment, Operation, Outcome, Store, StoreStop};

use super::environment;
use super::place::URL;
use super::proxy::{Fault, Proxy, storm};
use super::s3::{Create, S3Server};

fn env(address: SocketAddr, more: &[(&str, &str)]) -> Environment {
    let own = environment(address).into_iter().map(|(name, value)| (name.to_owned(), value));
    let more = more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    own.chain(more).collect()
}

fn open(address: SocketAddr) -> Store {
    Store::create_in(&env(address, &[]), URL, Files::new()).expect("the store opens")
}

fn text(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

/// Returns `length` pseudorandom bytes that depend on `seed`.
fn noise(seed: u64, length: usize) -> Bytes {
    let words = (0..length.div_ceil(8) as u64).flat_map(|i| mix64(seed ^ (i << 20)).to_le_bytes());
    words.take(length).collect()
}

/// Returns whether a request creates an object only if the object does not exist.
fn creates(head: &str) -> bool {
    head.starts_with("PUT ") && head.to_ascii_lowercase().contains("\r\nif-none-match:")
}

#[test]
fn objects_are_written_read_listed_and_removed() {
    let server = S3Server::start(Create::Honoured);
    let store = open(server.address);
    assert_eq!(store.get("a/none").unwrap(), None);
    assert_eq!(store.head("a/none").unwrap(), None);
    assert!(store.create("a/one", text("1")).unwrap());
    assert!(!store.create("a/one", text("2")).unwrap());
    store.put("a/b/two", text("22")).unwrap();
    store.put("a/b/two", text("333")).unwrap();
    assert_eq!(store.get("a/one").unwrap(), Some(text("1")));
    let head = store.head("a/b/two").unwrap().expect("it is there");
    assert_eq!((head.name.as_str(), head.bytes), ("two", 3));
    let age = std::time::SystemTime::now().duration_since(head.modified).unwrap_or_default();
    assert!(age < Duration::from_secs(60), "{age:?}");
    let listing = store.list("a").unwrap();
    assert_eq!(listing.folders, ["b"]);
    assert_eq!(listing.objects.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["one"]);
    assert_eq!(store.list("nowhere").unwrap(), Default::default());
    store.delete("a/one").unwrap();
    store.delete("a/one").unwrap();
    assert_eq!(store.get("a/one").unwrap(), None);
    // The URL gives the prefix of the registry. Another registry in the bucket does not see its
    // objects.
    assert!(server.bucket().join("of/a/team/a/b/two").is_file());
    let other = Store::open_in(&env(server.address, &[]), "s3://models/other", Files::new());
    assert_eq!(other.unwrap().list("").unwrap(), Default::default());
    assert!(store.get("../escape").is_err());
}

#[test]
fn a_folder_of_several_pages_is_listed_completely() {
    let server = S3Server::start(Create::Honoured);
    let store = open(server.address);
    // The objects are written as files, because only the listing is tested.
    let folder = server.bucket().join("of/a/team/many");
    for folder in ["x", "y/deep", "z"].map(|name| folder.join(name)) {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("object"), b"1").unwrap();
    }
    let names: BTreeSet<String> = (0..2345).map(|i| format!("{i:06}.json")).collect();
    for name in &names {
        std::fs::write(folder.join(name), b"{}").unwrap();
    }
    let before = store.stats().requests(Operation::List, Outcome::Ok);
    let listing = store.list("many").unwrap();
    assert_eq!(listing.folders, ["x", "y", "z"]);
    assert!(listing.objects.iter().map(|object| &object.name).eq(names.iter()));
    assert_eq!(store.stats().requests(Operation::List, Outcome::Ok) - before, 3);
}

#[test]
fn a_create_with_a_lost_answer_succeeds() {
    let server = S3Server::start(Create::Honoured);
    let faults = [
        Fault::LoseAnswer,
        Fault::CutAnswer(500),
        Fault::StatusAfter(500),
        Fault::StatusAfter(503),
        Fault::Hang,
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        let name = format!("versions/{index}");
        // If an object was stored and the answer was lost, the object belongs to this writer.
        let (wanted, mut left) = (name.clone(), 1);
        let proxy = Proxy::start(server.address, move |head| {
            let is_it = creates(head) && head.contains(&wanted) && left > 0;
            left -= i32::from(is_it);
            if is_it { fault } else { Fault::None }
        });
        let store = open(proxy.address);
        assert!(store.create(&name, text("ours")).unwrap(), "{fault:?}");
        assert_eq!(proxy.broken(), 1);
        assert_eq!(store.stats().requests(Operation::Create, Outcome::Exists), 2, "{fault:?}");
        // Here, the object of another writer already exists, and the same fault happens.
        let name = format!("theirs/{index}");
        let (wanted, mut left) = (name.clone(), 1);
        let proxy = Proxy::start(server.address, move |head| {
            let is_it = creates(head) && head.contains(&wanted) && left > 0;
            left -= i32::from(is_it);
            if is_it { fault } else { Fault::None }
        });
        assert!(open(server.address).create(&name, text("theirs")).unwrap());
        let store = open(proxy.address);
        assert!(!store.create(&name, text("ours")).unwrap(), "{fault:?}");
        assert_eq!(store.get(&name).unwrap(), Some(text("theirs")));
    }
}

#[test]
fn of_many_writers_of_one_object_exactly_one_wins() {
    let server = S3Server::start(Create::Honoured);
    let stores: Vec<(Proxy, Store)> = (0..4)
        .map(|seed| {
            let proxy = Proxy::start(server.address, storm(seed, 200));
            let store = open(proxy.address);
            (proxy, store)
        })
        .collect();
    let winners = Arc::new(AtomicU64::new(0));
    for round in 0..12 {
        let name = format!("log/{round}");
        winners.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for (index, (_, store)) in stores.iter().enumerate() {
                let (name, winners) = (&name, &winners);
                scope.spawn(move || {
                    if store.create(name, text(&index.to_string())).expect("it is tried for long") {
                        // The winner reads what it wrote.
                        assert_eq!(store.get(name).unwrap(), Some(text(&index.to_string())));
                        winners.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(winners.load(Ordering::Relaxed), 1, "round {round}");
    }
    assert!(stores.iter().map(|(proxy, _)| proxy.broken()).sum::<u64>() > 10);
    let sums: Vec<_> = stores.iter().map(|(_, store)| store.stats().sums()).collect();
    assert!(sums.iter().any(|sums| sums.retries > 0 && sums.backoff_seconds > 0.0), "{sums:?}");
}

#[test]
fn a_store_that_cannot_decide_between_two_writers_is_refused() {
    let server = S3Server::start(Create::Ignored);
    let unsigned = env(server.address, &[("AWS_SKIP_SIGNATURE", "true")]);
    let refused = Store::create_in(&unsigned, URL, Files::new()).map(drop);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("If-None-Match"), "{said}");
    // A reader does not need create-if-absent.
    Store::open_in(&unsigned, URL, Files::new()).expect("it can be read");
}

/// The minimum size in bytes that S3 accepts for a part of a multipart upload.
const PART: usize = 5 << 20;

fn open_for_parts(address: SocketAddr) -> Store {
    let part = PART.to_string();
    let sizes = [
        ("ZILLION_STORE_MULTIPART_BYTES", part.as_str()),
        ("ZILLION_STORE_PART_BYTES", part.as_str()),
        ("ZILLION_STORE_REQUEST_MS", "10000"),
    ];
    Store::create_in(&env(address, &sizes), URL, Files::new()).expect("the store opens")
}

#[test]
fn large_objects_go_in_parts_among_faults() {
    let server = S3Server::start(Create::Honoured);
    let mut storm = storm(77, 300);
    let proxy = Proxy::start(server.address, move |head| match storm(head) {
        // A request that hangs only causes one long wait. Other tests cover this fault.
        Fault::Hang => Fault::LoseAnswer,
        fault => fault,
    });
    let store = open_for_parts(proxy.address);
    let lengths = [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 12_345];
    let objects: Vec<(String, Bytes)> = lengths
        .into_iter()
        .map(|length| (format!("big/{length}"), noise(length as u64, length)))
        .collect();
    store.put_all(objects.clone()).unwrap();
    for (name, bytes) in &objects {
        // The bytes are compared twice: in the file of the server, and as the store reads them.
        let there = std::fs::read(server.bucket().join("of/a/team").join(name)).unwrap();
        assert!(there == *bytes, "{name}: {} bytes", there.len());
        assert_eq!(store.head(name).unwrap().map(|o| o.bytes), Some(bytes.len() as u64));
    }
    assert!(store.stats().requests(Operation::Upload, Outcome::Ok) > 15);
    assert!(store.stats().retries(Operation::Upload) > 0);
    assert!(proxy.broken() > 5);
}

#[test]
fn an_upload_with_a_lost_last_answer_is_complete() {
    let server = S3Server::start(Create::Honoured);
    let mut left = 1;
    let proxy = Proxy::start(server.address, move |head| {
        let completes = head.starts_with("POST ") && head.contains("uploadId=") && left > 0;
        left -= i32::from(completes);
        if completes { Fault::LoseAnswer } else { Fault::None }
    });
    let store = open_for_parts(proxy.address);
    let bytes = noise(5, PART + 1);
    store.put("big/object", bytes.clone()).unwrap();
    assert_eq!(proxy.broken(), 1);
    assert!(store.get("big/object").unwrap() == Some(bytes));
}

#[test]
fn a_hanging_store_does_not_delay_a_stop() {
    let server = S3Server::start(Create::Honoured);
    let mut requests = 0;
    let proxy = Proxy::start(server.address, move |_| {
        requests += 1;
        if requests > 1 { Fault::Hang } else { Fault::None }
    });
    // A client with a time limit of an hour would hang here.
    let patient =
        [("ZILLION_STORE_REQUEST_MS", "3600000"), ("ZILLION_STORE_OPERATION_MS", "3600000")];
    let store = Store::open_in(&env(proxy.address, &patient), URL, Files::new()).unwrap();
    let stop = StoreStop::default();
    let stoppable = store.with_stop(stop.clone());
    let waiting = std::thread::spawn(move || stoppable.list("x").unwrap_err().to_string());
    while proxy.broken() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.within(Duration::ZERO);
    let said = waiting.join().expect("it ends");
    assert!(said.contains("the process is stopping"), "{said}");
}

#[test]
fn errors_of_a_bucket_contain_no_secrets() {
    let server = S3Server::start(Create::Honoured);
    let said = |url: &str, more: &[(&str, &str)]| {
        let quick = [("ZILLION_STORE_TRIES", "2"), ("ZILLION_STORE_REQUEST_MS", "20000")];
        let environment = env(server.address, &[&quick[..], more].concat());
        let refused = Store::open_in(&environment, url, Files::new()).map(drop);
        let said = refused.unwrap_err().to_string();
        assert!(!said.contains("hunter"), "{said}");
        said
    };
    let missing = said("s3://nowhere/x", &[]);
    assert!(missing.contains("404") && missing.contains("create the bucket, or"), "{missing}");
    let wrong = said(URL, &[("AWS_SECRET_ACCESS_KEY", "hunter33")]);
    assert!(wrong.contains("403") && wrong.contains("check that the credentials"), "{wrong}");
    assert!(wrong.contains(&format!("http://{}", server.address)), "{wrong}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap();
    let nobody = said(URL, &[("AWS_ENDPOINT_URL", &format!("http://{closed}"))]);
    assert!(nobody.contains("refused") && nobody.contains("check the endpoint"), "{nobody}");
    assert!(nobody.contains("after 2 tries"), "{nobody}");
}
