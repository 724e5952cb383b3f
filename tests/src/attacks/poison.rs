//! Tests of poisoned versions. Somebody who can write the registry changes an object of a version
//! and makes all hashes fit again, so that only the contents are wrong.
//!
//! The first test loads many such versions with the loader's own function in this process. Each
//! load must end with an error or with a version, and never with a panic. The environment variable
//! `POISON_CASES` sets the number of changes for each kind of object. The second test moves the
//! pointer of a running server to such versions. The server must report each one, must keep the
//! version that it has, and must load the next good version.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use zillion_device::{Files, SystemClock, Workers};
use zillion_registry::{
    Cache, MoveKind, Registry, STABLE, VersionFile, VersionId, VersionLayer, VersionManifest,
};
use zillion_rows::layer::{LayerFile, LayerManifest, Unthrottled, pack_layer};
use zillion_scorer::Servable;

use super::victim::{Victim, predict_body, predict_path, publish, wait_until};
use super::wire;
use crate::harness::Workplace;
use crate::server::{MODEL, REGISTRY};

/// The number of changes of each kind of object, unless `POISON_CASES` says another number.
const CASES: u64 = 40;
/// The kinds of objects that a version consists of.
const KINDS: [&str; 9] =
    ["manifest", "layer", "part", "directory", "pack", "frame", "graph", "dense", "parity"];

/// A sequence of numbers that looks random and is the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Changes bytes in one of several ways. Half of the changes replace a number in a text or eight
/// bytes by an extreme number, because lengths and shapes are the numbers that readers believe.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes.truncate(at),
        2 => {
            let piece = bytes[at..(at + 64).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        3 => drop(bytes.drain(at..(at + 1 + random.below(64)).min(bytes.len()))),
        4 | 5 => {
            let extreme = [0, 1, u64::MAX, 1 << 63, 1 << 40, 1 << 31][random.below(6)];
            let end = (at / 8 * 8 + 8).min(bytes.len());
            let place = &mut bytes[at / 8 * 8..end];
            place.copy_from_slice(&extreme.to_le_bytes()[..place.len()]);
        }
        _ => {
            let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
            let from = at + from;
            let digits = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let extremes = ["0", "18446744073709551615", "10000000000000", "4294967296", "-1", "7"];
            let text = extremes[random.below(extremes.len())].bytes();
            bytes.splice(from..from + digits, text);
        }
    }
}

/// The registry of a workplace, and the parts of its good version.
struct Poisoner {
    place: Workplace,
    model: zillion_registry::Model,
    good: VersionManifest,
}

impl Poisoner {
    fn new(place: Workplace) -> Self {
        let registry =
            Registry::open(&place.text(REGISTRY), Files::new(), Arc::new(SystemClock::new()));
        let model = registry.expect("a registry").model(MODEL).expect("a model");
        let version = model.pointer(STABLE).expect("the pointer was set").to.version;
        let good = model.version(version).expect("a manifest");
        Self { place, model, good }
    }

    fn object(&self, name: &str) -> PathBuf {
        self.place.path(&format!("{REGISTRY}/{MODEL}/files/{}/{name}", &name[..2]))
    }

    /// Writes an object under the name that its hash gives. Returns its hash and size.
    fn put(&self, kind: &str, bytes: &[u8]) -> (String, u64) {
        let hash = blake3::hash(bytes).to_hex().to_string();
        let path = self.object(&format!("{hash}.{kind}"));
        std::fs::create_dir_all(path.parent().expect("a shelf")).expect("a shelf");
        std::fs::write(path, bytes).expect("an object is written");
        (hash, bytes.len() as u64)
    }

    /// Writes the frame of a manifest after a change of its bytes, and lets the manifest name it.
    fn put_frame(&self, manifest: &mut VersionManifest, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = serde_json::to_vec(&*manifest.frame).expect("JSON");
        change(&mut bytes);
        let (blake3, bytes) = self.put("json", &bytes);
        manifest.frame_file = Some(VersionFile { kind: "json".to_owned(), blake3, bytes });
    }

    /// Changes a file of a version, writes the changed file, and lets `file` name it.
    fn change_file(&self, file: &mut VersionFile, random: &mut Random) {
        let mut bytes = std::fs::read(self.object(&file.name())).expect("an object");
        mutate(&mut bytes, random);
        let name = file.name();
        let (_, kind) = name.split_once('.').expect("a kind");
        (file.blake3, file.bytes) = self.put(kind, &bytes);
    }

    fn change_layer_file(&self, file: &mut LayerFile, random: &mut Random) {
        let mut bytes = std::fs::read(self.object(&file.name())).expect("an object");
        mutate(&mut bytes, random);
        let name = file.name();
        let (_, kind) = name.split_once('.').expect("a kind");
        (file.blake3, file.bytes) = self.put(kind, &bytes);
    }

    /// Writes the manifest of a version with this number in which one object of `kind` is changed.
    /// The hashes of the version fit its contents.
    fn poison(&self, kind: &str, version: VersionId, random: &mut Random) {
        let mut manifest = VersionManifest { version, parent: None, ..self.good.clone() };
        match kind {
            "graph" => {
                self.change_file(&mut Arc::make_mut(&mut manifest.frame).graph, random);
                self.put_frame(&mut manifest, |_| {});
            }
            "frame" => self.put_frame(&mut manifest, |bytes| mutate(bytes, random)),
            "pack" => self.pack(&mut manifest, random),
            "dense" => self.change_file(&mut manifest.dense, random),
            "parity" => self.change_file(&mut manifest.parity, random),
            "directory" => self.change_layer_file(&mut layer_of(&mut manifest).directory, random),
            "part" => {
                let layer = layer_of(&mut manifest);
                let tables = layer.tables.len();
                let table = &mut layer.tables[random.below(tables)];
                let parts = table.parts.len();
                if parts > 0 {
                    self.change_layer_file(&mut table.parts[random.below(parts)].file, random);
                }
            }
            _ => {}
        }
        let mut bytes = serde_json::to_vec_pretty(&manifest.clone().seal()).expect("JSON");
        match kind {
            // The raw bytes are changed, and the hash no longer fits.
            "manifest" => mutate(&mut bytes, random),
            // The layer's description is changed, and the hash fits again.
            "layer" => {
                let mut layer = serde_json::to_vec(layer_of(&mut manifest)).expect("JSON");
                mutate(&mut layer, random);
                if let Ok(layer) = serde_json::from_slice(&layer) {
                    manifest.layer = VersionLayer::Listed(layer);
                    bytes = serde_json::to_vec_pretty(&manifest.seal()).expect("JSON");
                }
            }
            _ => {}
        }
        let path = self.manifest_path(version);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a manifest is written");
    }

    /// Packs the layer of a version as that of a delta, and changes the pack.
    fn pack(&self, manifest: &mut VersionManifest, random: &mut Random) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let layer = layer_of(manifest);
        for file in layer.files() {
            let to = folder.path().join(file.name());
            std::fs::copy(self.object(&file.name()), to).expect("a file is copied");
        }
        let packed = pack_layer(folder.path(), layer).expect("the files are there");
        let (mut pack, bytes) = packed.expect("the layer is small");
        let mut bytes = bytes.to_vec();
        mutate(&mut bytes, random);
        (pack.blake3, pack.bytes) = self.put("pack", &bytes);
        manifest.layer = VersionLayer::Packed(pack);
    }

    fn manifest_path(&self, version: VersionId) -> PathBuf {
        let number = version.0;
        let folder = format!("{:014}/{:03}", number / 1_000_000, number / 1000 % 1000);
        self.place.path(&format!("{REGISTRY}/{MODEL}/versions/{folder}/{number:020}.json"))
    }

    /// Moves the pointer to a version without a look at the version.
    fn move_pointer(&self, version: VersionId) {
        let last = self.model.pointer(STABLE).expect("a move");
        let mut moved = serde_json::to_value(&last).expect("JSON");
        let number = last.number + 1;
        let chain = std::fs::read(self.manifest_path(version)).ok();
        let chain = chain.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let chain = chain.and_then(|manifest| Some(manifest["chain"].as_str()?.to_owned()));
        moved["number"] = number.into();
        moved["to"]["version"] = version.0.into();
        if let Some(chain) = chain {
            moved["to"]["chain"] = chain.into();
        }
        let folder = format!("{:014}/{:03}", number / 1_000_000, number / 1000 % 1000);
        let path = self
            .place
            .path(&format!("{REGISTRY}/{MODEL}/pointers/{STABLE}/{folder}/{number:020}.json"));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let bytes = serde_json::to_vec(&moved).expect("JSON");
        // A reader must not see half of the move.
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, bytes).expect("a move is written");
        std::fs::rename(&temporary, &path).expect("a move is named");
    }
}

/// Returns the listed layer of a version.
fn layer_of(manifest: &mut VersionManifest) -> &mut LayerManifest {
    match &mut manifest.layer {
        VersionLayer::Listed(layer) => layer,
        VersionLayer::Packed(_) => panic!("the good version is a base, which is not packed"),
    }
}

fn cases() -> u64 {
    std::env::var("POISON_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
}

fn empty(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn changed_objects_of_a_version_are_refused_without_a_panic() {
    let poisoner = Poisoner::new(publish(&[]));
    let workers = Arc::new(Workers::new(std::num::NonZeroUsize::MIN).expect("no thread"));
    let probe = poisoner.place.path("probe");
    let version = VersionId(1_000_001);
    let mut outcomes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut panics = Vec::new();
    for (number, kind) in KINDS.into_iter().enumerate() {
        for case in 0..cases() {
            let mut random = Random(case * KINDS.len() as u64 + number as u64);
            poisoner.poison(kind, version, &mut random);
            let mut cache = Cache::open(&probe, MODEL, Files::new()).expect("a cache");
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                Servable::load(&poisoner.model, version, [], &mut cache, &workers, &mut Unthrottled)
                    .map(drop)
            }));
            let counts = outcomes.entry(kind).or_default();
            match loaded {
                Ok(Ok(())) => counts.0 += 1,
                Ok(Err(_)) => counts.1 += 1,
                Err(_) => panics.push((kind, case)),
            }
            drop(cache);
            // The cache keeps manifests by their number, and every case has the same one.
            empty(&probe);
        }
    }
    eprintln!("loaded and refused, by kind: {outcomes:?}; panics: {}", panics.len());
    assert!(panics.is_empty(), "{panics:?}");
    // A change of a weight that no parity row reads leaves a valid version.
    for (kind, (_, refused)) in outcomes {
        assert!(refused > 0, "no change of {kind} was refused");
    }
}

#[test]
fn a_server_reports_poisoned_versions_and_loads_the_next_good_one() {
    let poisoner = Poisoner::new(publish(&[]));
    let victim = Victim::start(&poisoner.place, &["--poll-ms", "100"]);
    let failures = format!("zillion_serving_load_failures_total{{model=\"{MODEL}\"}}");
    let body = predict_body(&[&[1, 2, 3]]);
    let answer = |path: &str| {
        let reply = wire::post(&victim.public, path, "", &body).expect("an answer");
        assert_eq!(reply.status, 200, "{}", reply.body);
    };
    let mut next = poisoner.good.version.0;
    let mut random = Random(1);
    for kind in KINDS {
        next += 1;
        let version = VersionId(next);
        poisoner.poison(kind, version, &mut random);
        let before = victim.metric(&failures);
        let moved = std::time::Instant::now();
        poisoner.move_pointer(version);
        let served = || {
            let path = format!("/v1/models/{MODEL}/versions/{next}:predict");
            wire::post(&victim.public, &path, "", &body).is_ok_and(|reply| reply.status == 200)
        };
        // A few changes leave a version that is still valid, such as one in a name.
        wait_until("the version is reported or served", || {
            victim.metric(&failures) > before || served()
        });
        eprintln!("{kind}: visible after {:?}", moved.elapsed());
        answer(&predict_path());
    }
    let good = VersionId(next + 1);
    let manifest = VersionManifest { version: good, parent: None, ..poisoner.good.clone() }.seal();
    let path = poisoner.manifest_path(good);
    std::fs::write(path, serde_json::to_vec_pretty(&manifest).expect("JSON")).expect("a manifest");
    let moved = std::time::Instant::now();
    let promoted = poisoner.model.promote(STABLE, good, MoveKind::Promote, "test", None);
    promoted.expect("the pointer moves to a good version");
    wait_until("the good version answers", || {
        let path = format!("/v1/models/{MODEL}/versions/{}:predict", good.0);
        wire::post(&victim.public, &path, "", &body).is_ok_and(|reply| reply.status == 200)
    });
    eprintln!("the good version answers after {:?}", moved.elapsed());
    victim.survives();
}

#[test]
fn a_truncated_file_of_the_cache_ends_a_version_and_not_the_server() {
    truncate_cache(false);
}

#[test]
fn a_file_that_is_whole_again_is_mapped_again() {
    truncate_cache(true);
}

/// Truncates all files in the cache of a running server, and waits until the server answers again
/// as before. With `is_restored`, the files get their bytes back after the first refused request.
fn truncate_cache(is_restored: bool) {
    let place = publish(&[]);
    drop(Victim::start(&place, &[]));
    // The cache has hard links to the files of the registry. Here it gets files of its own, so that
    // the registry stays whole.
    let folder = place.path(&format!("cache/{MODEL}/files"));
    let names = std::fs::read_dir(&folder).expect("the cache has files");
    let files: Vec<PathBuf> = names.map(|name| name.expect("an entry").path()).collect();
    for file in &files {
        let copy = file.with_extension("copy");
        std::fs::copy(file, &copy).expect("a copy");
        std::fs::rename(&copy, file).expect("the copy takes the name");
    }
    let victim = Victim::start(&place, &["--poll-ms", "100"]);
    let ask = || wire::post(&victim.public, &predict_path(), "", &predict_body(&[&[1, 2, 3]]));
    let before = ask().expect("an answer");
    assert_eq!(before.status, 200, "{}", before.body);
    let whole: Vec<Vec<u8>> =
        files.iter().map(|file| std::fs::read(file).expect("our own file")).collect();
    for file in &files {
        let file = std::fs::File::options().write(true).open(file).expect("our own file");
        file.set_len(0).expect("the file is truncated");
    }
    // Until the version is loaded again from the registry, requests are refused and never answered
    // from the zeros in the place of the rows.
    let mut statuses = std::collections::BTreeSet::new();
    let damage = format!("zillion_serving_cache_damaged_files_total{{model=\"{MODEL}\"}}");
    wait_until("the version is loaded again", || {
        let reply = ask().expect("the server lives");
        if statuses.insert(reply.status) && reply.status == 503 && is_restored {
            for (file, bytes) in files.iter().zip(&whole) {
                // The loader may have removed the file in the meantime.
                let opened = std::fs::File::options().write(true).open(file);
                let _ = opened.and_then(|mut file| file.write_all(bytes));
            }
        }
        if reply.status == 200 {
            assert_eq!(reply.body, before.body);
        }
        victim.metric(&damage) > 0.0 && reply.status == 200
    });
    eprintln!("answers while the version was loaded again: {statuses:?}");
    assert!(statuses.contains(&503), "{statuses:?}");
    victim.survives();
}
