//! Tests of items that come as differences: every answer is brute force of its version while
//! versions come, after a start with an empty cache, and after a rollback.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use zillion_device::{Files, SystemClock};
use zillion_registry::{ITEM_DELTA, ITEMS as WHOLE, Model, Registry, VersionManifest};

use crate::harness::Workplace;
use crate::retrieval::{ITEMS, place};
use crate::retrieval_serving::{bits, found, retrieve, version};
use crate::server::{MODEL, REGISTRY, Server, floats, operate};

/// Returns the ids of the catalogue. Training never sees most of them, so that their vectors change
/// only with the dense parameters.
fn catalogue() -> impl Iterator<Item = u64> {
    (0..ITEMS).chain(1000..1600)
}

/// Trains a run that publishes a version every other step.
fn train(place: &Workplace, output: &str, epochs: usize) {
    let settings = [
        format!("publish.registry={}", place.text(REGISTRY)),
        format!("publish.model={MODEL}"),
        format!("publish.items.path={}", place.text("catalogue.csv")),
        "publish.items.id=number".to_owned(),
        "publish.every=2".to_owned(),
        "publish.dense_every=100".to_owned(),
        "publish.max_deltas=4".to_owned(),
        format!("train.epochs={epochs}"),
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    place.train_ok(output, &arguments);
}

fn open_model(place: &Workplace) -> Model {
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::open(&place.text(REGISTRY), Files::new(), clock).expect("a registry");
    registry.model(MODEL).expect("a model")
}

fn manifests(model: &Model) -> Vec<VersionManifest> {
    let mut versions = model.page(None, 1000).expect("versions");
    versions.sort_unstable();
    versions.into_iter().map(|version| model.version(version).expect("a version")).collect()
}

/// Asserts that an answer for this history is brute force of the version that it names. Returns the
/// version, or `None` if the server has dropped the version since.
fn check(server: &Server, history: &[u64]) -> Option<u64> {
    let exact = history.len().is_multiple_of(2);
    let context = json!({ "history": history });
    let reply = retrieve(server, &json!({ "context": context, "k": 1000, "exact": exact }));
    let version = version(&reply);
    assert_eq!(reply.json()["exact"], exact, "{reply:?}");
    let instance = |item: u64| json!({ "history": history, "item": item });
    let body = json!({ "instances": catalogue().map(instance).collect::<Vec<Value>>() });
    let path = format!("/v1/models/{MODEL}/versions/{version}:predict");
    let predicted = server.post(&path, body.to_string().as_bytes());
    if predicted.status == 404 {
        return None;
    }
    assert_eq!(predicted.status, 200, "{predicted:?}");
    let scores = floats(&predicted.json()["predictions"]);
    let mut expected: Vec<(u64, f32)> = catalogue().zip(scores).collect();
    // The sort is stable, and equal scores come in the order of the catalogue.
    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert_eq!(bits(found(&reply)), bits(expected), "version {version}");
    Some(version)
}

#[test]
fn answers_are_of_their_version_while_item_deltas_come() {
    let place = place();
    let mut file = "number\n".to_owned();
    catalogue().for_each(|item| writeln!(file, "{item}").expect("memory"));
    place.write("catalogue.csv", &file);
    train(&place, "first", 1);
    let mut server = Server::start(&place, &["--retain", "3"]);
    assert!(server.becomes_ready());
    let histories: [&[u64]; 4] = [&[3], &[1, 2], &[], &[40, 7, 7]];
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    std::thread::scope(|scope| {
        let training = scope.spawn(|| train(&place, "second", 2));
        for history in histories.iter().cycle() {
            if let Some(version) = check(&server, history) {
                *seen.entry(version).or_default() += 1;
            }
            if training.is_finished() {
                break;
            }
        }
        training.join().expect("the training ends");
    });
    let model = open_model(&place);
    let last = model.pointer("stable").expect("a pointer").to.version.0;
    server.wait_for(last);
    assert_eq!(check(&server, &[5, 6]), Some(last));
    assert!(seen.len() >= 2, "{seen:?}");

    // Most versions have a difference, which is far smaller than the whole items. A base has them
    // whole, and so has one that repeats a version with a difference.
    let all = manifests(&model);
    let kind = |version: &VersionManifest| version.items.clone().expect("items").kind;
    let sizes = |wanted: &str| -> Vec<u64> {
        let of_kind = all.iter().filter(|version| kind(version) == wanted);
        of_kind.map(|version| version.items.as_ref().expect("items").bytes).collect()
    };
    let (whole, deltas) = (sizes(WHOLE), sizes(ITEM_DELTA));
    let smallest = whole.iter().min().expect("a base");
    assert!(deltas.len() >= 3, "{deltas:?} {whole:?}");
    assert!(deltas.iter().all(|delta| delta * 2 <= *smallest), "{deltas:?} {whole:?}");
    assert!(all.iter().filter(|version| version.is_base()).all(|base| kind(base) == WHOLE));

    // A server that begins with nothing reads the whole chain, and one that goes back to an earlier
    // version has its items again.
    drop(server);
    let cache = place.text("other-cache");
    let mut server = Server::start(&place, &["--cache", &cache]);
    assert!(server.becomes_ready());
    assert_eq!(check(&server, &[3]), Some(last));
    let is_earlier =
        |version: &&VersionManifest| version.version.0 < last && kind(version) == ITEM_DELTA;
    let earlier = all.iter().rev().find(is_earlier).expect("a delta").version.0;
    operate(&place, &["model", "rollback", "--to", &earlier.to_string()]);
    server.wait_for(earlier);
    for history in histories {
        assert_eq!(check(&server, history), Some(earlier));
    }
    assert!(server.terminate().success());
}
