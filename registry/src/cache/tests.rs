//! Tests of the cache with versions of a model that has rows and nothing else of use.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use zillion_device::SystemClock;
use zillion_feature::{FeatureKey, RowBuffer, Schema};
use zillion_rows::layer::{
    Found, LayerWriter, MAX_LAYERS, MAX_OPEN_LAYERS, Unthrottled, part_count,
};
use zillion_rows::{
    InitializerSpec, OptimizerSpec, RowSource as _, SegmentSpec, TableSpec, conformance,
};

use super::*;
use crate::frame::ScoreSettings;
use crate::model::Registry;
use crate::new_frame::{FrameDraft, NewFrame};
use crate::origin::Origin;
use crate::publish::Draft;
use crate::reference::Link;

struct Fixture {
    folder: tempfile::TempDir,
    workers: Arc<Workers>,
}

impl Fixture {
    fn new() -> Self {
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        Self { folder: tempfile::tempdir().unwrap(), workers }
    }

    fn registry(&self) -> PathBuf {
        self.folder.path().join("registry")
    }

    fn model(&self) -> Model {
        let url = self.registry().display().to_string();
        let clock = Arc::new(SystemClock::new());
        Registry::create(&url, Files::new(), clock).unwrap().model("clicks").unwrap()
    }

    fn cache(&self) -> Cache {
        Cache::open(&self.folder.path().join("cache"), "clicks", Files::new()).unwrap()
    }

    /// Publishes a base in which every key has the value `value`.
    fn publish(&self, keys: u64, value: f32) -> VersionManifest {
        self.publish_on(None, keys, value)
    }

    /// Publishes a delta on `parent`, or a base, in which every key has the value `value`.
    fn publish_on(
        &self,
        parent: Option<&VersionManifest>,
        keys: u64,
        value: f32,
    ) -> VersionManifest {
        let folder = self.folder.path().join("staged");
        fs::create_dir_all(&folder).unwrap();
        let job: toml::Table = toml::from_str("[features.u]\nkind = 'id'\n[labels.y]").unwrap();
        let frame = NewFrame::new(FrameDraft {
            schema: Schema::from_job(&job.into()).unwrap(),
            tables: vec![spec()],
            statistics: Default::default(),
            graph: b"graph".to_vec(),
            settings: ScoreSettings { lanes: 8, tile_rows: 256, dense: None, onnx: false },
            sides: Vec::new(),
        })
        .unwrap();
        let draft = Draft {
            parent: parent.map(VersionManifest::link),
            frame: Arc::new(frame),
            layer: write(&folder, keys, value),
            folder: Some(folder),
            dense: Some(value.to_le_bytes().to_vec()),
            parity: b"parity".to_vec(),
            items: None,
            origin: Origin { run: "one".into(), ..Origin::default() },
        };
        self.model().publish(draft).unwrap()
    }

    fn load(&self, cache: &mut Cache, version: &VersionManifest) -> Result<LayerSource> {
        let model = self.model();
        let chain = cache.chain(&model, version.version)?;
        for (name, file) in version.own_files() {
            cache.read(&model, &name, &file, &mut Unthrottled)?;
        }
        cache.rows(&model, &chain, &self.workers, &mut Unthrottled)
    }
}

fn spec() -> TableSpec {
    let constant = InitializerSpec::Constant { value: 0.5 };
    let segment = SegmentSpec::new("vector", 3, constant, OptimizerSpec::Sgd { lr: 0.1 });
    TableSpec::new("u", vec![segment])
}

fn write(folder: &Path, keys: u64, value: f32) -> LayerManifest {
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(&spec().layout(), part_count(keys, 3)).unwrap();
    for key in 0..keys {
        writer.push(FeatureKey(key << 40), Some(&[value; 3]), 1).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the value of a key.
fn value(rows: &LayerSource, key: u64) -> Option<f32> {
    match rows.layers().last()?.find(0, FeatureKey(key << 40))? {
        Found::Row(row) => row.weights.first().copied(),
        Found::Tombstone => None,
    }
}

fn names(cache: &Cache) -> BTreeSet<String> {
    list_names(cache.folder()).unwrap().into_iter().collect()
}

fn chain(version: &VersionManifest) -> Vec<Arc<VersionManifest>> {
    vec![Arc::new(version.clone())]
}

#[test]
fn a_damaged_file_is_removed_and_fetched_again() {
    let fixture = Fixture::new();
    let version = fixture.publish(300, 1.0);
    let mut cache = fixture.cache();
    drop(fixture.load(&mut cache, &version).unwrap());
    assert!(cache.repair(&chain(&version), &mut Unthrottled).unwrap().is_empty());
    // Without a reason to suspect a file, the cache looks at one after the other.
    let scrub = |cache: &mut Cache| {
        let files = names(cache).len();
        let found = (0..files).map(|_| cache.scrub(&chain(&version), &mut Unthrottled).unwrap());
        found.flatten().next()
    };
    assert_eq!(scrub(&mut fixture.cache()), None);
    for name in names(&cache) {
        let path = cache.folder().join(&name);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        // The registry has a link to the old file.
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(scrub(&mut fixture.cache()), Some(name.clone()));
        let damaged = cache.repair(&chain(&version), &mut Unthrottled).unwrap();
        assert_eq!(damaged, [name]);
        let rows = fixture.load(&mut cache, &version).unwrap();
        assert_eq!(value(&rows, 7), Some(1.0));
        assert!(cache.repair(&chain(&version), &mut Unthrottled).unwrap().is_empty());
    }
}

#[test]
fn a_version_in_the_cache_needs_no_registry() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.publish(300, 1.0), fixture.publish(300, 2.0));
    drop(fixture.load(&mut fixture.cache(), &second).unwrap());
    let model = fixture.model();
    fs::remove_dir_all(fixture.registry()).unwrap();
    let mut cache = fixture.cache();
    cache.set_offline(true);
    let kept = cache.chain(&model, second.version).unwrap();
    assert_eq!(*kept[0], second);
    let rows = cache.rows(&model, &kept, &fixture.workers, &mut Unthrottled).unwrap();
    assert_eq!(value(&rows, 7), Some(2.0));
    let said = cache.chain(&model, first.version).unwrap_err().to_string();
    assert!(said.contains("the cache has no copy"), "{said}");
    // A copy that was changed is refused like a changed manifest.
    let path = cache.manifest_path(second.version);
    let text = fs::read_to_string(&path).unwrap().replace("\"one\"", "\"two\"");
    fs::write(&path, text).unwrap();
    cache.reset();
    let said = cache.chain(&model, second.version).unwrap_err().to_string();
    assert!(said.contains("changed after it was published"), "{said}");
}

#[test]
fn a_budget_keeps_the_most_recent_versions() {
    let fixture = Fixture::new();
    let versions: Vec<_> = (1..=3u16).map(|i| fixture.publish(300, f32::from(i))).collect();
    let mut cache = fixture.cache();
    for version in &versions {
        drop(fixture.load(&mut cache, version).unwrap());
    }
    let own = |version: &VersionManifest| -> BTreeSet<String> {
        version.files().into_iter().map(|(name, _)| name).collect()
    };
    let chains: Vec<_> = versions.iter().map(chain).collect();
    assert_eq!(cache.missing_bytes(&chains[0]).unwrap(), 0);
    let both = &own(&versions[2]) | &own(&versions[1]);
    let bytes = |names: &BTreeSet<String>| -> u64 {
        names.iter().map(|name| cache.folder().join(name).metadata().unwrap().len()).sum()
    };
    let (one, two) = (bytes(&own(&versions[2])), bytes(&both));
    let more = [&chains[1][..], &chains[0][..]];
    assert!(cache.trim_to(&[&chains[2]], &more, Some(two)).unwrap() > 0);
    assert_eq!(names(&cache), both);
    assert!(cache.missing_bytes(&chains[0]).unwrap() > 0);
    assert!(cache.trim_to(&[&chains[2]], &more, Some(one - 1)).unwrap() > 0);
    assert_eq!(names(&cache), own(&versions[2]));
}

#[test]
fn servers_that_share_a_cache_keep_each_others_files() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.publish(300, 1.0), fixture.publish(300, 2.0));
    let (mut a, mut b) = (fixture.cache(), fixture.cache());
    b.claim([first.version].into(), true).unwrap();
    drop(fixture.load(&mut b, &first).unwrap());
    a.claim([second.version].into(), true).unwrap();
    drop(fixture.load(&mut a, &second).unwrap());
    let all = names(&a);
    // While the other loads, every new file may be its own.
    assert_eq!(a.trim(&[&chain(&second)]).unwrap(), 0);
    b.claim([first.version].into(), false).unwrap();
    fs::write(a.folder().join("old"), b"x").unwrap();
    assert_eq!(a.trim(&[&chain(&second)]).unwrap(), 1);
    assert_eq!(names(&a), all);
    assert_eq!(fixture.load(&mut b, &first).map(|rows| value(&rows, 7)).unwrap(), Some(1.0));
    drop(b);
    assert!(a.trim(&[&chain(&second)]).unwrap() > 1);
    assert!(names(&a).len() < all.len());
}

#[test]
fn rows_in_memory_survive_a_truncated_file() {
    let fixture = Fixture::new();
    let version = fixture.publish(30_000, 1.0);
    let mut cache = fixture.cache();
    cache.set_in_memory(true);
    let rows = fixture.load(&mut cache, &version).unwrap();
    for name in names(&cache) {
        let file = fs::File::options().write(true).open(cache.folder().join(name)).unwrap();
        file.set_len(1).unwrap();
    }
    // A mapping would end the process here.
    assert!((0..30_000).all(|key| value(&rows, key) == Some(1.0)));
}

#[test]
fn stray_names_do_not_hide_versions_and_pointers() {
    let fixture = Fixture::new();
    let first = fixture.publish(10, 1.0);
    let model = fixture.model();
    let kind = crate::pointer::MoveKind::Promote;
    let moved = model.promote("stable", first.version, kind, "test", None).unwrap();
    let place = |name: &str| fixture.registry().join("clicks").join(name);
    let folders = ["pointers/_backup", "pointers/empty", "versions/zzz", "versions/99"];
    // A date and a time has as many digits as a folder of the sequence.
    let dates = ["99999999999999", "20261123112233", "00000000000001", "00000000999999/999"];
    let dates = dates.iter().flat_map(|name| ["versions", "pointers/stable"].map(|of| (of, name)));
    let dates = dates.map(|(of, name)| format!("{of}/{name}"));
    for folder in folders.map(str::to_owned).into_iter().chain(dates) {
        fs::create_dir_all(place(&folder)).unwrap();
    }
    // An object with the largest number of all leaves no number for the next.
    let last = format!("versions/{:014}/615", u64::MAX / 1_000_000);
    fs::create_dir_all(place(&last)).unwrap();
    fs::write(place(&last).join(format!("{}.json", u64::MAX)), b"x").unwrap();
    let listed = || {
        let operation = zillion_store::Operation::List;
        model.store().stats().requests(operation, zillion_store::Outcome::Ok)
    };
    let before = listed();
    assert_eq!(model.latest().unwrap(), Some(first.version));
    assert_eq!(model.pointer("stable").unwrap(), moved);
    assert!(listed() - before < 20, "{} listings", listed() - before);
    let numbers = place("versions/00000000000000/000");
    for stray in ["notes.txt", "1.json", "00000000000000009999.json"] {
        fs::write(numbers.join(stray), b"x").unwrap();
    }
    fs::write(place("pointers/stable/00000000000000/000/README"), b"x").unwrap();
    assert_eq!(model.latest().unwrap(), Some(first.version));
    assert_eq!(model.latest_since(first.version).unwrap(), Some(first.version));
    assert_eq!(model.pointers().unwrap(), ["empty", "stable"]);
    assert_eq!(model.pointer("stable").unwrap(), moved);
    assert_eq!(model.pointer_since("stable", &moved).unwrap(), moved);
    assert!(model.collect(crate::Retention::default(), true).is_ok());
    let second = fixture.publish(10, 2.0);
    assert_eq!(model.latest_since(first.version).unwrap(), Some(second.version));
    let next = model.promote("stable", second.version, kind, "test", None).unwrap();
    assert_eq!(model.pointer_since("stable", &moved).unwrap(), next);
    // Many folders without an object are an error that says so, and no endless search.
    for number in 1..=40 {
        fs::create_dir_all(place(&format!("pointers/stable/000000000001{number:02}"))).unwrap();
    }
    let said = model.pointer("stable").unwrap_err().to_string();
    assert!(said.contains("hold no object"), "{said}");
}

#[test]
fn a_proof_says_that_a_server_has_served_a_version() {
    let fixture = Fixture::new();
    let version = fixture.publish(10, 1.0).link();
    let model = fixture.model();
    assert!(!model.is_proved(&version).unwrap());
    model.prove(&version, "server-1").unwrap();
    model.prove(&version, "server-2").unwrap();
    assert!(model.is_proved(&version).unwrap());
    // Another version with the same number is not proved.
    let other = Link { chain: "0".repeat(64), ..version.clone() };
    assert!(!model.is_proved(&other).unwrap());
    assert!(model.prove(&version, "../server").is_err());
}

#[test]
fn a_linked_file_is_the_one_that_was_hashed() {
    let fixture = Fixture::new();
    let version = fixture.publish(300, 1.0);
    let mut cache = fixture.cache();
    drop(fixture.load(&mut cache, &version).unwrap());
    let inode = |path: PathBuf| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).unwrap().ino()
    };
    let model = fixture.model();
    for name in names(&cache) {
        let object = model.store().local_path(&model.file_object(&name)).unwrap();
        assert_eq!(inode(object), inode(cache.folder().join(&name)), "a local registry is linked");
    }
    let hidden = |cache: &Cache| list_all_names(cache.folder()).unwrap().len();
    assert_eq!(hidden(&cache), names(&cache).len());
    // Changed bytes get no name in the cache, and a smaller or larger file neither.
    let other = fixture.publish(300, 2.0);
    let (name, _) = other.layer.files().remove(0);
    let object = model.store().local_path(&model.file_object(&name)).unwrap();
    let bytes = fs::read(&object).unwrap();
    for damaged in [vec![0; bytes.len()], bytes[1..].to_vec(), [&bytes[..], b"x"].concat()] {
        fs::remove_file(&object).unwrap();
        fs::write(&object, damaged).unwrap();
        let said = fixture.load(&mut cache, &other).map(drop).unwrap_err().to_string();
        assert!(said.contains("have hash"), "{said}");
        assert!(!cache.folder().join(&name).exists());
        assert_eq!(hidden(&cache), names(&cache).len());
    }
}

#[test]
fn a_chain_has_a_bound() {
    let fixture = Fixture::new();
    let base = Arc::new(fixture.publish(1, 1.0));
    let model = fixture.model();
    let of = |length: u64, bytes: u64| {
        model.chain_by(VersionId(length), |version| {
            let parent = (version.0 > 1)
                .then(|| Link { version: VersionId(version.0 - 1), chain: base.chain.clone() });
            Ok((Arc::new(VersionManifest { version, parent, ..(*base).clone() }), bytes))
        })
    };
    assert_eq!(of(4096, 1).unwrap().len(), 4096);
    let said = of(4097, 1).unwrap_err().to_string();
    assert!(said.contains("more than 4096 ancestors"), "{said}");
    assert!(of(3, 50 << 20).is_err() && of(2, 50 << 20).is_ok());
}

/// Returns the values of the first keys, as bits, in the order of the keys.
fn bits(rows: &LayerSource, keys: u64) -> Vec<u32> {
    let keys = (0..keys).map(|key| FeatureKey(key << 40)).collect();
    let plan = conformance::plan_of(&[keys]);
    let mut buffer = RowBuffer::default();
    rows.clone().lookup(&plan, &mut buffer).unwrap();
    buffer.tables[0].values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn versions_are_opened_before_their_merges() {
    let fixture = Fixture::new();
    let (model, pace) = (fixture.model(), &mut Unthrottled);
    let mut now = Cache::open(&fixture.folder.path().join("now"), "clicks", Files::new()).unwrap();
    let mut later = fixture.cache();
    later.set_merges_later(true);
    let mut newest = fixture.publish(400, 1.0);
    let mut running: Option<LayerMerge> = None;
    let (mut most, mut made, mut runs) = (0, 0, 0);
    for number in 0..60u64 {
        newest = fixture.publish_on(Some(&newest), 3 + number % 7, 2.0 + number as f32);
        let chain = later.chain(&model, newest.version).unwrap();
        let before = later.counts().merges;
        let opened = fixture.load(&mut later, &newest).unwrap();
        let layers = opened.layers().len();
        assert!(layers <= MAX_OPEN_LAYERS && layers == later.count_layers(&chain).unwrap());
        // As long as there is room, no version waits for a merge.
        if most < MAX_OPEN_LAYERS {
            assert_eq!(later.counts().merges, before);
        }
        most = most.max(layers);
        let merged = fixture.load(&mut now, &newest).unwrap();
        assert!(merged.layers().len() <= MAX_LAYERS);
        assert_eq!(bits(&opened, 500), bits(&merged, 500), "version {}", newest.version);
        // A merge takes as long as several versions, and a cache is trimmed meanwhile.
        if number % 4 != 3 {
            later.trim(&[&chain]).unwrap();
            continue;
        }
        if let Some(merge) = running.take() {
            let manifest = merge.run(pace).unwrap();
            later.trim(&[&chain]).unwrap();
            later.end_merge(Some(&manifest)).unwrap();
            runs += 1;
        }
        running = later.next_merge(&model, &chain, pace).unwrap();
        made += usize::from(running.is_some());
    }
    assert!(most == MAX_OPEN_LAYERS && made > 5 && runs > 5, "{most} {made} {runs}");
    later.end_merge(None).unwrap();
    // In the end, all merges are made, and are found by a cache that merges at once.
    let chain = later.chain(&model, newest.version).unwrap();
    let before = bits(&fixture.load(&mut later, &newest).unwrap(), 500);
    while let Some(merge) = later.next_merge(&model, &chain, pace).unwrap() {
        let manifest = merge.run(pace).unwrap();
        later.end_merge(Some(&manifest)).unwrap();
    }
    assert!(later.count_layers(&chain).unwrap() <= MAX_LAYERS);
    later.trim(&[&chain]).unwrap();
    let mut again = fixture.cache();
    let rows = fixture.load(&mut again, &newest).unwrap();
    assert_eq!((again.counts().merges, again.counts().fetched_files), (0, 0));
    assert_eq!(bits(&rows, 500), before);
}
