//! Tests of versions in quarantine.

use super::*;
use zillion_registry::PointerMove;

/// Publishes a base and four deltas, and moves the pointer `stable` to each of them.
fn publish_chain(fixture: &Fixture) -> Vec<VersionManifest> {
    let mut versions = vec![fixture.publish(&rows(0..50, 1.0), None)];
    promote(fixture, STABLE, 1).unwrap();
    for i in 1..5u64 {
        versions.push(fixture.publish(&rows(0..i, i as f32), versions.last()));
        promote(fixture, STABLE, i + 1).unwrap();
    }
    versions
}

fn promote(fixture: &Fixture, pointer: &str, version: u64) -> Result<PointerMove, Error> {
    fixture.model().promote(pointer, VersionId(version), MoveKind::Promote, "a test", None)
}

fn quarantine(fixture: &Fixture, version: u64) -> Result<BTreeMap<String, PointerMove>, Error> {
    fixture.model().quarantine(VersionId(version), "a test", "labels were flipped")
}

fn target(fixture: &Fixture, pointer: &str) -> u64 {
    fixture.model().pointer(pointer).unwrap().to.version.0
}

fn assert_quarantined<T: std::fmt::Debug>(result: Result<T, Error>, version: u64, root: u64) {
    match result {
        Err(Error::Quarantined { version: found, root: by, .. }) => {
            assert_eq!((found.0, by.0), (version, root));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_version_and_all_that_build_on_it_are_out_of_use() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let versions = publish_chain(&fixture);
    promote(&fixture, "canary", 1).unwrap();

    let moves = quarantine(&fixture, 3).unwrap();
    let stable = &moves[STABLE];
    assert_eq!(
        (stable.from, stable.to.version.0, stable.kind),
        (Some(VersionId(5)), 2, MoveKind::Quarantine)
    );
    assert_eq!(
        (stable.about, stable.note.as_deref()),
        (Some(VersionId(3)), Some("labels were flipped"))
    );
    assert_eq!(stable.to, versions[1].link());
    assert_eq!((target(&fixture, STABLE), target(&fixture, "canary")), (2, 1));
    // Repeated, it changes nothing.
    assert_eq!(quarantine(&fixture, 3).unwrap(), moves);
    assert_eq!(model.pointer(STABLE).unwrap().number, 6);

    for version in 3..=5 {
        assert_quarantined(promote(&fixture, STABLE, version), version, 3);
        assert_quarantined(promote(&fixture, "new", version), version, 3);
        let back = model.rollback(STABLE, Some(VersionId(version)), "a test", None);
        assert_quarantined(back, version, 3);
        let draft = fixture.draft(&rows(0..2, 9.0), Some(&versions[version as usize - 1]));
        assert_quarantined(model.publish(draft), version, 3);
    }
    // The chain goes on from the version before, and later moves keep the quarantine.
    let sixth = fixture.publish(&rows(0..2, 9.0), Some(&versions[1]));
    assert_eq!(promote(&fixture, STABLE, sixth.version.0).unwrap().quarantined, [VersionId(3)]);
    assert_quarantined(promote(&fixture, STABLE, 4), 4, 3);
    let mut quarantined = model.quarantined().unwrap();
    assert_eq!(quarantined.newest_usable(&model, VersionId(6)).unwrap(), Some(VersionId(6)));
    assert_eq!(quarantined.newest_usable(&model, VersionId(5)).unwrap(), Some(VersionId(2)));

    // Going back passes over the versions in quarantine.
    assert_eq!(model.rollback(STABLE, None, "a test", None).unwrap().to.version.0, 2);
    assert_eq!(model.rollback(STABLE, None, "a test", None).unwrap().to.version.0, 1);

    // A base in quarantine leaves nothing of the chain.
    let error = quarantine(&fixture, 1).unwrap_err().to_string();
    assert!(error.contains("no version to go back to"), "{error}");
    assert_eq!(target(&fixture, STABLE), 1, "a version that is wrong is better than none");
    let other = fixture.publish(&rows(0..9, 4.0), None);
    promote(&fixture, STABLE, other.version.0).unwrap();
    promote(&fixture, "canary", other.version.0).unwrap();
    quarantine(&fixture, 1).unwrap();
    assert_quarantined(promote(&fixture, STABLE, 6), 6, 1);

    // Lifted one by one.
    let error = model.lift_quarantine(VersionId(4), "a test", "a mistake").unwrap_err().to_string();
    assert!(error.contains("it builds on version 3"), "{error}");
    let lifted = model.lift_quarantine(VersionId(1), "a test", "a mistake").unwrap();
    assert_eq!(lifted[STABLE].kind, MoveKind::Lift);
    assert_eq!(
        (lifted[STABLE].to.version, lifted[STABLE].from),
        (other.version, Some(other.version))
    );
    assert_quarantined(promote(&fixture, STABLE, 4), 4, 3);
    model.lift_quarantine(VersionId(3), "a test", "a mistake").unwrap();
    assert!(model.lift_quarantine(VersionId(3), "a test", "a mistake").is_err());
    assert_eq!(promote(&fixture, STABLE, 5).unwrap().to, versions[4].link());
}

#[test]
fn a_quarantine_needs_a_version_and_a_pointer() {
    let fixture = Fixture::new();
    assert!(matches!(quarantine(&fixture, 1), Err(Error::NoModel { .. })));
    fixture.publish(&rows(0..5, 1.0), None);
    assert!(matches!(quarantine(&fixture, 2), Err(Error::NoVersion { .. })));
    assert!(matches!(quarantine(&fixture, 1), Err(Error::NoPointer { .. })));
}

#[test]
fn a_pointer_goes_back_to_a_version_with_files() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let versions: Vec<_> = (0..4)
        .map(|i| {
            let base = fixture.publish(&rows(0..20 + i, i as f32), None);
            promote(&fixture, STABLE, base.version.0).unwrap();
            base
        })
        .collect();
    model.pin(versions[0].version, "a test").unwrap();
    fixture.clock.advance(Duration::from_secs(3600));
    model
        .collect(Retention { keep: 1, grace: Duration::ZERO, ..Retention::default() }, false)
        .unwrap();
    assert!(model.check_files(VersionId(3)).is_err());
    assert_eq!(quarantine(&fixture, 4).unwrap()[STABLE].to.version.0, 1);
}

#[test]
fn a_damaged_pointer_does_not_keep_the_others() {
    let fixture = Fixture::new();
    publish_chain(&fixture);
    promote(&fixture, "canary", 1).unwrap();
    let log = fixture.registry_path().join("clicks/pointers/canary/00000000000000/000");
    std::fs::write(log.join("00000000000000000002.json"), b"{ damaged").unwrap();
    assert!(matches!(quarantine(&fixture, 4), Err(Error::Manifest { .. })));
    assert_eq!(target(&fixture, STABLE), 3);
    assert_quarantined(promote(&fixture, STABLE, 5), 5, 4);
}

#[test]
fn promotions_at_the_same_time_do_not_win() {
    for round in 0..8 {
        let fixture = Fixture::new();
        publish_chain(&fixture);
        for pointer in ["a", "b"] {
            promote(&fixture, pointer, 2).unwrap();
        }
        std::thread::scope(|scope| {
            for pointer in ["a", "b", STABLE] {
                let fixture = &fixture;
                scope.spawn(move || {
                    for version in [5, 2, 4, 1, 5, 3, 2, 5] {
                        match promote(fixture, pointer, version) {
                            Ok(_) | Err(Error::Quarantined { .. } | Error::PointerMoved { .. }) => {
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            scope.spawn(|| quarantine(&fixture, 3 + round % 2).unwrap());
        });
        let model = fixture.model();
        for pointer in ["a", "b", STABLE] {
            let last = model.pointer(pointer).unwrap();
            assert!(last.to.version.0 < 3 + round % 2, "{last:?}");
            assert_eq!(last.quarantined, [VersionId(3 + round % 2)]);
            // The log has no gap, and one entry of the quarantine.
            let log = model.moves(pointer, None, 100).unwrap();
            assert_eq!(log.len() as u64, last.number);
            assert_eq!(log.iter().filter(|m| m.kind == MoveKind::Quarantine).count(), 1);
        }
    }
}
