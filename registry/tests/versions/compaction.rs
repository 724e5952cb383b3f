//! Tests of bases that repeat a version.

use zillion_rows::layer::{Found, Layer, Throttle};

use super::*;

/// Publishes a base and `deltas` deltas, some of which remove rows. Returns the versions and the
/// rows of the last one.
fn publish_chain(fixture: &Fixture, deltas: u64) -> (Vec<VersionManifest>, Rows) {
    let mut layers = vec![rows(0..300, 1.0)];
    let mut versions = vec![fixture.publish(&layers[0], None)];
    for number in 0..deltas {
        let mut layer = rows(number * 7..number * 7 + 20, 2.0 + number as f32);
        layer.insert(key(number * 5), None);
        versions.push(fixture.publish(&layer, versions.last()));
        layers.push(layer);
    }
    let state = sum(&layers).into_iter().filter(|(_, value)| value.is_some()).collect();
    (versions, state)
}

/// Merges the chain of a version, and publishes a base that repeats the version.
fn compact(fixture: &Fixture, version: &VersionManifest) -> Result<VersionManifest, Error> {
    let model = fixture.model();
    let folder = tempfile::tempdir().unwrap();
    let mut cache = Cache::open(folder.path(), "clicks", Files::new()).unwrap();
    let chain = model.chain(version.version)?;
    let layer = cache.merge_chain(&model, &chain, &mut Unthrottled)?;
    model.upload_layer(&layer, cache.folder(), &mut Unthrottled)?;
    model.publish_compaction(model.latest()?.unwrap(), version, layer, None)
}

#[test]
fn a_merged_chain_has_the_rows_of_its_last_version_and_nothing_else() {
    for deltas in [0, 1, 2, 16, 17, 40] {
        let fixture = Fixture::new();
        let (versions, state) = publish_chain(&fixture, deltas);
        let last = versions.last().unwrap();
        let base = compact(&fixture, last).unwrap();
        assert!(base.is_base() && base.compacts() == Some(last.version));
        assert_eq!((&base.dense, &base.parity), (&last.dense, &last.parity));
        let folder = tempfile::tempdir().unwrap();
        let mut cache = Cache::open(folder.path(), "clicks", Files::new()).unwrap();
        let layer: Layer = cache.layer(&fixture.model(), &base, &mut Unthrottled).unwrap();
        let merged: Rows = layer
            .iter(0)
            .map(|(key, found)| match found {
                Found::Row(row) => (key.0, row.weights.first().copied()),
                Found::Tombstone => (key.0, None),
            })
            .collect();
        assert_eq!(merged, state, "{deltas} deltas");
        // The same chain gives the same bytes.
        assert_eq!(compact(&fixture, last).unwrap().layer, base.layer);
        fixture.model().verify(base.version, |_| ()).unwrap();
    }
}

#[test]
fn a_base_that_repeats_a_version_shares_its_quarantine() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let (versions, _) = publish_chain(&fixture, 3);
    let promote = |version: VersionId| {
        model.promote(STABLE, version, MoveKind::Promote, "a test", None).unwrap();
    };
    promote(VersionId(1));
    let base = compact(&fixture, versions.last().unwrap()).unwrap();
    let next = fixture.publish(&rows(0..3, 9.0), Some(&base));
    promote(next.version);
    // A reader that follows the newest version never takes the base.
    let newest =
        |from: VersionId| model.quarantined().unwrap().newest_usable(&model, from).unwrap();
    assert_eq!(newest(base.version), Some(VersionId(4)));
    assert_eq!(newest(next.version), Some(next.version));
    model.quarantine(VersionId(2), "a test", "bad rows").unwrap();
    let mut quarantine = model.quarantined().unwrap();
    for version in [VersionId(4), base.version, next.version] {
        assert_eq!(quarantine.find(&model, version).unwrap(), Some(VersionId(2)));
    }
    assert_eq!(newest(next.version), Some(VersionId(1)));
    assert_eq!(model.pointer(STABLE).unwrap().to.version, VersionId(1));
}

#[test]
fn the_repeated_version_can_be_removed() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let (versions, _) = publish_chain(&fixture, 3);
    let base = compact(&fixture, versions.last().unwrap()).unwrap();
    let next = fixture.publish(&rows(0..3, 9.0), Some(&base));
    for version in [base.version, next.version] {
        model.promote(STABLE, version, MoveKind::Promote, "a test", None).unwrap();
    }
    fixture.clock.advance(Duration::from_secs(10_000));
    let retention =
        Retention { keep: 2, grace: Duration::ZERO, history: true, ..Default::default() };
    model.collect(retention, false).unwrap();
    assert_eq!(model.page(None, 10).unwrap(), [next.version, base.version]);
    model.verify(next.version, |_| ()).unwrap();
    // A walk along the ancestors ends at the base, because nothing else is left.
    model.quarantine(base.version, "a test", "bad rows").unwrap_err();
    let mut quarantine = zillion_registry::Quarantine::of([VersionId(1)]);
    assert_eq!(quarantine.find(&model, next.version).unwrap(), None);
}

#[test]
fn a_base_needs_its_files_and_takes_the_next_free_number() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let (versions, _) = publish_chain(&fixture, 2);
    let last = versions.last().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut cache = Cache::open(folder.path(), "clicks", Files::new()).unwrap();
    let chain = model.chain(last.version).unwrap();
    let layer = cache.merge_chain(&model, &chain, &mut Unthrottled).unwrap();
    let refused = model.publish_compaction(last.version, last, layer.clone(), None).unwrap_err();
    assert!(matches!(&refused, Error::File { .. }), "{refused}");
    assert_eq!(model.latest().unwrap(), Some(last.version));
    // A stop ends a merge and a copy.
    struct Stopped;
    impl Throttle for Stopped {
        fn piece(&mut self) {}
        fn is_stopped(&self) -> bool {
            true
        }
    }
    model.upload_layer(&layer, cache.folder(), &mut Stopped).unwrap_err();
    let mut other = Cache::open(&folder.path().join("other"), "clicks", Files::new()).unwrap();
    let stopped = other.merge_chain(&model, &chain, &mut Stopped).unwrap_err();
    assert!(stopped.to_string().contains("ended early"), "{stopped}");
    // Another publisher has published a version meanwhile.
    model.upload_layer(&layer, cache.folder(), &mut Unthrottled).unwrap();
    fixture.publish(&rows(0..3, 9.0), Some(last));
    let base = model.publish_compaction(last.version, last, layer, None).unwrap();
    assert_eq!(base.version, VersionId(5));
}

#[test]
fn only_a_base_repeats_an_earlier_version() {
    let fixture = Fixture::new();
    let (versions, _) = publish_chain(&fixture, 1);
    for (parent, compacts) in [(versions.last(), VersionId(1)), (None, VersionId(9))] {
        let origin = Origin { compacts: Some(compacts), run: "one".into(), ..Origin::default() };
        let draft = Draft { origin, ..fixture.draft(&rows(0..3, 9.0), parent) };
        let version = fixture.model().publish(draft).unwrap().version;
        let refused = fixture.model().version(version).unwrap_err().to_string();
        assert!(refused.contains("only a base can repeat"), "{refused}");
    }
}
