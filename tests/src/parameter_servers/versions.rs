//! Tests of the versions of runs over servers. The servers write the parts of a base themselves.

use zillion_device::{Files, SystemClock};
use zillion_registry::{Model, Registry, VersionId, VersionManifest};
use zillion_rows::layer::LayerManifest;

use super::runs::{addresses, small_place, train_alone, train_over};
use super::servers::ServerProcess;
use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, operate};

/// Returns the settings of a run that publishes into a registry after every seven steps.
pub(super) fn publishing(registry: &str) -> [String; 2] {
    [format!("publish.registry={registry}"), "publish.every=7".to_owned()]
}

/// Returns the arguments of settings.
pub(super) fn arguments<'a>(settings: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let settings = settings.iter().flat_map(|setting| ["--set", setting.as_str()]);
    settings.chain(more.iter().copied()).collect()
}

fn model(registry: &str) -> Model {
    let clock = std::sync::Arc::new(SystemClock::new());
    let registry = Registry::open(registry, Files::new(), clock).expect("the registry exists");
    registry.model(MODEL).expect("the name is allowed")
}

/// Returns all versions of a registry, oldest first.
pub(super) fn versions(registry: &str) -> Vec<VersionManifest> {
    let model = model(registry);
    let newest = model.latest().expect("the registry can be read").expect("there is a version");
    (1..=newest.0).map(|number| model.version(VersionId(number)).expect("it is whole")).collect()
}

/// Returns the list of the layer of a version.
fn layer(registry: &str, version: &VersionManifest) -> LayerManifest {
    model(registry).layer(version).expect("the layer is there")
}

/// Returns the scores that a version gives to the rows of the test.
fn scores(place: &Workplace, registry: &str, version: u64) -> String {
    let (version, file) = (version.to_string(), place.text("test.csv"));
    let arguments = ["predict", "--registry", registry, "--model", MODEL, "--version", &version];
    let scored = zillion(&[&arguments[..], &[&file]].concat()).output().expect("the binary runs");
    assert!(scored.status.success(), "{}", stderr(&scored));
    stdout(&scored)
}

#[test]
fn a_base_has_the_parts_of_all_servers() {
    let place = small_place();
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let servers = addresses(&servers);
    let (registry, other) = (place.text(REGISTRY), place.text("alone-registry"));
    train_over(&place, "run", &servers, 1, &arguments(&publishing(&registry), &[]));
    train_alone(&place, "alone", &arguments(&publishing(&other), &[]));
    let (joint, alone) = (versions(&registry), versions(&other));
    assert!(joint.len() == alone.len() && joint.len() > 3, "{} versions", joint.len());
    for (joint, alone) in joint.iter().zip(&alone) {
        assert_eq!((joint.is_base(), joint.origin.step), (alone.is_base(), alone.origin.step));
        assert_eq!(joint.dense, alone.dense);
        let number = joint.version.0;
        assert_eq!(scores(&place, &registry, number), scores(&place, &other, number), "{number}");
        match joint.is_base() {
            // Every server has written a directory of its own.
            true => assert_eq!(layer(&registry, joint).more_directories.len(), 2),
            false => assert_eq!(joint.layer, alone.layer),
        }
        let rows = |registry: &str, version: &VersionManifest| {
            let tables = layer(registry, version).tables.into_iter();
            tables.map(|table| (table.table, table.rows)).collect::<Vec<_>>()
        };
        assert_eq!(rows(&registry, joint), rows(&other, alone));
    }
    // All tools know such a base.
    operate(&place, &["model", "verify"]);
    operate(&place, &["model", "gc", "--keep", "1", "--grace", "0"]);
    operate(&place, &["model", "verify"]);
    let diff = operate(&place, &["model", "diff", "1", "2"]);
    assert!(!diff.is_empty());
    let row = operate(&place, &["explain", "--table", "user", "--key", "u7", "--json"]);
    assert!(row.contains("written_by"), "{row}");
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    server.wait_for(joint.len() as u64);
    // A run that is resumed does not know the changes since its last version. Its servers write a
    // base, because nobody else has all rows.
    let more = ["--set", "train.epochs=2", "--resume"];
    train_over(&place, "run", &servers[..2], 1, &arguments(&publishing(&registry), &more));
    let next = &versions(&registry)[joint.len()];
    assert!(next.is_base() && layer(&registry, next).more_directories.len() == 1);
    server.wait_for(versions(&registry).len() as u64);
}

/// The servers cannot reach a registry that only the publisher's machine has.
#[test]
fn a_base_for_a_folder_elsewhere_goes_through_the_publisher() {
    let place = small_place();
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let registry = elsewhere.path().join(REGISTRY).display().to_string();
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    train_over(&place, "run", &addresses(&servers), 1, &arguments(&publishing(&registry), &[]));
    let other = place.text("alone-registry");
    train_alone(&place, "alone", &arguments(&publishing(&other), &[]));
    let layers = |registry: &str| {
        versions(registry).into_iter().map(|version| version.layer).collect::<Vec<_>>()
    };
    assert_eq!(layers(&registry), layers(&other));
}

/// A server is killed while it writes its part of a base. No version names a part that is missing.
#[test]
fn a_server_that_is_killed_in_a_base_leaves_no_version_in_part() {
    let place = small_place();
    let registry = place.text(REGISTRY);
    let settings = publishing(&registry);
    // No checkpoint comes before the base, so that the operations of the server are those of it.
    let settings = arguments(&settings, &["--set", "train.checkpoint_every=9"]);
    let other = ServerProcess::start(&place.path(""), &[]);
    for operation in [1, 6, 12] {
        let failpoint = format!("{operation}:kill");
        let store = place.path("");
        let mut dying = ServerProcess::start_at(&store, "127.0.0.1:0", &[], Some(&failpoint));
        let at = [other.address.clone(), dying.address.clone()];
        let output = format!("killed-{operation}");
        let trainer = super::runs::TrainerProcess::start(&place, &output, &at, (0, 1), &settings);
        let began = std::time::Instant::now();
        while dying.is_running() {
            assert!(began.elapsed() < super::proxy::PATIENCE, "{output}: no durable operation");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        dying.kill_and_restart(&[]);
        let report = trainer.end().succeeded();
        assert_eq!(report["rewinds"].as_u64(), Some(1), "{output}: {report}");
        operate(&place, &["model", "verify"]);
    }
}
