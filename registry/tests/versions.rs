//! Tests of versions without a real model, which are published, chained, pointed to, read and
//! collected.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use zillion_device::{Clock, Files, ManualClock, Workers};
use zillion_feature::{FeatureKey, RowBuffer, Schema};
use zillion_registry::{
    Cache, Draft, Error, FrameDraft, Link, MAX_ONNX_BYTES, Model, MoveKind, NewFrame, Origin,
    Registry, Retention, STABLE, ScoreSettings, VersionFile, VersionId, VersionManifest,
};
use zillion_rows::layer::{LayerManifest, LayerSource, LayerWriter, Unthrottled, part_count};
use zillion_rows::{
    InitializerSpec, OptimizerSpec, RowSource, SegmentSpec, TableSpec, Unknown, conformance,
};

#[path = "versions/collections.rs"]
mod collections;
#[path = "versions/compaction.rs"]
mod compaction;
#[path = "versions/frames.rs"]
mod frames;
#[path = "versions/quarantine.rs"]
mod quarantine;

/// The rows by key; `None` for a key whose row was removed.
type Rows = BTreeMap<u64, Option<f32>>;

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    workers: Arc<Workers>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::new(SystemTime::now())),
            workers: Arc::new(Workers::new(NonZeroUsize::MIN).unwrap()),
        }
    }

    fn registry_path(&self) -> std::path::PathBuf {
        self.folder.path().join("registry")
    }

    fn model(&self) -> Model {
        let url = self.registry_path().display().to_string();
        let clock: Arc<dyn Clock> = self.clock.clone();
        Registry::create(&url, Files::new(), clock).unwrap().model("clicks").unwrap()
    }

    fn cache(&self) -> Cache {
        Cache::open(&self.folder.path().join("cache"), "clicks", Files::new()).unwrap()
    }

    fn frame(&self, onnx: bool) -> NewFrame {
        let job: toml::Table = toml::from_str("[features.u]\nkind = 'id'\n[labels.y]").unwrap();
        NewFrame::new(FrameDraft {
            schema: Schema::from_job(&job.into()).unwrap(),
            tables: vec![spec()],
            statistics: Default::default(),
            graph: b"graph".to_vec(),
            settings: ScoreSettings { lanes: 8, tile_rows: 256, dense: None, onnx },
            sides: Vec::new(),
        })
        .unwrap()
    }

    fn draft(&self, rows: &Rows, parent: Option<&VersionManifest>) -> Draft {
        let folder = self.folder.path().join("staged");
        std::fs::create_dir_all(&folder).unwrap();
        Draft {
            parent: parent.map(VersionManifest::link),
            frame: Arc::new(self.frame(false)),
            layer: write(&folder, rows),
            folder: Some(folder),
            dense: Some(format!("dense of {} rows", rows.len()).into_bytes()),
            parity: b"parity".to_vec(),
            items: None,
            origin: Origin { run: "one".into(), ..Origin::default() },
        }
    }

    fn publish(&self, rows: &Rows, parent: Option<&VersionManifest>) -> VersionManifest {
        self.model().publish(self.draft(rows, parent)).unwrap()
    }

    fn rows(&self, cache: &mut Cache, version: VersionId) -> Result<LayerSource, Error> {
        let model = self.model();
        let chain = model.chain(version)?;
        cache.rows(&model, &chain, &self.workers, &mut Unthrottled)
    }
}

fn spec() -> TableSpec {
    TableSpec {
        unknown: Unknown::Zero,
        seed: 7,
        ..TableSpec::new(
            "u",
            vec![SegmentSpec::new(
                "vector",
                3,
                InitializerSpec::Constant { value: 0.5 },
                OptimizerSpec::Sgd { lr: 0.1 },
            )],
        )
    }
}

fn write(folder: &Path, rows: &Rows) -> LayerManifest {
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(&spec().layout(), part_count(rows.len() as u64, 3)).unwrap();
    for (&key, value) in rows {
        let row = value.map(|value| [value; 3]);
        writer.push(FeatureKey(key), row.as_ref().map(|r| &r[..]), 1).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the rows that a chain of layers gives, the oldest layer first.
fn sum<'a>(layers: impl IntoIterator<Item = &'a Rows>) -> Rows {
    let mut all = Rows::new();
    layers.into_iter().for_each(|layer| all.extend(layer.clone()));
    all.retain(|_, value| value.is_some());
    all
}

fn assert_reads(source: &mut LayerSource, keys: impl Iterator<Item = u64>, expected: &Rows) {
    let plan = conformance::plan_of(&[keys.map(FeatureKey).collect()]);
    let mut rows = RowBuffer::default();
    source.lookup(&plan, &mut rows).unwrap();
    for (i, key) in plan.tables[0].keys.iter().enumerate() {
        let wanted = expected.get(&key.0).copied().flatten().unwrap_or(0.0);
        assert_eq!(rows.tables[0].row(i)[..3], [wanted; 3], "key {:#x}", key.0);
    }
}

fn key(i: u64) -> u64 {
    FeatureKey::from_u64(i).0
}

fn rows(keys: std::ops::Range<u64>, value: f32) -> Rows {
    keys.map(|i| (key(i), Some(value))).collect()
}

#[test]
fn a_chain_is_published_read_rolled_back_and_branched() {
    let fixture = Fixture::new();
    let model = fixture.model();
    assert!(matches!(model.version(VersionId(1)), Err(Error::NoModel { .. })));
    assert!(matches!(model.pointer(STABLE), Err(Error::NoPointer { .. })));

    let mut layers = vec![rows(0..500, 1.0)];
    let mut versions = vec![fixture.publish(&layers[0], None)];
    for i in 1..40u64 {
        let mut changed = rows(i * 7..i * 7 + 20, i as f32 + 1.0);
        changed.insert(key(i), None);
        versions.push(fixture.publish(&changed, versions.last()));
        layers.push(changed);
        model.promote(STABLE, VersionId(i + 1), MoveKind::Publish, "a test", None).unwrap();
    }
    assert_eq!(model.latest().unwrap(), Some(VersionId(40)));

    // Every version reads as the sum of its chain, from a fresh cache and from one that has served
    // others.
    let mut cache = fixture.cache();
    for at in (0..40).rev().chain([17, 39]) {
        let mut source = fixture.rows(&mut cache, versions[at].version).unwrap();
        assert!(source.layers().len() <= zillion_rows::layer::MAX_LAYERS);
        assert_reads(&mut source, (0..600).map(key), &sum(&layers[..=at]));
    }

    // Back to version 20, and on from there: a branch.
    let back = model.rollback(STABLE, Some(VersionId(20)), "a test", None).unwrap();
    assert_eq!((back.from, back.to.version), (Some(VersionId(40)), VersionId(20)));
    let again = model.rollback(STABLE, None, "a test", Some("further".into())).unwrap();
    assert_eq!(again.to.version, VersionId(19));
    let changed = rows(100..130, -3.0);
    let branch = fixture.publish(&changed, Some(&versions[18]));
    assert_eq!(branch.version, VersionId(41));
    let mut source = fixture.rows(&mut cache, branch.version).unwrap();
    let expected = sum(layers[..19].iter().chain([&changed]));
    assert_reads(&mut source, (0..600).map(key), &expected);

    let log = model.moves(STABLE, None, 3).unwrap();
    assert_eq!(log.iter().map(|m| m.to.version.0).collect::<Vec<_>>(), [19, 20, 40]);
    assert_eq!(model.moves(STABLE, Some(log[2].number), 100).unwrap().len(), 38);
    assert_eq!(model.page(Some(VersionId(12)), 3).unwrap(), [11, 10, 9].map(VersionId));
    let verified = model.verify(branch.version, |_| ()).unwrap();
    assert_eq!(verified.versions, 20);
}

#[test]
fn one_of_two_simultaneous_writers_wins() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..10, 1.0), None);
    let drafts: Vec<Draft> =
        (0..4).map(|i| fixture.draft(&rows(0..3, i as f32), Some(&base))).collect();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let publish = |draft| scope.spawn(|| fixture.model().publish(draft));
        let threads: Vec<_> = drafts.into_iter().map(publish).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let won: Vec<VersionId> = outcomes.iter().flatten().map(|v| v.version).collect();
    let lost = outcomes.iter().filter(|o| matches!(o, Err(Error::VersionTaken { .. }))).count();
    assert!(!won.is_empty() && won.len() + lost == 4, "{outcomes:?}");
    let mut unique = won.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), won.len());
    assert_eq!(fixture.model().latest().unwrap(), unique.last().copied());

    let moves: Vec<_> = std::thread::scope(|scope| {
        let promote = |i: usize| {
            let fixture = &fixture;
            scope.spawn(move || {
                let model = fixture.model();
                model.promote(STABLE, VersionId(1), MoveKind::Promote, &format!("p{i}"), None)
            })
        };
        let threads: Vec<_> = (0..4).map(promote).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let won = moves.iter().flatten().count();
    let told = moves.iter().filter(|m| matches!(m, Err(Error::PointerMoved { .. }))).count();
    assert!(won >= 1 && won + told == 4, "{moves:?}");
    // Who comes when the pointer stands there already is given the move that brought it.
    let made: BTreeSet<u64> = moves.iter().flatten().map(|entry| entry.number).collect();
    assert_eq!(fixture.model().moves(STABLE, None, 10).unwrap().len(), made.len());
}

#[test]
fn a_forged_chain_is_refused() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let base = fixture.publish(&rows(0..10, 1.0), None);
    let second = fixture.publish(&rows(0..2, 2.0), Some(&base));
    let third = fixture.publish(&rows(1..3, 3.0), Some(&second));
    let name = |v: u64| {
        fixture.registry_path().join(format!("clicks/versions/{:014}/000/{v:020}.json", 0))
    };
    let keep = std::fs::read(name(2)).unwrap();

    // A fork: another version 2, whole in itself.
    let forged = VersionManifest { published_ms: 5, ..second.clone() }.seal();
    std::fs::write(name(2), serde_json::to_vec(&forged).unwrap()).unwrap();
    let error = model.chain(third.version).unwrap_err().to_string();
    assert!(error.contains("version 2 with hash") && error.contains("version 3"), "{error}");

    // A gap.
    std::fs::remove_file(name(2)).unwrap();
    let error = model.chain(third.version).unwrap_err().to_string();
    assert!(error.contains("version 2, is missing") && error.contains("version 3"), "{error}");

    // A changed byte, wherever it is.
    for at in (0..keep.len()).step_by(7) {
        let mut changed = keep.clone();
        changed[at] ^= 1;
        std::fs::write(name(2), &changed).unwrap();
        match model.version(VersionId(2)) {
            Err(Error::Manifest { path, .. }) => assert!(path.ends_with("2.json")),
            Ok(read) => assert_eq!(read, second, "white space may change, nothing else"),
            Err(other) => panic!("{other}"),
        }
    }
    std::fs::write(name(2), &keep).unwrap();
    assert_eq!(model.chain(third.version).unwrap().len(), 3);

    // A parent of another training, another schema, another hash.
    let mut foreign = fixture.draft(&rows(0..1, 1.0), Some(&third));
    foreign.origin.run = "another".into();
    assert!(model.publish(foreign).unwrap_err().to_string().contains("training run differs"));
    let mut other = fixture.draft(&rows(0..1, 1.0), Some(&third));
    other.parent = Some(Link { chain: "00".into(), ..third.link() });
    assert!(model.publish(other).unwrap_err().to_string().contains("hash in the registry differs"));
}

#[test]
fn damaged_files_are_named_before_they_are_read() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let base = fixture.publish(&rows(0..300, 1.0), None);
    let files: Vec<String> = base.files().into_iter().map(|(name, _)| name).collect();
    for name in &files {
        let path = fixture.registry_path().join(format!("clicks/files/{}/{name}", &name[..2]));
        let keep = std::fs::read(&path).unwrap();
        let mut changed = keep.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        std::fs::write(&path, &changed).unwrap();
        let error = model.verify(base.version, |_| ()).unwrap_err().to_string();
        assert!(error.contains(name.as_str()), "{error}");
        // Rows are read with the frame, which has the settings of the tables.
        let is_frame = base.frame_file.as_ref().is_some_and(|frame| frame.name() == *name);
        let is_row_file = name.ends_with(".arrow") || is_frame;
        let fresh = tempfile::tempdir().unwrap();
        let mut cache = Cache::open(fresh.path(), "clicks", Files::new()).unwrap();
        match fixture.rows(&mut cache, base.version) {
            Err(error) => assert!(is_row_file && error.to_string().contains(name.as_str())),
            Ok(_) => assert!(!is_row_file),
        }
        std::fs::remove_file(&path).unwrap();
        let error = model.verify(base.version, |_| ()).unwrap_err().to_string();
        assert!(error.contains(name.as_str()), "{error}");
        std::fs::write(&path, &keep).unwrap();
    }
    assert_eq!(model.verify(base.version, |_| ()).unwrap().files, files.len() as u64);
}

#[test]
fn collection_keeps_what_is_in_use() {
    let fixture = Fixture::new();
    let model = fixture.model();
    // Five chains of a base and a delta.
    let pairs: Vec<_> = (0..5)
        .map(|i| {
            let base = fixture.publish(&rows(0..50 + i, i as f32), None);
            let delta = fixture.publish(&rows(0..5 + i, -1.0 - i as f32), Some(&base));
            (base, delta)
        })
        .collect();
    model.promote(STABLE, pairs[0].1.version, MoveKind::Promote, "a test", None).unwrap();
    model.pin(pairs[1].0.version, "a test").unwrap();
    model.lease("server-1", vec![pairs[2].1.version], Duration::from_secs(60)).unwrap();
    let grace = Duration::from_secs(600);
    let retention = Retention { keep: 1, grace, ..Retention::default() };

    let young = model.collect(retention, false).unwrap();
    assert_eq!((young.removed_files, young.kept_versions), (0, 7));
    fixture.clock.advance(Duration::from_secs(3600));
    // The lease is over by then, unless it is renewed.
    model.lease("server-1", vec![pairs[2].1.version], Duration::from_secs(60)).unwrap();
    let dry = model.collect(retention, true).unwrap();
    let done = model.collect(retention, false).unwrap();
    assert_eq!((dry.removed_files, dry.removed_bytes), (done.removed_files, done.removed_bytes));
    assert!(done.removed_files > 0);
    for version in [&pairs[0].1, &pairs[1].0, &pairs[2].1, &pairs[4].1] {
        model.verify(version.version, |_| ()).unwrap();
    }
    assert!(model.verify(pairs[3].1.version, |_| ()).is_err());
    assert!(model.version(pairs[3].1.version).is_ok(), "the history stays");
    fixture.clock.advance(Duration::from_secs(3600));
    model.unpin(pairs[1].0.version).unwrap();
    assert!(model.collect(retention, false).unwrap().removed_files > 0);
    assert!(model.verify(pairs[2].1.version, |_| ()).is_err());
    model.verify(pairs[0].1.version, |_| ()).unwrap();
}

#[test]
fn a_collection_of_history_keeps_what_is_in_use() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let publish = |parent: Option<&VersionManifest>, i: u64| {
        let version = fixture.publish(&rows(i..i + 3, i as f32), parent);
        model.promote(STABLE, version.version, MoveKind::Publish, "a test", None).unwrap();
        model.prove(&version.link(), "server-1").unwrap();
        version
    };
    // Three bases, each with eleven deltas.
    let mut versions: Vec<VersionManifest> = Vec::new();
    for i in 0..36u64 {
        let parent = versions.last().filter(|_| i % 12 != 0).cloned();
        versions.push(publish(parent.as_ref(), i));
    }
    model.pin(VersionId(3), "a test").unwrap();
    model.promote("canary", VersionId(14), MoveKind::Promote, "a test", None).unwrap();
    let grace = Duration::from_secs(600);
    let retention = Retention { keep: 4, grace, history: true, ..Retention::default() };
    // Nothing is old yet.
    assert_eq!(model.collect(retention, false).unwrap().removed_manifests, 0);
    fixture.clock.advance(Duration::from_secs(3600));
    // Versions below an age are in use.
    let longer = Retention { keep_for: Duration::from_secs(7200), ..retention };
    let done = model.collect(longer, false).unwrap();
    assert_eq!((done.kept_versions, done.removed_manifests, done.removed_moves), (36, 0, 0));
    let dry = model.collect(retention, true).unwrap();
    assert_eq!(model.page(None, 100).unwrap().len(), 36, "a dry run removes nothing");
    let done = model.collect(retention, false).unwrap();
    assert_eq!(
        (dry.removed_manifests, dry.removed_moves),
        (done.removed_manifests, done.removed_moves)
    );
    // In use: 25 to 36, the pinned 3 and the canary 14, with what they stand on.
    let kept: Vec<u64> = model.page(None, 100).unwrap().into_iter().map(|v| v.0).collect();
    let expected: Vec<u64> = (25..=36).rev().chain([14, 13, 3, 2, 1]).collect();
    assert_eq!((kept, done.kept_versions, done.removed_manifests), (expected, 17, 19));
    let moves = model.moves(STABLE, None, 100).unwrap();
    assert_eq!(moves.iter().map(|m| m.number).collect::<Vec<_>>(), [36, 35, 34, 33]);
    assert_eq!(done.removed_moves, 32);
    for version in [36, 14, 3].map(VersionId) {
        model.verify(version, |_| ()).unwrap();
    }
    assert!(matches!(model.version(VersionId(20)), Err(Error::NoVersion { .. })));
    assert!(model.is_proved(&versions[35].link()).unwrap());
    assert!(!model.is_proved(&versions[19].link()).unwrap());
    // Numbers are not used again, and a rollback finds the version before.
    assert_eq!(publish(versions.last(), 36).version, VersionId(37));
    let back = model.rollback(STABLE, None, "a test", None).unwrap();
    assert_eq!((back.number, back.to.version), (38, VersionId(36)));
    // What was left a short time ago is in use.
    fixture.clock.advance(Duration::from_secs(3600));
    let last = publish(None, 40);
    let one = Retention { keep: 1, ..retention };
    model.collect(one, false).unwrap();
    model.verify(VersionId(36), |_| ()).unwrap();
    fixture.clock.advance(Duration::from_secs(3600));
    model.collect(one, false).unwrap();
    assert!(matches!(model.version(VersionId(36)), Err(Error::NoVersion { .. })));
    model.verify(last.version, |_| ()).unwrap();
    assert_eq!(model.page(None, 100).unwrap().len(), 1 + 3 + 2);
}

#[test]
fn a_collection_leaves_no_empty_folders_of_old_versions() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..10, 1.0), None);
    // Copies of the version have numbers in many folders.
    let folder = fixture.registry_path().join("clicks/versions");
    for shelf in 1..60u64 {
        let version = VersionId(shelf * 1000 + 7);
        let copy = VersionManifest { version, chain: String::new(), ..base.clone() }.seal();
        let shelf = folder.join(format!("{:014}/{shelf:03}", 0));
        std::fs::create_dir_all(&shelf).unwrap();
        let bytes = serde_json::to_vec(&copy).unwrap();
        std::fs::write(shelf.join(format!("{:020}.json", version.0)), bytes).unwrap();
    }
    let model = fixture.model();
    fixture.clock.advance(Duration::from_secs(3600));
    let retention = Retention {
        keep: 2,
        grace: Duration::from_secs(60),
        history: true,
        ..Retention::default()
    };
    assert_eq!(model.collect(retention, false).unwrap().removed_manifests, 58);
    assert_eq!(std::fs::read_dir(folder.join(format!("{:014}", 0))).unwrap().count(), 2);
    assert_eq!(model.page(None, 100).unwrap(), [59_007, 58_007].map(VersionId));
    assert_eq!(fixture.publish(&rows(0..3, 2.0), None).version, VersionId(59_008));
}

#[test]
fn a_trimmed_cache_keeps_served_versions() {
    let fixture = Fixture::new();
    let mut layers = vec![rows(0..2000, 1.0)];
    let mut versions = vec![fixture.publish(&layers[0], None)];
    let mut cache = fixture.cache();
    for i in 1..30u64 {
        layers.push(rows(i * 5..i * 5 + 10, i as f32));
        versions.push(fixture.publish(&layers[i as usize], versions.last()));
        drop(fixture.rows(&mut cache, versions[i as usize].version).unwrap());
    }
    let model = fixture.model();
    let chain = model.chain(versions[29].version).unwrap();
    let before = std::fs::read_dir(cache.folder()).unwrap().count();
    // What it did and what it holds is counted: fetched and merged files are all there are.
    let (counts, held) = (cache.counts(), cache.size(&mut Unthrottled).unwrap());
    assert_eq!(held.files, before as u64);
    assert!(counts.merges > 0 && counts.merged_bytes > 0);
    assert!(held.files >= counts.fetched_files && counts.fetched_files >= 30, "{counts:?}");
    assert!(held.bytes >= counts.fetched_bytes && counts.fetched_bytes > 0, "{counts:?} {held:?}");
    let freed = cache.trim(&[&chain]).unwrap();
    assert_eq!(cache.size(&mut Unthrottled).unwrap().bytes, held.bytes - freed);
    assert!(freed > 0);
    assert!(std::fs::read_dir(cache.folder()).unwrap().count() < before);
    let mut source = fixture.rows(&mut cache, versions[29].version).unwrap();
    assert_reads(&mut source, (0..2100).map(key), &sum(&layers));
    // What was trimmed can be made again.
    let mut source = fixture.rows(&mut cache, versions[14].version).unwrap();
    assert_reads(&mut source, (0..2100).map(key), &sum(&layers[..15]));
}

#[test]
fn names_cannot_leave_the_registry() {
    let fixture = Fixture::new();
    let url = fixture.registry_path().display().to_string();
    let missing = Registry::open(&url, Files::new(), fixture.clock.clone()).map(drop).unwrap_err();
    assert!(missing.to_string().contains("folder does not exist"), "{missing}");
    let registry = Registry::create(&url, Files::new(), fixture.clock.clone()).unwrap();
    for name in ["", "..", "../x", "a/b", "/etc", ".hidden", "a\\b", "ü", &"a".repeat(101)] {
        assert!(matches!(registry.model(name), Err(Error::Name { .. })), "{name}");
        assert!(fixture.model().pointer(name).is_err(), "{name}");
    }
    for url in ["s3://bucket", "", "file://relative"] {
        let error = Registry::open(url, Files::new(), fixture.clock.clone()).map(drop).unwrap_err();
        assert!(error.to_string().contains(&format!("`{url}`")), "{error}");
    }
    fixture.publish(&rows(0..1, 1.0), None);
    assert_eq!(registry.models().unwrap(), ["clicks"]);
}

#[test]
fn many_versions_are_found_by_few_listings() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..3, 1.0), None);
    let folder = fixture.registry_path().join("clicks/versions");
    // As if they had been published: their objects are there.
    for number in (2..2_050u64).chain([1_000_001]) {
        let manifest = VersionManifest { version: VersionId(number), ..base.clone() }.seal();
        let (high, middle) = (number / 1_000_000, number / 1000 % 1000);
        let shelf = folder.join(format!("{high:014}/{middle:03}"));
        std::fs::create_dir_all(&shelf).unwrap();
        let bytes = serde_json::to_vec(&manifest).unwrap();
        std::fs::write(shelf.join(format!("{number:020}.json")), bytes).unwrap();
    }
    let model = fixture.model();
    assert_eq!(model.latest().unwrap(), Some(VersionId(1_000_001)));
    let page = model.page(Some(VersionId(2_002)), 5).unwrap();
    assert_eq!(page, [2001, 2000, 1999, 1998, 1997].map(VersionId));
    // A folder that a killed writer made for an object that never came.
    std::fs::create_dir_all(folder.join("00000000000002/000")).unwrap();
    assert_eq!(model.latest().unwrap(), Some(VersionId(1_000_001)));
    assert_eq!(fixture.publish(&rows(0..1, 1.0), Some(&base)).version, VersionId(1_000_002));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_chain_reads_as_the_sum_of_its_layers(
        sizes in prop::collection::vec((0u64..400, 0u64..300, prop::bool::weighted(0.2)), 1..12),
    ) {
        let fixture = Fixture::new();
        let mut cache = fixture.cache();
        let mut layers: Vec<Rows> = Vec::new();
        let mut last: Option<VersionManifest> = None;
        for (i, &(from, count, leave)) in sizes.iter().enumerate() {
            let mut layer = rows(from..from + count, i as f32 + 1.0);
            if leave && i > 0 {
                layer.values_mut().step_by(2).for_each(|value| *value = None);
            }
            let version = fixture.publish(&layer, last.as_ref());
            layers.push(layer);
            let mut source = fixture.rows(&mut cache, version.version).unwrap();
            assert_reads(&mut source, (0..750).map(key), &sum(&layers));
            last = Some(version);
        }
    }
}
