//! Tests of signed versions and moves, with a writer of the store who has no key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use zillion_access::{SigningKey, TrustedKeys};
use zillion_device::{Files, ManualClock};
use zillion_feature::Schema;
use zillion_rows::layer::{LayerWriter, Unthrottled};

use crate::{
    Cache, Draft, Error, FrameDraft, Link, Model, MoveKind, NewFrame, Origin, PointerMove,
    Registry, STABLE, ScoreSettings, Signer, Validity, VersionId, VersionManifest,
};

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Fixture {
    /// Makes the keys `good`, which is trusted, and `other`, which is not.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["good", "other"] {
            let (private, public) = key_files(folder.path(), name);
            SigningKey::create(&private, &public, &Files::new()).unwrap();
        }
        let (_, public) = key_files(folder.path(), "good");
        TrustedKeys::add(&public, &folder.path().join("trusted"), &Files::new()).unwrap();
        Self { folder, clock: Arc::new(ManualClock::new(SystemTime::now())) }
    }

    fn registry(&self, place: &str) -> Registry {
        let url = self.folder.path().join(place).display().to_string();
        Registry::create(&url, Files::new(), self.clock.clone()).unwrap()
    }

    /// Returns the model as a publisher without a key sees it.
    fn unsigned(&self) -> Model {
        self.registry("registry").model("ctr").unwrap()
    }

    /// Returns the model as a publisher with a key sees it.
    fn signed(&self, key: &str, validity: Option<&str>) -> Model {
        self.signed_at("registry", "ctr", key, validity)
    }

    fn signed_at(&self, place: &str, model: &str, key: &str, validity: Option<&str>) -> Model {
        let validity: Option<Validity> = validity.map(|text| text.parse().unwrap());
        let signer = Signer::load(&key_files(self.folder.path(), key).0, validity).unwrap();
        self.registry(place).with_signer(signer).model(model).unwrap()
    }

    fn trusted(&self) -> TrustedKeys {
        TrustedKeys::load(&self.folder.path().join("trusted")).unwrap()
    }

    /// Returns the model as a reader with trusted keys sees it.
    fn reader(&self) -> Model {
        self.registry("registry").with_trusted_keys(self.trusted()).model("ctr").unwrap()
    }

    /// Returns the model as a server sees it that remembers the moves that it took.
    fn server(&self) -> Model {
        self.reader().with_memory(&self.folder.path().join("cache"), Files::new())
    }

    fn draft(&self, name: &str, parent: Option<&VersionManifest>) -> Draft {
        let folder = self.folder.path().join("staged");
        std::fs::create_dir_all(&folder).unwrap();
        let job: toml::Table = toml::from_str("[features.u]\nkind = 'id'\n[labels.y]").unwrap();
        let (files, mut pace) = (Files::new(), Unthrottled);
        let frame = NewFrame::new(FrameDraft {
            schema: Schema::from_job(&job.into()).unwrap(),
            tables: Vec::new(),
            statistics: Default::default(),
            graph: b"graph".to_vec(),
            settings: ScoreSettings { lanes: 8, tile_rows: 256, dense: None, onnx: false },
            sides: Vec::new(),
        })
        .unwrap();
        Draft {
            parent: parent.map(VersionManifest::link),
            frame: Arc::new(frame),
            layer: LayerWriter::new(&files, &folder, &mut pace).finish().unwrap(),
            folder: Some(folder),
            dense: Some(name.as_bytes().to_vec()),
            parity: b"parity".to_vec(),
            items: None,
            origin: Origin { run: "one".into(), ..Origin::default() },
        }
    }

    /// Returns the file of a version's manifest, or of a move of the pointer `stable`.
    fn object(&self, place: &str, folder: &str, number: u64) -> PathBuf {
        let name = format!("{place}/{folder}/00000000000000/000/{number:020}.json");
        self.folder.path().join(name)
    }

    fn manifest_file(&self, number: u64) -> PathBuf {
        self.object("registry", "ctr/versions", number)
    }

    fn move_file(&self, number: u64) -> PathBuf {
        self.object("registry", "ctr/pointers/stable", number)
    }
}

fn key_files(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.key")), folder.join(format!("{name}.pub")))
}

fn promote(model: &Model, version: u64) -> Result<PointerMove, Error> {
    model.promote(STABLE, VersionId(version), MoveKind::Promote, "a test", None)
}

fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Error>, words: &[&str]) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Access(_)), "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

#[test]
fn every_reader_refuses_unsigned_versions_and_moves() {
    let fixture = Fixture::new();
    let unsigned = fixture.unsigned();
    unsigned.publish(fixture.draft("a", None)).unwrap();
    promote(&unsigned, 1).unwrap();
    let (reader, one) = (fixture.reader(), VersionId(1));
    let words = ["version 1 of model `ctr`", "no signature"];
    assert_refused(reader.version(one), &words);
    assert_refused(reader.chain(one), &words);
    assert_refused(reader.verify(one, |_| {}), &words);
    assert_refused(reader.check_files(one), &words);
    assert_refused(promote(&reader, 1), &words);
    let mut cache = Cache::open(&fixture.folder.path().join("c"), "ctr", Files::new()).unwrap();
    assert_refused(cache.chain(&reader, one), &words);
    assert_refused(reader.pointer(STABLE), &["move 1 of pointer `stable`", "no signature"]);
    // A delta on an unsigned version would vouch for the rows of that version.
    let signed = fixture.signed("good", None);
    let parent = unsigned.version(one).unwrap();
    let error = signed.publish(fixture.draft("b", Some(&parent))).unwrap_err();
    assert!(error.to_string().contains("publish a base"), "{error}");
    let base = signed.publish(fixture.draft("b", None)).unwrap();
    signed.publish(fixture.draft("c", Some(&base))).unwrap();
    promote(&signed, 3).unwrap();
    assert_eq!(reader.chain(VersionId(3)).unwrap().len(), 2);
    assert_eq!(reader.pointer(STABLE).unwrap().to.version, VersionId(3));
    assert!(reader.verify(VersionId(3), |_| {}).is_ok());
    // A reader with trusted keys writes no move that it would refuse itself.
    assert_refused(promote(&reader, 2), &["move 3 of pointer `stable`", "no signature"]);
    assert!(!fixture.move_file(3).exists());
}

#[test]
fn signatures_of_unknown_keys_are_refused() {
    let fixture = Fixture::new();
    let other = fixture.signed("other", None);
    other.publish(fixture.draft("a", None)).unwrap();
    promote(&other, 1).unwrap();
    let reader = fixture.reader();
    assert_refused(reader.version(VersionId(1)), &["version 1", "no trusted key"]);
    assert_refused(reader.pointer(STABLE), &["move 1", "no trusted key"]);
    // The holder of the good key does not stand by what another key signed.
    let good = fixture.signed("good", None);
    let parent = other.version(VersionId(1)).unwrap();
    assert!(!good.is_own(&parent) && other.is_own(&parent));
    let error = good.publish(fixture.draft("b", Some(&parent))).unwrap_err();
    assert!(error.to_string().contains("publish a base"), "{error}");
}

#[test]
fn a_changed_or_copied_manifest_is_refused() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    let first = signed.publish(fixture.draft("a", None)).unwrap();
    let reader = fixture.reader();
    assert!(reader.version(VersionId(1)).is_ok());
    // The writer of the bucket can make the hash of a manifest right, and not the signature.
    let forge = |change: &dyn Fn(&mut VersionManifest)| {
        let mut manifest = first.clone();
        change(&mut manifest);
        manifest.seal()
    };
    let changed = forge(&|manifest| manifest.published_ms += 1);
    assert_ne!(changed.chain, first.chain);
    std::fs::write(fixture.manifest_file(1), changed.to_bytes()).unwrap();
    assert!(fixture.unsigned().version(VersionId(1)).is_ok());
    assert_refused(reader.version(VersionId(1)), &["version 1", "does not match"]);
    let copied = forge(&|manifest| manifest.version = VersionId(2));
    std::fs::write(fixture.manifest_file(2), copied.to_bytes()).unwrap();
    assert!(fixture.unsigned().version(VersionId(2)).is_ok());
    assert_refused(reader.version(VersionId(2)), &["version 2", "does not match"]);
    let renamed = forge(&|manifest| manifest.model = "other".to_owned());
    let place = fixture.object("registry", "other/versions", 1);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(place, renamed.to_bytes()).unwrap();
    let registry = fixture.registry("registry").with_trusted_keys(fixture.trusted());
    let other = registry.model("other").unwrap().version(VersionId(1));
    assert_refused(other, &["model `other`", "does not match"]);
}

#[test]
fn a_changed_or_copied_move_is_refused() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", Some("1d"));
    signed.publish(fixture.draft("a", None)).unwrap();
    signed.publish(fixture.draft("b", None)).unwrap();
    let entry = promote(&signed, 1).unwrap();
    let reader = fixture.reader();
    assert_eq!(reader.pointer(STABLE).unwrap(), entry);
    let to: Link = signed.version(VersionId(2)).unwrap().link();
    let changes: [&dyn Fn(&mut PointerMove); 4] = [
        &|entry| entry.to = to.clone(),
        &|entry| entry.expires_ms = None,
        &|entry| entry.by = "nobody".to_owned(),
        &|entry| entry.at_ms += 1,
    ];
    for change in changes {
        let mut changed = entry.clone();
        change(&mut changed);
        std::fs::write(fixture.move_file(1), changed.to_bytes()).unwrap();
        assert!(fixture.unsigned().pointer(STABLE).is_ok());
        assert_refused(reader.pointer(STABLE), &["move 1", "does not match"]);
    }
    // The same move with another number, and at another pointer.
    std::fs::write(fixture.move_file(1), entry.to_bytes()).unwrap();
    let again = PointerMove { number: 2, ..entry.clone() };
    std::fs::write(fixture.move_file(2), again.to_bytes()).unwrap();
    assert_refused(reader.pointer(STABLE), &["move 2", "does not match"]);
    let canary = fixture.object("registry", "ctr/pointers/canary", 1);
    std::fs::create_dir_all(canary.parent().unwrap()).unwrap();
    std::fs::write(canary, entry.to_bytes()).unwrap();
    assert_refused(reader.pointer("canary"), &["pointer `canary`", "does not match"]);
    // A rollback looks at the moves before, and refuses a history that others wrote.
    assert_refused(reader.rollback(STABLE, None, "a test", None), &["move 2"]);
}

#[test]
fn a_replayed_move_is_refused_after_a_restart_too() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    signed.publish(fixture.draft("a", None)).unwrap();
    signed.publish(fixture.draft("b", None)).unwrap();
    promote(&signed, 1).unwrap();
    let second = promote(&signed, 2).unwrap();
    let server = fixture.server();
    assert_eq!(server.pointer(STABLE).unwrap().number, 2);
    let replayed = |outcome: Result<PointerMove, Error>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Replayed { taken: 2, .. }), "{error}");
    };
    std::fs::remove_file(fixture.move_file(2)).unwrap();
    replayed(server.pointer(STABLE));
    replayed(fixture.server().pointer(STABLE));
    // A reader without a memory cannot know; the end of the validity protects it.
    assert_eq!(fixture.reader().pointer(STABLE).unwrap().number, 1);
    // A second move with the number that was taken, signed by the right key at another place.
    let elsewhere = fixture.signed_at("elsewhere", "ctr", "good", None);
    elsewhere.publish(fixture.draft("a", None)).unwrap();
    elsewhere.publish(fixture.draft("b", None)).unwrap();
    promote(&elsewhere, 2).unwrap();
    promote(&elsewhere, 1).unwrap();
    let forked = fixture.object("elsewhere", "ctr/pointers/stable", 2);
    std::fs::copy(forked, fixture.move_file(2)).unwrap();
    replayed(server.pointer(STABLE));
    replayed(fixture.server().pointer(STABLE));
    // The right move is taken again, and a later one too.
    std::fs::write(fixture.move_file(2), second.to_bytes()).unwrap();
    assert_eq!(server.pointer(STABLE).unwrap(), second);
    assert_eq!(fixture.server().pointer(STABLE).unwrap(), second);
    promote(&signed, 1).unwrap();
    assert_eq!(server.pointer(STABLE).unwrap().number, 3);
    assert_eq!(fixture.server().pointer(STABLE).unwrap().number, 3);
    let memory = fixture.folder.path().join("cache/ctr/pointers/stable.json");
    std::fs::write(memory, "{").unwrap();
    let error = fixture.server().pointer(STABLE).unwrap_err();
    assert!(error.to_string().contains("stable.json"), "{error}");
}

#[test]
fn a_move_is_valid_until_its_end_and_can_be_renewed() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", Some("1h"));
    signed.publish(fixture.draft("a", None)).unwrap();
    signed.publish(fixture.draft("b", None)).unwrap();
    promote(&signed, 1).unwrap();
    promote(&signed, 2).unwrap();
    let server = fixture.server();
    fixture.clock.advance(Duration::from_secs(3599));
    assert_eq!(server.pointer(STABLE).unwrap().number, 2);
    fixture.clock.advance(Duration::from_secs(1));
    for model in [&server, &fixture.reader(), &fixture.server()] {
        let error = model.pointer(STABLE).unwrap_err();
        assert!(matches!(error, Error::Expired { number: 2, .. }), "{error}");
    }
    // A reader without trusted keys takes what the log says.
    assert_eq!(fixture.unsigned().pointer(STABLE).unwrap().number, 2);
    let renewed = promote(&signed, 2).unwrap();
    assert_eq!((renewed.number, renewed.from), (3, Some(VersionId(2))));
    assert_eq!(server.pointer(STABLE).unwrap(), renewed);
    // Going back leads to the version before, and not to the one that was renewed, also when the
    // validity has ended.
    fixture.clock.advance(Duration::from_secs(7200));
    let back = signed.rollback(STABLE, None, "a test", None).unwrap();
    assert_eq!(back.to.version, VersionId(1));
    let back = promote(&signed, 1).unwrap();
    assert_eq!((back.number, back.kind), (5, MoveKind::Rollback));
    assert_eq!(server.pointer(STABLE).unwrap(), back);
}

#[test]
fn an_unsigned_move_is_signed_when_it_is_repeated() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    signed.publish(fixture.draft("a", None)).unwrap();
    promote(&fixture.unsigned(), 1).unwrap();
    assert_refused(fixture.reader().pointer(STABLE), &["no signature"]);
    assert_eq!(promote(&signed, 1).unwrap().number, 2);
    assert_eq!(promote(&signed, 1).unwrap().number, 2);
    assert_eq!(fixture.reader().pointer(STABLE).unwrap().number, 2);
}

#[test]
fn a_signature_covers_nothing_of_an_unsigned_move() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    for name in ["a", "b", "c"] {
        signed.publish(fixture.draft(name, None)).unwrap();
    }
    promote(&signed, 1).unwrap();
    // Another writer moves the pointer to a version of its choice, and says that it went back.
    let unsigned = fixture.unsigned();
    let kind = MoveKind::Rollback;
    let other = unsigned.promote(STABLE, VersionId(2), kind, "nobody", None).unwrap();
    assert_eq!(other.number, 2);
    let entry = promote(&signed, 2).unwrap();
    assert_eq!((entry.number, entry.from), (3, Some(VersionId(1))));
    assert_eq!(entry.kind, MoveKind::Promote);
    unsigned.promote(STABLE, VersionId(1), kind, "nobody", None).unwrap();
    let entry = promote(&signed, 3).unwrap();
    assert_eq!((entry.number, entry.from), (5, Some(VersionId(2))));
    // Bytes that are no move, and a number that leaves no room, do not stop the signer.
    std::fs::write(fixture.move_file(6), b"{").unwrap();
    assert_eq!(promote(&signed, 1).unwrap().number, 7);
    let far = fixture.object("registry", "ctr/pointers/stable", u64::MAX);
    std::fs::write(far, b"{}").unwrap();
    assert_eq!(promote(&signed, 2).unwrap().number, 8);
    assert_eq!(fixture.reader().pointer(STABLE).unwrap().number, 8);
}

#[test]
fn an_unsigned_manifest_is_refused_before_it_is_parsed() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    let mut manifest = signed.publish(fixture.draft("a", None)).unwrap();
    manifest.signatures.clear();
    let text = String::from_utf8(manifest.to_bytes()).unwrap();
    // Without its signature, nobody has to know whether the rest makes sense.
    let broken = text.replace("\"published_ms\"", "\"unknown\"");
    assert_ne!(broken, text);
    std::fs::write(fixture.manifest_file(1), &broken).unwrap();
    assert_refused(fixture.reader().version(VersionId(1)), &["version 1", "no signature"]);
    let error = fixture.unsigned().version(VersionId(1)).unwrap_err();
    assert!(matches!(error, Error::Manifest { .. }), "{error}");
    // A move has a bound of its own.
    promote(&signed, 1).unwrap_err();
    std::fs::write(fixture.manifest_file(1), &text).unwrap();
    let log = fixture.move_file(1);
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, " ".repeat(65 << 10)).unwrap();
    let error = fixture.unsigned().pointer(STABLE).unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
}

#[test]
fn a_remembered_move_is_checked_without_the_registry() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", Some("1h"));
    signed.publish(fixture.draft("a", None)).unwrap();
    let entry = promote(&signed, 1).unwrap();
    assert_eq!(fixture.server().recall_pointer(STABLE).unwrap(), None);
    assert_eq!(fixture.server().pointer(STABLE).unwrap(), entry);
    let registry = fixture.folder.path().join("registry");
    std::fs::rename(&registry, fixture.folder.path().join("away")).unwrap();
    assert_eq!(fixture.server().recall_pointer(STABLE).unwrap(), Some(entry.clone()));
    assert_eq!(fixture.unsigned().recall_pointer(STABLE).unwrap(), None);
    let memory = fixture.folder.path().join("cache/ctr/pointers/stable.json");
    let longer = PointerMove { expires_ms: None, ..entry.clone() };
    std::fs::write(&memory, longer.to_bytes()).unwrap();
    assert_refused(fixture.server().recall_pointer(STABLE), &["move 1", "does not match"]);
    std::fs::write(&memory, entry.to_bytes()).unwrap();
    fixture.clock.advance(Duration::from_secs(3600));
    let error = fixture.server().recall_pointer(STABLE).unwrap_err();
    assert!(matches!(error, Error::Expired { number: 1, .. }), "{error}");
}

#[test]
fn a_reader_with_keys_copies_what_it_hashes() {
    use std::os::unix::fs::MetadataExt as _;
    let fixture = Fixture::new();
    let version = fixture.signed("good", None).publish(fixture.draft("a", None)).unwrap();
    let place = fixture.folder.path();
    let links = |reader: &Model, cache: &str| {
        let cache = Cache::open(&place.join(cache), "ctr", Files::new()).unwrap();
        let files = version.own_files();
        let links = files.iter().map(|(name, file)| {
            cache.read(reader, name, file, &mut Unthrottled).unwrap();
            std::fs::metadata(cache.folder().join(name)).unwrap().nlink()
        });
        links.max().unwrap()
    };
    // Another name of the same bytes would be one for their writer too.
    assert_eq!(links(&fixture.reader(), "copied"), 1);
    assert_eq!(links(&fixture.unsigned(), "linked"), 2);
}

#[test]
fn a_move_holds_for_the_version_that_was_meant() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    signed.publish(fixture.draft("a", None)).unwrap();
    promote(&signed, 1).unwrap();
    let server = fixture.server();
    assert!(server.pointer(STABLE).is_ok());
    // Another version with the same number, which the same key signed for another registry.
    let elsewhere = fixture.signed_at("elsewhere", "ctr", "good", None);
    elsewhere.publish(fixture.draft("b", None)).unwrap();
    let other = fixture.object("elsewhere", "ctr/versions", 1);
    std::fs::copy(other, fixture.manifest_file(1)).unwrap();
    for model in [fixture.reader(), fixture.server()] {
        assert!(model.version(VersionId(1)).is_ok());
        let error = model.pointer(STABLE).unwrap_err();
        assert!(matches!(error, Error::Chain { .. }), "{error}");
    }
}

#[test]
fn objects_of_earlier_programs_keep_their_bytes() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats-1/registry/fixture");
    for number in [1, 2] {
        let name = format!("00000000000000/000/{number:020}.json");
        let bytes = std::fs::read(folder.join("versions").join(&name)).unwrap();
        let id = VersionId(number);
        let manifest =
            VersionManifest::parse("fixture", "fixture", id, &bytes, |_| panic!("it has no frame"));
        let manifest = manifest.unwrap();
        assert!(manifest.signatures.is_empty());
        assert!(manifest.to_bytes() == bytes, "version {number}");
        let bytes = std::fs::read(folder.join("pointers/stable").join(&name)).unwrap();
        let entry: PointerMove = serde_json::from_slice(&bytes).unwrap();
        assert!(entry.signatures.is_empty() && entry.expires_ms.is_none());
        assert!(entry.to_bytes() == bytes, "move {number}");
    }
}

#[test]
fn only_a_signed_quarantine_counts() {
    let fixture = Fixture::new();
    let signed = fixture.signed("good", None);
    let base = signed.publish(fixture.draft("base", None)).unwrap();
    promote(&signed, 1).unwrap();
    signed.publish(fixture.draft("delta", Some(&base))).unwrap();
    promote(&signed, 2).unwrap();
    let server = fixture.server();
    assert_eq!(server.pointer(STABLE).unwrap().to.version, VersionId(2));

    // A quarantine of another writer is refused by readers, and not continued by the signer.
    fixture.unsigned().quarantine(VersionId(2), "mallory", "envy").unwrap();
    assert!(matches!(server.pointer(STABLE), Err(Error::Access(_))));
    assert!(fixture.reader().quarantined().unwrap().versions().is_empty());
    let entry = promote(&signed, 2).unwrap();
    assert_eq!((entry.quarantined.len(), server.pointer(STABLE).unwrap().to.version.0), (0, 2));

    let moves = signed.quarantine(VersionId(2), "an operator", "a drill").unwrap();
    assert_eq!(server.pointer(STABLE).unwrap(), moves[STABLE]);
    assert_eq!(moves[STABLE].to.version, VersionId(1));
    assert!(matches!(promote(&signed, 2), Err(Error::Quarantined { .. })));
    // Its signature covers the list.
    let path = fixture.move_file(moves[STABLE].number);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut entry: PointerMove = serde_json::from_str(&text).unwrap();
    entry.quarantined.clear();
    std::fs::write(&path, entry.to_bytes()).unwrap();
    assert!(matches!(fixture.reader().pointer(STABLE), Err(Error::Access(_))));
}
