//! Tests of collections that remember what earlier ones have found.

use std::fs;
use std::path::PathBuf;

use zillion_registry::CollectMemory;

use super::*;

/// Returns the paths of all objects of the model.
fn objects(registry: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![registry.join("clicks")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(registry).unwrap().to_owned());
            }
        }
    }
    found
}

/// Gives the objects that were written since the last call the time of the fixture's clock.
fn stamp(fixture: &Fixture, times: &mut BTreeMap<PathBuf, SystemTime>) {
    for path in objects(&fixture.registry_path()) {
        let file = fs::File::open(fixture.registry_path().join(&path)).unwrap();
        if times.get(&path) != Some(&file.metadata().unwrap().modified().unwrap()) {
            file.set_modified(fixture.clock.wall()).unwrap();
            times.insert(path, file.metadata().unwrap().modified().unwrap());
        }
    }
}

#[test]
fn a_collection_with_a_memory_leaves_what_one_without_leaves() {
    let retention = Retention {
        keep: 3,
        keep_for: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        history: true,
    };
    for seed in 0..12u64 {
        // Both registries get the same versions, and one of them remembers.
        let [one, other] = [Fixture::new(), Fixture::new()];
        let mut memory = CollectMemory::default();
        let mut random = seed;
        let mut next = |end: u64| {
            random = zillion_feature::random::mix64(random + 1);
            random % end
        };
        let mut last: [Option<VersionManifest>; 2] = [None, None];
        let mut times = [BTreeMap::new(), BTreeMap::new()];
        let mut published = Vec::new();
        let mut removed = 0;
        for step in 0..60u64 {
            let is_base = step == 0 || next(7) == 0;
            let (from, value) = (next(30), next(5) as f32);
            let moves = next(3) > 0;
            for (fixture, last) in [&one, &other].into_iter().zip(&mut last) {
                let parent = last.as_ref().filter(|_| !is_base);
                let version = fixture.publish(&rows(from..from + 4, value), parent);
                if moves {
                    let kind = MoveKind::Publish;
                    fixture.model().promote(STABLE, version.version, kind, "test", None).unwrap();
                }
                if step == 20 {
                    fixture.model().pin(version.version, "test").unwrap();
                }
                *last = Some(version);
            }
            stamp(&one, &mut times[0]);
            stamp(&other, &mut times[1]);
            published.extend(last[0].clone().map(Arc::new));
            // Some versions are known from their publisher, and the others are read.
            if next(2) == 0 {
                published.clear();
            }
            if next(4) == 0 {
                one.clock.advance(Duration::from_secs(100));
                other.clock.advance(Duration::from_secs(100));
            }
            if next(3) == 0 {
                let model = one.model();
                let mine = model.collect_again(&mut memory, retention, &published).unwrap();
                let yours = other.model().collect(retention, false).unwrap();
                assert_eq!(mine.kept_versions, yours.kept_versions, "seed {seed}, step {step}");
                assert_eq!(mine.kept_files, yours.kept_files, "seed {seed}, step {step}");
                removed += mine.removed_manifests;
                published.clear();
            }
        }
        one.clock.advance(Duration::from_secs(1000));
        other.clock.advance(Duration::from_secs(1000));
        let mine = one.model().collect_again(&mut memory, retention, &[]).unwrap();
        other.model().collect(retention, false).unwrap();
        assert_eq!(objects(&one.registry_path()), objects(&other.registry_path()), "seed {seed}");
        removed += mine.removed_manifests;
        assert!(mine.kept_versions < 60 && removed > 0, "seed {seed}: {mine:?}, removed {removed}");
    }
}

#[test]
fn a_collection_with_a_memory_reads_only_new_manifests() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let keep = Duration::from_secs(3600);
    let retention = Retention { keep: 2, keep_for: keep, grace: keep, history: true };
    let mut last = fixture.publish(&rows(0..9, 1.0), None);
    let mut memory = CollectMemory::default();
    let mut requests = Vec::new();
    for _ in 0..6 {
        for step in 0..20 {
            last = fixture.publish(&rows(step..step + 2, 2.0), Some(&last));
        }
        let before = model.store().stats().sums().requests;
        model.collect_again(&mut memory, retention, &[]).unwrap();
        requests.push(model.store().stats().sums().requests - before);
    }
    // The first one lists everything. The others read 20 manifests, however many there are.
    assert!(requests[1..].iter().all(|&count| count == requests[1]), "{requests:?}");
    assert!(requests[1] < 40, "{requests:?}");
    model.verify(last.version, |_| ()).unwrap();
}
