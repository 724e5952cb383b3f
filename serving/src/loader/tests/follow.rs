//! Tests of a loader that follows a registry which is damaged, away, or not trusted.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use zillion_access::{SigningKey, TrustedKeys, version_statement};
use zillion_device::durable::{Action, Failpoints, Op};
use zillion_device::{Files, ManualClock, Workers};
use zillion_registry::{
    Cache, Model, MoveKind, Registry, STABLE, Signer, VersionId, VersionManifest,
};

use zillion_rows::RowSource as _;

use super::super::follower::{Follower, MERGE_THREAD};
use super::super::slices::Slices;
use crate::config::{Follow, ServeConfig};
use crate::host::{Host, OpenVersions};
use crate::metrics::Metrics;

const MODEL: &str = "fixture";

/// A copy of the registry that another program wrote, with two versions that can be loaded.
struct World {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    config: ServeConfig,
    keys: bool,
    /// The operations on the files of the cache.
    files: Files,
}

/// A loader without its thread.
struct Loading {
    follower: Follower,
    host: Arc<Host>,
    metrics: prometheus::Registry,
}

impl Loading {
    fn open(&self) -> Arc<OpenVersions> {
        self.host.open()
    }

    fn current(&self) -> Option<u64> {
        self.open().current.map(|version| version.0)
    }

    fn label(&self, name: &str) -> Option<u64> {
        self.open().labels.get(name).map(|version| version.0)
    }

    fn problem(&self) -> String {
        self.open().problem.clone().unwrap_or_default()
    }

    /// Returns the number of layers of the version that answers, and the bits of all its rows.
    fn rows(&self) -> (usize, Vec<(u64, Vec<u32>)>) {
        let open = self.open();
        let rows = open.versions[&open.current.unwrap()].rows();
        let bits = |weights: &[f32]| weights.iter().map(|x| x.to_bits()).collect();
        let all = (0..rows.tables().len()).flat_map(|table| rows.whole_rows_of(table));
        let all = all.map(|(key, row)| (key.0, bits(&row.weights))).collect();
        (rows.layers().len(), all)
    }

    /// Returns the value of a counter of the model.
    fn count(&self, name: &str) -> u64 {
        let families = self.metrics.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        family.get_metric()[0].get_counter().get_value() as u64
    }
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats-1");
        copy(&from.join("registry"), &folder.path().join("registry"));
        let config = ServeConfig {
            cache: folder.path().join("cache"),
            poll: Duration::ZERO,
            ..ServeConfig::default()
        };
        let clock = Arc::new(ManualClock::new(SystemTime::now()));
        let world = Self { folder, clock, config, keys: false, files: Files::new() };
        world.point(STABLE, 1);
        world
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn registry(&self) -> Registry {
        let (url, cache) = (self.place("registry").display().to_string(), &self.config.cache);
        let clock = self.clock.clone();
        Registry::open_for_server(&url, Files::new(), clock, cache, [MODEL]).unwrap()
    }

    fn model(&self) -> Model {
        self.registry().model(MODEL).unwrap()
    }

    /// Moves a pointer to a version.
    fn point(&self, pointer: &str, version: u64) {
        let model = self.model();
        model.promote(pointer, VersionId(version), MoveKind::Promote, "test", None).unwrap();
    }

    fn manifest_path(&self, version: u64) -> PathBuf {
        self.place(&format!("registry/{MODEL}/versions/00000000000000/000/{version:020}.json"))
    }

    /// Publishes version 2 with another number, after a change.
    fn publish(&self, version: u64, change: impl FnOnce(&mut VersionManifest)) {
        let mut manifest = self.model().version(VersionId(2)).unwrap();
        manifest.version = VersionId(version);
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest.seal()).unwrap();
        fs::write(self.manifest_path(version), bytes).unwrap();
    }

    fn leave(&self) {
        fs::rename(self.place("registry"), self.place("away")).unwrap();
    }

    fn come_back(&self) {
        fs::rename(self.place("away"), self.place("registry")).unwrap();
    }

    fn loading(&self) -> Loading {
        let registry = match self.keys {
            true => {
                let keys = TrustedKeys::load(&self.place("trusted")).unwrap();
                self.registry().with_trusted_keys(keys)
            }
            false => self.registry(),
        };
        let (cache, files) = (&self.config.cache, self.files.clone());
        let model = registry.model(MODEL).unwrap().with_memory(cache, files.clone());
        let follow = Follow::Pointer(STABLE.to_owned());
        let host = Arc::new(Host::new(MODEL, follow, true, None));
        let registered = prometheus::Registry::new();
        let metrics = Arc::new(Metrics::new(&registered).unwrap());
        metrics.loading.begin(MODEL);
        let stop = Arc::new(AtomicBool::new(false));
        let pace = Slices::new(Arc::new(AtomicUsize::new(0)), stop, metrics.clone());
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let cache = Cache::open(cache, MODEL, files).unwrap();
        let config = Arc::new(self.config.clone());
        let follower = Follower::new(model, host.clone(), config, cache, workers, metrics, pace);
        Loading { follower, host, metrics: registered }
    }

    /// Returns a loader that has begun, and has read the registry once.
    fn started(&self) -> Loading {
        let mut loading = self.loading();
        loading.follower.begin_from_cache();
        loading.follower.poll();
        loading
    }

    fn files(&self) -> PathBuf {
        self.config.cache.join(MODEL).join("files")
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        match entry.is_dir() {
            true => copy(&entry, &to.join(name)),
            false => _ = fs::copy(&entry, to.join(name)).unwrap(),
        }
    }
}

#[test]
fn a_server_that_begins_without_the_registry_says_so() {
    let world = World::new();
    assert_eq!(world.started().current(), Some(1));
    world.leave();
    let mut loading = world.started();
    assert_eq!(loading.current(), Some(1), "{}", loading.problem());
    assert!(loading.host.is_stale() && loading.host.describe_staleness().is_some());
    assert!(loading.problem().contains("does not exist"), "{}", loading.problem());
    world.come_back();
    world.point(STABLE, 2);
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(2), String::new()));
    assert!(!loading.host.is_stale());
}

#[test]
fn a_version_that_cannot_be_read_keeps_nothing_else_out() {
    let mut world = World::new();
    // Every load has to make room first.
    world.config.cache_bytes = Some(1);
    world.config.retain = 0;
    // A version that was refused is not tried again at once.
    world.config.poll = Duration::from_secs(3600);
    let mut loading = world.started();
    assert_eq!(loading.current(), Some(1));
    world.publish(3, |_| {});
    world.point(STABLE, 3);
    world.point("canary", 2);
    fs::write(world.manifest_path(3), b"damaged").unwrap();
    loading.follower.poll();
    assert_eq!((loading.current(), loading.label(STABLE)), (Some(1), Some(1)));
    assert!(loading.problem().contains("cannot be parsed"), "{}", loading.problem());
    // The other pointers follow their moves, also while the damaged version waits.
    assert_eq!(loading.label("canary"), Some(2));
    world.point("canary", 1);
    loading.follower.poll();
    assert_eq!((loading.current(), loading.label("canary")), (Some(1), Some(1)));
    assert!(loading.problem().contains("cannot be parsed"), "{}", loading.problem());
    world.publish(4, |_| {});
    world.point(STABLE, 4);
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(4), String::new()));
}

#[test]
fn a_registry_that_takes_no_lease_is_served_all_the_same() {
    let world = World::new();
    fs::write(world.place(&format!("registry/{MODEL}/leases")), b"").unwrap();
    let mut loading = world.started();
    assert_eq!((loading.current(), loading.problem()), (Some(1), String::new()));
    let failures = "zillion_serving_registry_write_failures_total";
    assert!(loading.count(failures) >= 1);
    world.point(STABLE, 2);
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(2), String::new()));
}

#[test]
fn a_refused_answer_is_an_answer() {
    let world = World::new();
    let mut loading = world.started();
    let log = format!("registry/{MODEL}/pointers/{STABLE}/00000000000000/000");
    let last = fs::read_dir(world.place(&log)).unwrap().count() + 1;
    let damaged = world.place(&format!("{log}/{last:020}.json"));
    fs::write(&damaged, b"{ damaged").unwrap();
    loading.follower.poll();
    assert!(loading.problem().contains("cannot be parsed"), "{}", loading.problem());
    assert!(!loading.host.is_stale(), "the registry has answered");
    // An operation of the store that fails is none.
    fs::write(damaged, " ".repeat(65 << 10)).unwrap();
    loading.follower.poll();
    assert!(loading.host.is_stale());
    assert_eq!(loading.current(), Some(1));
}

#[test]
fn changed_files_of_every_open_version_are_found_and_fetched_again() {
    let world = World::new();
    world.point("canary", 2);
    let mut loading = world.started();
    let names: Vec<PathBuf> =
        fs::read_dir(world.files()).unwrap().map(|entry| entry.unwrap().path()).collect();
    // A server that begins does not know that another process has changed the files.
    drop(loading);
    let last = names.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let good = fs::read(last).unwrap();
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    loading = world.started();
    assert_eq!(loading.current(), Some(1));
    // The registry has a link to the old file.
    fs::remove_file(last).unwrap();
    fs::write(last, &changed).unwrap();
    for _ in 0..=2 * names.len() {
        loading.follower.poll();
    }
    assert!(fs::read(last).unwrap() == good);
    assert_eq!(loading.count("zillion_serving_cache_damaged_files_total"), 1);
    assert_eq!((loading.current(), loading.label("canary")), (Some(1), Some(2)));
    // Without the registry, a changed file is not left for the next start.
    drop(loading);
    loading = world.started();
    world.leave();
    fs::remove_file(last).unwrap();
    fs::write(last, &changed).unwrap();
    for _ in 0..=2 * names.len() {
        loading.follower.poll();
    }
    assert!(!last.exists());
    assert_eq!(loading.current(), Some(1));
}

#[test]
fn a_version_that_has_ended_the_server_waits_for_a_proof() {
    let world = World::new();
    assert_eq!(world.started().current(), Some(1));
    world.point(STABLE, 2);
    let marks = world.config.cache.join(MODEL).join("attempts");
    fs::create_dir_all(&marks).unwrap();
    fs::write(marks.join(format!("{:020}.json", 2)), b"20").unwrap();
    let mut loading = world.started();
    assert_eq!(loading.current(), Some(1));
    assert!(!loading.host.is_stale());
    assert!(loading.problem().contains("loaded 20 times"), "{}", loading.problem());
    let model = world.model();
    let link = model.version(VersionId(2)).unwrap().link();
    model.prove(&link, "another").unwrap();
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(2), String::new()));
    assert_eq!(fs::read_dir(&marks).unwrap().count(), 0);
}

#[test]
fn a_new_version_of_every_pointer_is_left_to_others_first() {
    let mut world = World::new();
    world.config.stagger = Duration::from_secs(1_000_000);
    let mut loading = world.started();
    assert_eq!(loading.current(), Some(1));
    world.point("canary", 2);
    loading.follower.poll();
    assert_eq!((loading.label("canary"), loading.problem()), (None, String::new()));
    let model = world.model();
    model.prove(&model.version(VersionId(2)).unwrap().link(), "another").unwrap();
    loading.follower.poll();
    assert_eq!(loading.label("canary"), Some(2));
    assert_eq!(loading.current(), Some(1));
}

#[test]
fn a_version_is_the_one_that_its_pointer_names() {
    let world = World::new();
    let mut loading = world.started();
    world.publish(3, |_| {});
    world.point(STABLE, 3);
    // Another version takes the place of the one that was meant.
    world.publish(3, |manifest| manifest.published_ms += 1);
    loading.follower.poll();
    assert_eq!(loading.current(), Some(1));
    assert!(loading.problem().contains("but the pointer names"), "{}", loading.problem());
    world.publish(3, |_| {});
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(3), String::new()));
}

#[test]
fn the_end_of_a_move_holds_after_a_restart_without_the_registry() {
    let mut world = World::new();
    let (private, public) = (world.place("a.key"), world.place("a.pub"));
    SigningKey::create(&private, &public, &Files::new()).unwrap();
    TrustedKeys::add(&public, &world.place("trusted"), &Files::new()).unwrap();
    let key = SigningKey::load(&private).unwrap();
    for number in [1, 2] {
        let mut manifest = world.model().version(VersionId(number)).unwrap();
        let statement = version_statement(MODEL, number, &manifest.chain);
        manifest.signatures = vec![key.sign(&statement)];
        fs::write(world.manifest_path(number), serde_json::to_vec(&manifest).unwrap()).unwrap();
    }
    let signer = Signer::load(&private, Some("1h".parse().unwrap())).unwrap();
    let signed = world.registry().with_signer(signer).model(MODEL).unwrap();
    signed.promote(STABLE, VersionId(2), MoveKind::Promote, "test", None).unwrap();
    world.keys = true;
    let loading = world.started();
    assert_eq!(loading.current(), Some(2), "{}", loading.problem());
    drop(loading);
    world.leave();
    assert_eq!(world.started().current(), Some(2));
    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(world.started().current(), None);
    world.come_back();
    let loading = world.started();
    assert_eq!(loading.current(), None);
    assert!(loading.problem().contains("has ended"), "{}", loading.problem());
}

/// A gate that holds every merge at its first operation on a file.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Failpoints for Gate {
    fn before(&self, _: Op, _: &Path) -> Action {
        if std::thread::current().name() == Some(MERGE_THREAD) {
            let is_open = self.is_open.lock().unwrap();
            // A test that has failed does not open the gate.
            let longest = Duration::from_secs(60);
            drop(self.opened.wait_timeout_while(is_open, longest, |is_open| !*is_open).unwrap());
        }
        Action::Proceed
    }
}

#[test]
fn a_version_answers_before_the_merge_of_its_layers() {
    let gate = Arc::new(Gate::default());
    let mut world = World::new();
    world.files = Files::with_failpoints(gate.clone());
    // Each delta is as large as the base, so that the versions up to 5 are merged to one layer.
    world.point(STABLE, 2);
    let mut loading = world.started();
    assert_eq!((loading.current(), loading.rows().0), (Some(2), 2), "{}", loading.problem());
    loading.follower.merge_layers();
    for version in 3..=5 {
        let parent = world.model().version(VersionId(version - 1)).unwrap().link();
        world.publish(version, |manifest| manifest.parent = Some(parent));
        world.point(STABLE, version);
        loading.follower.poll();
        loading.follower.merge_layers();
        assert_eq!((loading.current(), loading.problem()), (Some(version), String::new()));
        assert_eq!(loading.rows().0, version as usize);
    }
    assert_eq!(loading.count("zillion_serving_merges_total"), 0);
    let (_, before) = loading.rows();
    *gate.is_open.lock().unwrap() = true;
    gate.opened.notify_all();
    while loading.rows().0 > 1 {
        loading.follower.merge_layers();
        assert_eq!((loading.current(), loading.problem()), (Some(5), String::new()));
        std::thread::yield_now();
    }
    // The merge that was held, and the one of all layers.
    assert_eq!(loading.count("zillion_serving_merges_total"), 2);
    assert!(loading.rows().1 == before && !before.is_empty());
    // Nothing is merged twice, and a rollback answers at once.
    loading.follower.merge_layers();
    world.point(STABLE, 3);
    loading.follower.poll();
    assert_eq!((loading.current(), loading.problem()), (Some(3), String::new()));
    assert_eq!(loading.count("zillion_serving_merges_total"), 2);
    assert!(loading.rows().1 == before);
}
