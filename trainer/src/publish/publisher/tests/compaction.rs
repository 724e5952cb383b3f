//! Tests of bases that are merged beside the publications.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use zillion_device::Failpoints;
use zillion_device::durable::{Action, Op};
use zillion_feature::random::mix64;
use zillion_rows::layer::Found;

use super::*;
use crate::publish::CompactionCounts;

/// The settings of most tests: a merge begins when there are four deltas, and is due when there are
/// eight.
const EIGHT: &str = "max_deltas = 8";

/// A disk that tests make slow, stop, or fill, for the thread of a merge only.
#[derive(Debug, Default)]
struct Disk {
    is_stopped: Mutex<bool>,
    moved: Condvar,
    is_slow: AtomicBool,
    is_full: AtomicBool,
    operations: AtomicU64,
}

impl Disk {
    fn stop(&self, is_stopped: bool) {
        *self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = is_stopped;
        self.moved.notify_all();
    }
}

impl Failpoints for Disk {
    fn before(&self, _: Op, _: &Path) -> Action {
        if std::thread::current().name() != Some("zillion-compact") {
            return Action::Proceed;
        }
        let stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.moved.wait_while(stopped, |is_stopped| *is_stopped));
        self.operations.fetch_add(1, Ordering::Relaxed);
        if self.is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
        match self.is_full.load(Ordering::Relaxed) {
            true => Action::Fail(std::io::ErrorKind::StorageFull.into()),
            false => Action::Proceed,
        }
    }
}

/// A run whose bases are merged, with the rows that each of its versions must have.
struct Compacting {
    run: Run,
    disk: Arc<Disk>,
    states: BTreeMap<VersionId, BTreeMap<u64, f32>>,
}

impl Compacting {
    fn new(more: &str) -> Self {
        let mut run = Run::new(true, more);
        // Rows of later steps must differ from all earlier ones.
        run.step = 100;
        let mut compacting = Self { run, disk: Arc::default(), states: BTreeMap::new() };
        compacting.start_again();
        compacting
    }

    /// Ends the publisher and opens another one, which knows nothing, as after a kill.
    fn start_again(&mut self) {
        let files = Files::with_failpoints(self.disk.clone());
        let run = &mut self.run;
        drop(run.publisher.compactor.take());
        run.publisher = open(&run.job, run.folder.path(), &run.clock, &files, true);
    }

    /// Does a step, publishes it, and returns the version.
    fn publish(&mut self) -> Published {
        let published = self.run.publish().unwrap();
        let rows = self.run.table.rows.iter().map(|(key, (value, _))| (key.0, *value));
        self.states.insert(published.version.version, rows.collect());
        published
    }

    fn counts(&self) -> CompactionCounts {
        self.run.publisher.compactor.as_ref().unwrap().counts
    }

    /// Returns all manifests, the oldest first.
    fn versions(&self) -> Vec<VersionManifest> {
        let model = self.run.model();
        let mut versions = model.page(None, 10_000).unwrap();
        versions.reverse();
        versions.into_iter().map(|version| model.version(version).unwrap()).collect()
    }

    /// Checks that every version has the rows of its state, and returns the number of bases that
    /// repeat a version.
    fn check_rows(&self) -> usize {
        let layouts: Vec<_> = self.run.job.tables.iter().map(TableSpec::layout).collect();
        let mut repeats = 0;
        for version in self.versions() {
            let folder = tempfile::tempdir().unwrap();
            let mut cache = Cache::open(folder.path(), "m", Files::new()).unwrap();
            let chain = self.run.model().chain(version.version).unwrap();
            let merged = cache.merge_chain(self.run.model(), &chain, &mut Unthrottled).unwrap();
            let layer = Layer::open(cache.folder(), &merged, &layouts).unwrap();
            let rows: BTreeMap<u64, f32> = layer
                .iter(0)
                .map(|(key, found)| match found {
                    Found::Row(row) => (key.0, row.weights[0]),
                    Found::Tombstone => panic!("a base has no tombstones"),
                })
                .collect();
            let state = version.compacts().unwrap_or(version.version);
            assert_eq!(rows, self.states[&state], "version {}", version.version);
            repeats += usize::from(version.compacts().is_some());
        }
        repeats
    }
}

#[test]
fn a_long_run_writes_one_base_and_merges_the_others() {
    let mut run = Compacting::new(EIGHT);
    let mut longest = 0;
    for number in 0..60 {
        let published = run.publish();
        assert_eq!(published.version.is_base(), number == 0, "publication {number}");
        longest = longest.max(published.deltas.unwrap());
    }
    assert_eq!(longest, 8);
    // The first base has eight deltas, each later one as well, of which the first has the changes
    // since the version that the base repeats.
    let versions = run.versions();
    let repeats: Vec<_> = versions.iter().filter_map(|version| version.compacts()).collect();
    let counts = run.counts();
    assert_eq!(repeats[..3], [5, 14, 23].map(VersionId));
    assert_eq!((counts.published, counts.failed, counts.dropped), (repeats.len() as u64, 0, 0));
    assert!(counts.bytes > 0);
    assert_eq!(run.check_rows(), repeats.len());
    // The pointer has never stood on a base that only repeats.
    let moves = run.run.model().moves(STABLE, None, 1000).unwrap();
    let repeating =
        |moved: &PointerMove| versions[moved.to.version.0 as usize - 1].compacts().is_some();
    assert!(moves.len() == 60 && !moves.iter().any(repeating));
}

#[test]
fn a_base_repeats_the_dense_parameters_and_the_next_version_has_new_ones() {
    let mut run = Compacting::new("max_deltas = 8\ndense_every = 3");
    for _ in 0..30 {
        add(&mut run.run.params, 0.25);
        run.publish();
    }
    let versions = run.versions();
    let mut seen = 0;
    for (base, next) in versions.iter().zip(&versions[1..]) {
        let Some(repeated) = base.compacts() else { continue };
        let repeated = &versions[repeated.0 as usize - 1];
        assert_eq!((&base.dense, &base.parity), (&repeated.dense, &repeated.parity));
        assert!(next.origin.later_dense.is_none() && next.dense != base.dense);
        seen += 1;
    }
    assert!(seen > 2);
}

/// Publishes the same steps in an undisturbed run and in one that `disturb` disturbs before each
/// publication, and checks that both have the same versions. The time, the run and so the hashes
/// are the same too.
fn assert_same_versions(more: &str, disturb: impl Fn(&mut Compacting, u64)) {
    let [undisturbed, disturbed] = [false, true].map(|is_disturbed| {
        let mut run = Compacting::new(more);
        for number in 0..50 {
            if is_disturbed {
                disturb(&mut run, number);
            }
            run.publish();
        }
        assert!(run.check_rows() > 2);
        run.versions()
    });
    assert_eq!(undisturbed, disturbed);
}

#[test]
fn a_run_that_is_started_again_publishes_the_same_versions() {
    for seed in 0..3 {
        assert_same_versions("max_deltas = 10\ndense_every = 2", |run, number| {
            let random = mix64(seed << 32 | number);
            run.disk.is_slow.store(random.is_multiple_of(2), Ordering::Relaxed);
            if random % 7 < 2 {
                run.start_again();
            }
        });
    }
}

#[test]
fn a_run_that_was_killed_behind_its_base_continues_it() {
    assert_same_versions(EIGHT, |run, _| {
        // The layer of the delta fails after the base was published.
        run.run.table.fails = true;
        let step = run.run.step;
        let rows = run.run.table.rows.clone();
        let bases = run.run.model().latest().unwrap();
        run.run.publish().unwrap_err();
        let is_base = run.run.model().latest().unwrap() > bases;
        (run.run.step, run.run.table.rows, run.run.table.fails) = (step, rows, false);
        let clock = &run.run.clock;
        clock.set_wall(clock.wall() - Duration::from_secs(1));
        if is_base {
            run.start_again();
        }
    });
}

#[test]
fn deltas_are_published_while_a_merge_is_late() {
    let mut run = Compacting::new(EIGHT);
    (0..4).for_each(|_| drop(run.publish()));
    run.disk.stop(true);
    for number in 5..=9 {
        let published = run.publish();
        assert_eq!(published.version.version, VersionId(number));
        assert_eq!(published.deltas, Some(number - 1));
    }
    // The merge has begun with version 5 and has done nothing yet. The next version waits for it.
    assert_eq!(run.disk.operations.load(Ordering::Relaxed), 0);
    let disk = run.disk.clone();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| run.publish());
        disk.stop(false);
        let published = late.join().unwrap();
        assert_eq!(published.version.parent.as_ref().unwrap().version, VersionId(10));
        assert_eq!(published.deltas, Some(1));
    });
    assert!(run.disk.operations.load(Ordering::Relaxed) > 0);
    assert_eq!(run.check_rows(), 1);
}

#[test]
fn a_merge_that_fails_leaves_the_deltas_and_is_tried_again() {
    let mut run = Compacting::new(EIGHT);
    run.disk.is_full.store(true, Ordering::Relaxed);
    for number in 1..=16 {
        assert_eq!(run.publish().version.version, VersionId(number));
    }
    let failed = run.counts();
    assert_eq!((failed.published, failed.failed), (0, 2));
    assert_eq!(run.run.model().chain(VersionId(16)).unwrap().len(), 16);
    run.disk.is_full.store(false, Ordering::Relaxed);
    // The merge that has begun with version 13 has failed too.
    (0..6).for_each(|_| drop(run.publish()));
    assert_eq!(run.check_rows(), 1);
    assert_eq!(run.versions()[21].compacts(), Some(VersionId(17)));
    assert_eq!(run.run.model().chain(VersionId(23)).unwrap().len(), 2);
}

#[test]
fn a_merge_of_versions_that_were_rolled_back_is_given_up() {
    for is_quarantine in [false, true] {
        let mut run = Compacting::new(EIGHT);
        run.disk.is_slow.store(true, Ordering::Relaxed);
        (0..7).for_each(|_| drop(run.publish()));
        let model = run.run.model();
        match is_quarantine {
            true => drop(model.quarantine(VersionId(3), "test", "bad rows").unwrap()),
            false => {
                model.rollback(STABLE, Some(VersionId(2)), "test", None).unwrap();
            }
        }
        for _ in 0..30 {
            run.publish();
        }
        assert_eq!(run.counts().dropped, 1);
        assert!(run.check_rows() > 1);
        // The chain of each base goes on from version 2, without those that were given up.
        let repeats: Vec<_> = run.versions().iter().filter_map(VersionManifest::compacts).collect();
        assert!(repeats.iter().all(|repeated| *repeated > VersionId(7)), "{repeats:?}");
        let quarantine = &mut run.run.model().quarantined().unwrap();
        let newest = run.run.model().latest().unwrap().unwrap();
        assert_eq!(quarantine.find(run.run.model(), newest).unwrap(), None);
    }
    // A rollback that leaves the merged version in the chain does not disturb its merge.
    let mut run = Compacting::new(EIGHT);
    run.disk.is_slow.store(true, Ordering::Relaxed);
    (0..7).for_each(|_| drop(run.publish()));
    run.run.model().rollback(STABLE, Some(VersionId(6)), "test", None).unwrap();
    (0..6).for_each(|_| drop(run.publish()));
    assert_eq!((run.counts().dropped, run.check_rows()), (0, 1));
    assert_eq!(run.versions()[10].compacts(), Some(VersionId(5)));
}

#[test]
fn a_base_in_quarantine_is_merged_anew() {
    let mut run = Compacting::new(EIGHT);
    (0..10).for_each(|_| drop(run.publish()));
    // Version 10 repeats version 5, and version 11 stands on it. A rewind by hand to version 9 puts
    // both into quarantine.
    let model = run.run.model();
    assert_eq!(model.version(VersionId(10)).unwrap().compacts(), Some(VersionId(5)));
    model.quarantine(VersionId(10), "test", "bad rows").unwrap();
    assert_eq!(model.pointer(STABLE).unwrap().to.version, VersionId(9));
    let published = run.publish();
    assert!(continues(&published, 12));
    assert_eq!(run.versions()[11].compacts(), Some(VersionId(5)));
    run.run.model().check_usable(published.version.version).unwrap();
    assert_eq!(run.check_rows(), 2);
}

#[test]
fn collections_beside_merges_remove_nothing_that_is_needed() {
    for is_slow in [false, true] {
        let mut run = Compacting::new(EIGHT);
        run.disk.is_slow.store(is_slow, Ordering::Relaxed);
        // Files without an age are removed as soon as no version in use needs them.
        let retention =
            Retention { keep: 4, keep_for: Duration::ZERO, grace: Duration::ZERO, history: true };
        run.run.publisher.collector = Some(Collector::new(retention));
        for number in 0..60 {
            let version = run.publish().version.version;
            run.run.model().check_files(version).unwrap();
            if number % 3 == 0 {
                run.run.publisher.collector.as_mut().unwrap().end();
            }
        }
        run.run.publisher.collector.as_mut().unwrap().end();
        assert!(run.counts().published > 4 && run.counts().failed == 0, "{:?}", run.counts());
        assert!(run.check_rows() > 0);
        assert!(run.versions().len() < 4 + 1 + 2 * 10, "{}", run.versions().len());
    }
}

#[test]
fn a_merge_leaves_no_files_in_the_folder_of_the_run() {
    let mut run = Compacting::new(EIGHT);
    let folder = run.run.folder.path().join("compaction");
    run.disk.is_slow.store(true, Ordering::Relaxed);
    (0..7).for_each(|_| drop(run.publish()));
    run.start_again();
    assert!(!folder.exists());
    // A killed process has left a file, which the next start removes.
    std::fs::create_dir_all(folder.join("m/files")).unwrap();
    std::fs::write(folder.join("m/files/left"), b"left").unwrap();
    run.start_again();
    assert!(!folder.exists());
    (0..5).for_each(|_| drop(run.publish()));
    assert!(run.counts().published == 1 && !folder.exists());
}
