//! Tests of damaged versions. Every reader must refuse a damaged version and name it in the error.
//! A server must continue with the good versions.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use zillion_device::{Files, SystemClock, Workers};
use zillion_feature::{FeatureKey, Schema};
use zillion_registry::{
    Cache, Draft, FrameDraft, MoveKind, NewFrame, Registry, STABLE, VersionFile,
};
use zillion_rows::TableSpec;
use zillion_rows::layer::{Found, LayerWriter, Unthrottled, part_count};
use zillion_scorer::{Error, Servable};

use crate::harness::{Workplace, csv, stderr};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, operator};

/// Publishes a base and two deltas.
fn published() -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let settings = ["--set", &registry, "--set", "publish.every=10", "--set", "train.epochs=1"];
    place.train_ok("run", &settings);
    place
}

fn show(place: &Workplace, version: &str) -> Value {
    let text = operate(place, &["model", "show", "--version", version, "--json"]);
    serde_json::from_str(&text).expect("JSON")
}

fn fails(place: &Workplace, arguments: &[&str]) -> String {
    let result = operator(place, arguments).output().expect("the binary runs");
    assert_eq!(result.status.code(), Some(1), "{arguments:?}\n{}", stderr(&result));
    stderr(&result)
}

/// Returns the path of the registry file whose name begins with this hash.
fn file_of(place: &Workplace, hash: &str) -> PathBuf {
    let shelf = place.path(&format!("{REGISTRY}/{MODEL}/files/{}", &hash[..2]));
    let entries = std::fs::read_dir(&shelf).expect("the shelf can be listed");
    entries
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(hash)))
        .expect("the file is there")
}

#[test]
fn a_flipped_bit_in_any_kind_of_file_is_found_by_name() {
    let place = published();
    // The files are the rows of the base, on which the newest version depends, and all files of the
    // newest version.
    let version = show(&place, "1");
    let newest = show(&place, &show_newest(&place).to_string());
    let hash = |file: &Value| file["blake3"].as_str().expect("a hash").to_owned();
    let part = hash(&version["layer"]["tables"][0]["parts"][0]["file"]);
    let mut kinds = vec![("part", part.clone())];
    kinds.push(("directory", hash(&version["layer"]["directory"])));
    for name in ["pack", "frame", "graph", "dense", "parity"] {
        kinds.push((name, hash(&newest[name])));
    }
    // A server with an empty cache has never verified the version, so it must refuse it.
    for (kind, hash) in kinds {
        let path = file_of(&place, &hash);
        let good = std::fs::read(&path).expect("the file can be read");
        // The places are the head, the middle and the foot of the file. The middle of a part
        // contains keys, weights, counts or tombstones.
        let places: Vec<usize> = match kind {
            "part" => (0..16).map(|i| i * (good.len() - 1) / 15).collect(),
            _ => vec![0, good.len() / 2, good.len() - 1],
        };
        for at in places {
            let mut bad = good.clone();
            bad[at] ^= 1;
            // A new file replaces the old one, because other files may be links to the old one.
            std::fs::remove_file(&path).expect("our own file");
            std::fs::write(&path, &bad).expect("our own file");
            let said = fails(&place, &["model", "verify"]);
            assert!(said.contains(&hash), "{kind} at {at}: {said}");
        }
        let said = refused_by_server(&place);
        assert!(said.contains(&hash), "{kind}: {said}");
        std::fs::remove_file(&path).expect("our own file");
        let said = fails(&place, &["model", "verify"]);
        assert!(said.contains(&hash), "{kind} missing: {said}");
        let said = refused_by_server(&place);
        assert!(said.contains("is missing") && said.contains(&hash), "{kind} missing: {said}");
        std::fs::write(&path, &good).expect("our own file");
    }
    operate(&place, &["model", "verify"]);
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
}

/// Starts a server that must refuse the version of the pointer. Returns the reason that the server
/// gives.
fn refused_by_server(place: &Workplace) -> String {
    let cache = place.text("other-cache");
    let server = Server::start(place, &["--cache", &cache]);
    let body = infer_body(&instances(&csv(3, 1)), &[]);
    let began = std::time::Instant::now();
    let said = loop {
        let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
        assert_eq!(reply.status, 503, "{reply:?}");
        // Callers see only a code. The repository index tells operators the reason.
        let index = server.post("/v2/repository/index", b"").json();
        let reason = index[0]["reason"].as_str().expect("text");
        if !reason.is_empty() {
            break reason.to_owned();
        }
        assert!(began.elapsed() < crate::server::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    drop(server);
    let _ = std::fs::remove_dir_all(cache);
    said
}

#[test]
fn a_chain_with_a_gap_fork_or_wrong_manifest_is_refused() {
    let place = published();
    let manifest = |version: u64| {
        let folder = place.path(&format!("{REGISTRY}/{MODEL}/versions"));
        let mut found = Vec::new();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.sort();
        found[version as usize - 1].clone()
    };
    let keep = |path: &PathBuf| std::fs::read(path).expect("a manifest");
    let newest = show_newest(&place);
    assert!(newest >= 3);
    // One version of the chain is missing.
    let second = keep(&manifest(2));
    let path = manifest(2);
    std::fs::remove_file(&path).expect("our own file");
    let said = fails(&place, &["model", "verify", "--version", "3"]);
    assert!(said.contains("version 2") && said.contains("version 3"), "{said}");
    std::fs::write(&path, &second).expect("our own file");
    // The third version depends on another second version than the one in the chain, although that
    // one is valid.
    let forged =
        String::from_utf8(second.clone()).expect("JSON").replace("\"step\": ", "\"step\": 1");
    std::fs::write(&path, forged).expect("our own file");
    let said = fails(&place, &["model", "verify", "--version", "2"]);
    assert!(said.contains("changed after it was published"), "{said}");
    let said = fails(&place, &["model", "promote", "3"]);
    assert!(said.contains("changed after it was published"), "{said}");
    // The manifest of the first version is stored under the number of the second version.
    std::fs::write(&path, keep(&manifest(1))).expect("our own file");
    let said = fails(&place, &["model", "show", "--version", "2"]);
    assert!(said.contains("belongs to version 1"), "{said}");
    std::fs::write(&path, b"{").expect("our own file");
    let said = fails(&place, &["model", "show", "--version", "2"]);
    assert!(said.contains("cannot be parsed"), "{said}");
    std::fs::write(&path, &second).expect("our own file");
    operate(&place, &["model", "verify"]);
    // The names lead to other folders.
    for name in ["../e2e", "/etc", "", "a/b", ".hidden"] {
        let registry = place.text(REGISTRY);
        let list = ["model", "verify", "--registry", &registry, "--model", name];
        let result = crate::harness::zillion(&list).output().expect("the binary runs");
        assert_eq!(result.status.code(), Some(1), "{name}: {}", stderr(&result));
        assert!(stderr(&result).contains("invalid model name"), "{name}: {}", stderr(&result));
    }
}

fn show_newest(place: &Workplace) -> u64 {
    let text = operate(place, &["model", "show", "--json"]);
    let show: Value = serde_json::from_str(&text).expect("JSON");
    show["version"].as_u64().expect("a number")
}

#[test]
fn a_full_or_read_only_store_makes_nothing_visible() {
    let place = published();
    let before = show_newest(&place);
    place.train_ok("other", &["--set", "train.epochs=1"]);
    let root = format!("data.root={}", place.text(""));
    let other = place.text("other");
    let publish = ["publish", other.as_str(), "--set", root.as_str()];
    for fault in ["enospc", "eio", "torn"] {
        let mut disturbed = 0;
        // Every third operation is disturbed, so all kinds of operations are covered.
        for operation in (1..).step_by(3) {
            let result = operator(&place, &publish)
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            operate(&place, &["model", "verify"]);
            let latest = show_newest(&place);
            if latest > before {
                break;
            }
            assert!(!result.status.success());
            if fault != "torn" {
                assert_eq!(result.status.code(), Some(1), "{}", stderr(&result));
                assert!(stderr(&result).contains("error: "), "{}", stderr(&result));
            }
            if fault == "enospc" {
                assert!(stderr(&result).contains("space"), "{}", stderr(&result));
            }
            disturbed += 1;
        }
        assert!(disturbed > 5, "{fault}: {disturbed}");
        // At the next fault, the run has published nothing.
        std::fs::write(place.path("other/RUN"), format!("again-{fault}")).expect("our own file");
        let visible = show_newest(&place);
        assert_eq!(visible, before + 1, "{fault}");
        remove_newest(&place, visible);
    }
    // If a training cannot publish, it continues and reports this at its end.
    let registry = "publish.registry=/proc/registry";
    let said = place.train_fails(&["--set", registry, "--set", "train.epochs=1"]);
    assert!(said.1.contains("/proc/registry"), "{}", said.1);
}

/// Removes the newest version: its manifest and the last move of the pointer. Zillion has no
/// command for this.
fn remove_newest(place: &Workplace, version: u64) {
    for folder in
        [format!("{REGISTRY}/{MODEL}/versions"), format!("{REGISTRY}/{MODEL}/pointers/stable")]
    {
        let mut files = Vec::new();
        let mut folders = vec![place.path(&folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        let last = files.last().expect("a file");
        let text = std::fs::read_to_string(last).expect("JSON");
        if text.contains(&format!("\"version\": {version}")) {
            std::fs::remove_file(last).expect("our own file");
        }
    }
}

#[test]
fn parity_refuses_a_changed_weight_with_right_checksums() {
    let place = published();
    let files = Files::new();
    let registry =
        Registry::open(&place.text(REGISTRY), files.clone(), Arc::new(SystemClock::new()));
    let model = registry.expect("a registry").model(MODEL).expect("a model");
    let workers = Arc::new(Workers::new(std::num::NonZeroUsize::MIN).expect("no thread"));
    let stable = model.pointer(STABLE).expect("it was set").to.version;
    let mut cache = Cache::open(&place.path("probe"), MODEL, files.clone()).expect("a folder");
    let load = |version, cache: &mut Cache| {
        Servable::load(&model, version, [], cache, &workers, &mut Unthrottled)
    };
    let servable = load(stable, &mut cache).expect("what was published loads");
    let manifest = servable.manifest().clone();
    // The value is the first weight of the user in the first row of the validation file. The parity
    // rows come from this file.
    let user = csv(1, 1).lines().nth(1).and_then(|row| row.split(',').next().map(str::to_owned));
    let user = FeatureKey::from_text(&user.expect("a row"));
    let bytes = |file: &VersionFile| std::fs::read(file_of(&place, &file.blake3)).expect("a file");

    for (change, is_loaded) in [(0.0, true), (0.001, false)] {
        let folder = place.path("forged");
        files.create_dir(&folder).expect("a folder");
        let mut pace = Unthrottled;
        let mut writer = LayerWriter::new(&files, &folder, &mut pace);
        let chain = model.chain(stable).expect("a chain");
        let rows = cache.rows(&model, &chain, &workers, &mut Unthrottled).expect("rows");
        let mut changed = 0;
        for (table, spec) in manifest.frame.tables.iter().enumerate() {
            // The rows of the chain are merged. For each key, the newest layer with this key
            // counts.
            let mut all = std::collections::BTreeMap::new();
            for layer in rows.layers() {
                for (key, found) in layer.iter(table) {
                    match found {
                        Found::Row(row) => all.insert(key.0, (row.weights.to_vec(), row.count)),
                        Found::Tombstone => all.remove(&key.0),
                    };
                }
            }
            let width = TableSpec::layout(spec).width();
            writer.table(&spec.layout(), part_count(all.len() as u64, width)).expect("a table");
            for (key, (mut weights, count)) in all {
                if spec.name == "user" && key == user.0 {
                    weights[0] += change;
                    changed += 1;
                }
                writer.push(FeatureKey(key), Some(&weights), count).expect("a row");
            }
        }
        assert_eq!(changed, 1);
        let layer = writer.finish().expect("a layer");
        let frame = NewFrame::new(FrameDraft {
            schema: Schema::from_job(&manifest.frame.schema).expect("a schema"),
            tables: manifest.frame.tables.clone(),
            statistics: manifest.frame.statistics.clone(),
            graph: bytes(&manifest.frame.graph),
            settings: manifest.frame.settings,
            sides: Vec::new(),
        })
        .expect("a frame");
        let draft = Draft {
            parent: None,
            frame: Arc::new(frame),
            layer,
            folder: Some(folder),
            dense: Some(bytes(&manifest.dense)),
            parity: bytes(&manifest.parity),
            items: None,
            origin: manifest.origin.clone(),
        };
        let version =
            model.publish(draft).expect("it is published: every checksum is right").version;
        model.verify(version, |_| {}).expect("every checksum is right");
        match load(version, &mut cache) {
            Ok(_) => assert!(is_loaded, "a changed weight was not noticed"),
            Err(Error::Parity { row, version: of, .. }) => {
                assert!(!is_loaded && of == version, "row {row}");
                // A server that is told to serve the damaged version continues with its current
                // version.
                let mut server = Server::start(&place, &[]);
                assert!(server.becomes_ready());
                let before = model.pointer(STABLE).expect("it was set").to.version;
                model.promote(STABLE, version, MoveKind::Promote, "a test", None).expect("a move");
                let began = std::time::Instant::now();
                while !server
                    .get("/metrics")
                    .body
                    .contains("zillion_serving_load_failures_total{model=\"e2e\"} 1\n")
                {
                    assert!(
                        began.elapsed() < crate::server::PATIENCE,
                        "{}",
                        server.get("/metrics").body
                    );
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                server.wait_for(before.0);
                let body = infer_body(&instances(&csv(3, 2)), &[]);
                let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
                assert_eq!(reply.json()["model_version"], before.to_string());
                assert!(server.is_running());
            }
            Err(other) => panic!("{other}"),
        }
    }
}
