//! Tests of messages with schemas: Protobuf, and a registry of schemas that is asked once, may be
//! away, and is not needed for a replay.

mod registry;

use super::kills::{compare_versions, replay_arguments};
use super::place::{Place, is_click, mix, now_ms, rows};
use registry::Registry;

/// The schema of the rows.
const ROW: &str = "syntax = \"proto3\"; message Row { int64 user = 1; int64 item = 2; \
    int64 time = 3; bool click = 4; }";

/// A later schema of the rows, with a column that no feature reads.
const LATER: &str = "syntax = \"proto3\"; message Row { int64 user = 1; int64 item = 2; \
    int64 time = 3; bool click = 4; string page = 5; }";

/// A stream of rows in Protobuf, whose schema is in a file. Versions are checked with other rows.
const PLAIN: &str = r#"
[data]
valid = ["valid.jsonl"]
[[stream]]
name = "events"
path = "events"
format = "protobuf"
protobuf = { file = "row.proto", message = "Row" }
"#;

/// Appends a number of variable length.
fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Returns a row in Protobuf.
fn message(number: u64, time: u64) -> Vec<u8> {
    let (user, item) = (mix(number) % 500, mix(number ^ 77) % 200);
    let click = u64::from(is_click(user, item, number));
    let mut bytes = Vec::new();
    for (field, value) in [(1, user), (2, item), (3, time), (4, click)] {
        varint(&mut bytes, field << 3);
        varint(&mut bytes, value);
    }
    bytes
}

/// Returns rows behind the id of their schema.
fn framed(id: u32, numbers: std::ops::Range<u64>, time: u64) -> Vec<Vec<u8>> {
    let head = [&[0], &id.to_be_bytes()[..], &[0]].concat();
    numbers.map(|number| [&head[..], &message(number, time)].concat()).collect()
}

/// Writes each message as a file, which appears whole.
fn put(place: &Place, name: &str, messages: &[Vec<u8>]) {
    let folder = place.path("events/a");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (number, message) in messages.iter().enumerate() {
        let hidden = folder.join(".hidden.tmp");
        std::fs::write(&hidden, message).expect("a file");
        std::fs::rename(&hidden, folder.join(format!("{name}-{number:06}"))).expect("a rename");
    }
}

/// Creates a place with rows for the check of versions.
fn new_place(streams: &str) -> Place {
    let place = Place::new(streams);
    let valid = rows(0..50, now_ms()).join("\n");
    std::fs::write(place.path("valid.jsonl"), valid).expect("a file");
    std::fs::write(place.path("row.proto"), ROW).expect("a file");
    place
}

/// Returns the streams of a place with a registry of schemas.
fn registered(url: &str) -> String {
    let registry = format!("registry = {{ url = \"{url}\", outage_ms = 500 }}");
    PLAIN.replace("protobuf = { file = \"row.proto\", message = \"Row\" }", &registry)
}

#[test]
fn protobuf_is_learned_from_and_poison_is_rejected() {
    let place = new_place(PLAIN);
    let now = now_ms();
    put(&place, "0", &(0..400).map(|number| message(number, now)).collect::<Vec<_>>());
    // A cut message, a field of another type, and a time that is absent and thus 0.
    let poison = [vec![0x08], vec![0x0a, 1, b'x'], vec![0x08, 1]];
    put(&place, "1", &poison);
    let mut run = place.start(&[]);
    run.wait_for_messages(403);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&400.into(), &3.into()), "{report}");
    assert!(report["published"].as_u64() >= Some(1), "{report}");
    let dead = place.ok(&["stream", "dead", "runs/live"]);
    for words in ["a value is cut off", "column `user`", "column `time`"] {
        assert!(dead.contains(words), "{dead}");
    }
    // A wrong job names the key.
    for (from, to, words) in [
        ("message = \"Row\"", "message = \"Rows\"", "no message `Rows` (known: Row)"),
        ("file = \"row.proto\", ", "", "stream.events.protobuf"),
        ("protobuf = {", "avro = { files = [\"x\"] }\nprotobuf = {", "stream.events.avro"),
        ("format = \"protobuf\"", "format = \"arrow\"", "stream.events.protobuf"),
    ] {
        let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
        std::fs::write(place.path("wrong.toml"), job.replace(from, to)).expect("a job");
        let error = place.fails(&["online", "wrong.toml"]);
        assert!(error.contains(words), "{to}: {error}");
    }
}

#[test]
fn schemas_are_recorded_so_that_no_replay_needs_a_registry() {
    let registry = Registry::start(&[(7, ROW)]);
    let place = new_place(&registered(&registry.url));
    let now = now_ms();
    // The schema is seen, and the run is killed before its batch ends.
    put(&place, "0", &framed(7, 0..100, now));
    let slow = ["--set", "online.linger_seconds=1000", "--set", "online.checkpoint_seconds=1000"];
    let mut run = place.start(&slow);
    run.wait_for_messages(100);
    run.kill();
    assert_eq!(registry.requests(), 1);
    let stored = std::fs::read_dir(place.path("runs/live/stream/schemas")).expect("a folder");
    assert_eq!(stored.count(), 1);
    // The batch ends, and a later schema comes. The run is killed before its first checkpoint.
    registry.add(8, LATER);
    put(&place, "1", &framed(8, 100..700, now));
    let mut run = place.start(&slow);
    run.wait_for_messages(700);
    run.wait_until("batches end", |status| status["feed"]["rows"].as_u64() >= Some(512));
    run.kill();
    // Without the registry, the run repeats its log and goes on with the schemas that it knows.
    let requests = registry.stop();
    assert!(requests >= 2);
    put(&place, "2", &framed(7, 700..1_000, now));
    let mut run = place.start(&[]);
    run.wait_for_messages(1_000);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&1_000.into(), &0.into()), "{report}");
    let again = crate::harness::last_json(&place.ok(&replay_arguments()));
    for key in ["batches", "rows", "messages", "published"] {
        assert_eq!(report[key], again[key], "{key}");
    }
    compare_versions(&place);
    let log = place.ok(&["stream", "tail", "runs/live", "--last", "100000", "--json"]);
    assert_eq!(log.matches("{\"schema\"").count(), 2, "{log}");

    // A changed copy of a schema is not used.
    let schemas = place.path("runs/live/stream/schemas");
    for entry in std::fs::read_dir(&schemas).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a schema");
        std::fs::write(&path, text.replace("user", "item")).expect("a schema");
    }
    let error = place.fails(&["online", "job.toml"]);
    assert!(error.contains("is not the one that the log of decisions names"), "{error}");
}

#[test]
fn a_registry_that_is_away_stops_the_run_and_loses_nothing() {
    let registry = Registry::start(&[(7, ROW)]);
    let place = new_place(&registered(&registry.url));
    put(&place, "0", &framed(7, 0..300, now_ms()));
    registry.set_away(true);
    let error = place.start(&[]).fail();
    for words in [&*registry.url, "the schema with id 7", "0.5 seconds", "nothing is lost"] {
        assert!(error.contains(words), "{error}");
    }
    registry.set_away(false);
    let mut run = place.start(&[]);
    run.wait_for_messages(300);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&300.into(), &0.into()), "{report}");
}

#[test]
fn a_schema_that_does_not_fit_names_its_message() {
    let removed = ROW.replace("int64 item = 2;", "");
    let registry = Registry::start(&[(7, ROW), (8, &removed)]);
    let place = new_place(&registered(&registry.url));
    let now = now_ms();
    put(&place, "0", &framed(7, 0..10, now));
    // The offset of a message is the number of bytes before it.
    let offset: usize = framed(7, 0..10, now).iter().map(Vec::len).sum();
    for (id, words) in [(9, "the schema with id 9 is unknown"), (8, "column `item`")] {
        put(&place, "1", &framed(id, 0..1, now));
        let error = place.start(&[]).fail();
        let place_of = format!("stream `events`, `a` (partition 0 of stream 0), offset {offset}");
        for words in [&place_of, words, &format!("id {id}")] {
            assert!(error.contains(words), "{words}: {error}");
        }
        std::fs::remove_file(place.path("events/a/1-000000")).expect("a file");
        std::fs::remove_dir_all(place.path("runs")).expect("a folder");
    }
}
