//! Tests of the command `zillion model export`. It must write the published contents. It must write
//! the description only if all other files are complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::FileReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use zillion_feature::FeatureKey;

use crate::harness::{Workplace, stderr};
use crate::server::{MODEL, REGISTRY, operate, operator};

/// The rows of a table as a map. The key of the map is the key of the row; the value is the weights
/// and the count.
pub(crate) type Rows = BTreeMap<u64, (Vec<f32>, u32)>;

/// Trains a run that publishes several versions. Between two versions, keys are added, changed and
/// removed.
pub(crate) fn publishing(place: &Workplace, more: &[&str]) {
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let mut arguments = vec![
        "--set",
        &registry,
        "--set",
        "publish.every=15",
        "--set",
        "tables.user.eviction={ kind = 'unseen', steps = 2 }",
    ];
    arguments.extend(more);
    place.train_ok("run", &arguments);
}

/// Returns the manifests of a version and its ancestors, the base first.
pub(crate) fn chain(place: &Workplace, version: Option<u64>) -> Vec<Value> {
    let number = version.map(|v| v.to_string());
    let mut arguments = vec!["model", "show", "--json"];
    arguments.extend(number.iter().flat_map(|n| ["--version", n.as_str()]));
    let manifest: Value =
        serde_json::from_str(&operate(place, &arguments)).expect("a manifest is JSON");
    let mut before = match manifest["parent"]["version"].as_u64() {
        Some(parent) => chain(place, Some(parent)),
        None => Vec::new(),
    };
    before.push(manifest);
    before
}

/// Returns the path of a file in the registry.
pub(crate) fn registry_file(place: &Workplace, hash: &str, kind: &str) -> std::path::PathBuf {
    place.path(REGISTRY).join(MODEL).join("files").join(&hash[..2]).join(format!("{hash}.{kind}"))
}

/// Returns the path of a part of a version's layer. A part in a pack is copied out of it: the files
/// lie in the order of the layer's list, each at a multiple of 64 bytes.
pub(crate) fn part_file(place: &Workplace, manifest: &Value, hash: &str) -> std::path::PathBuf {
    let Some(pack) = manifest["pack"]["blake3"].as_str() else {
        return registry_file(place, hash, "arrow");
    };
    let pack = std::fs::read(registry_file(place, pack, "pack")).expect("a pack");
    let tables = manifest["layer"]["tables"].as_array().expect("tables");
    let parts = tables.iter().flat_map(|table| {
        let narrow = table["narrow"]["parts"].as_array().into_iter().flatten();
        table["parts"].as_array().expect("parts").iter().chain(narrow)
    });
    let mut at = 0usize;
    for file in parts.map(|part| &part["file"]) {
        let begin = at.next_multiple_of(64);
        at = begin + file["bytes"].as_u64().expect("a size") as usize;
        if file["blake3"] == hash {
            let path = place.path(&format!("{hash}.arrow"));
            std::fs::write(&path, &pack[begin..at]).expect("a part is written");
            return path;
        }
    }
    panic!("the pack has no part {hash}")
}

/// Reads the layers of a chain with the Arrow library alone. Returns the rows by table and the
/// number of tombstones.
pub(crate) fn layered(place: &Workplace, chain: &[Value]) -> (BTreeMap<String, Rows>, u64) {
    let mut tables: BTreeMap<String, Rows> = BTreeMap::new();
    let mut left = 0;
    for manifest in chain {
        for table in manifest["layer"]["tables"].as_array().expect("tables") {
            let rows = tables.entry(table["table"].as_str().expect("a name").into()).or_default();
            for part in table["parts"].as_array().expect("parts") {
                let hash = part["file"]["blake3"].as_str().expect("a hash");
                let file = File::open(part_file(place, manifest, hash)).expect("a part");
                for batch in FileReader::try_new(file, None).expect("an Arrow file") {
                    left += apply(rows, &batch.expect("rows"));
                }
            }
        }
    }
    (tables, left)
}

fn apply(rows: &mut Rows, batch: &RecordBatch) -> u64 {
    let keys = batch["key"].as_primitive::<UInt64Type>();
    let weights = batch["weights"].as_fixed_size_list();
    let counts = batch["count"].as_primitive::<UInt32Type>();
    let tombstones = batch["tombstone"].as_primitive::<UInt8Type>();
    let mut left = 0;
    for i in 0..batch.num_rows() {
        if tombstones.value(i) == 1 {
            left += 1;
            rows.remove(&keys.value(i));
            continue;
        }
        let own = weights.value(i).as_primitive::<Float32Type>().values().to_vec();
        rows.insert(keys.value(i), (own, counts.value(i)));
    }
    left
}

/// A row of an exported table.
pub(crate) struct Exported {
    pub(crate) key: u64,
    pub(crate) id: Option<i64>,
    pub(crate) is_missing_of: Option<String>,
    pub(crate) weights: Vec<f32>,
    pub(crate) count: u32,
}

/// Reads an exported table. Returns its rows in the order of the file, and the metadata of the
/// file.
pub(crate) fn read(path: &Path) -> (Vec<Exported>, BTreeMap<String, String>) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let metadata = reader.schema().metadata().clone().into_iter().collect();
    let mut rows = Vec::new();
    for batch in reader.build().expect("Parquet") {
        let batch = batch.expect("rows");
        let keys = batch["key"].as_primitive::<UInt64Type>();
        let missing = batch["is_missing_of"].as_string::<i32>();
        let counts = batch["count"].as_primitive::<UInt32Type>();
        let lists: Vec<_> =
            batch.columns().iter().filter_map(|c| c.as_fixed_size_list_opt()).collect();
        for i in 0..batch.num_rows() {
            let id =
                batch.column_by_name("id").filter(|ids| ids.is_valid(i)).map(|ids| match ids
                    .as_primitive_opt::<Int64Type>(
                ) {
                    Some(ids) => ids.value(i),
                    None => ids.as_primitive::<UInt64Type>().value(i) as i64,
                });
            let floats = lists
                .iter()
                .flat_map(|list| list.value(i).as_primitive::<Float32Type>().values().to_vec());
            rows.push(Exported {
                key: keys.value(i),
                id,
                is_missing_of: missing.is_valid(i).then(|| missing.value(i).to_owned()),
                weights: floats.collect(),
                count: counts.value(i),
            });
        }
    }
    (rows, metadata)
}

fn export(place: &Workplace, output: &str, more: &[&str]) -> Value {
    let output = place.text(output);
    let mut arguments = vec!["model", "export", "--output", &output, "--json"];
    arguments.extend(more);
    serde_json::from_str(&operate(place, &arguments)).expect("JSON")
}

#[test]
fn exported_rows_equal_the_chain_with_original_ids() {
    let place = Workplace::new();
    publishing(&place, &[]);
    let chain = chain(&place, None);
    assert!(chain.len() > 2, "there are deltas");
    let (layers, tombstones) = layered(&place, &chain);
    assert!(tombstones > 0, "rows must leave, or the test shows little");
    let about = export(&place, "exported", &[]);
    assert_eq!(about["version"], chain[chain.len() - 1]["version"]);
    let tables = about["tables"].as_array().expect("tables");
    assert_eq!(tables.len(), layers.len());
    for table in tables {
        let name = table["name"].as_str().expect("a name");
        let path = place.path("exported").join(table["path"].as_str().expect("a path"));
        let (rows, metadata) = read(&path);
        assert_eq!(metadata["zillion.table"], name);
        assert_eq!(metadata["zillion.model"], MODEL);
        assert_eq!(metadata["zillion.version"], about["version"].to_string());
        assert!(rows.windows(2).all(|pair| pair[0].key < pair[1].key), "{name}: in key order");
        let found: Rows = rows.iter().map(|r| (r.key, (r.weights.clone(), r.count))).collect();
        assert_eq!(found, layers[name], "{name}");
        let missing = FeatureKey::missing(name).0;
        for row in &rows {
            assert_eq!(row.is_missing_of.is_some(), row.key == missing, "{name}");
            assert_eq!(row.is_missing_of.as_deref().unwrap_or(name), name);
            match (name, row.id) {
                ("item", Some(id)) => {
                    assert_eq!(FeatureKey::from_i64(id).0, row.key);
                    assert!((0..80).contains(&id), "an item of the data: {id}");
                }
                ("age", Some(bucket)) => assert!((0..4).contains(&bucket), "{bucket}"),
                ("user" | "tags", None) => {
                    assert!(metadata["zillion.no_ids_because"].contains("texts"));
                }
                (_, None) => assert_eq!(row.key, missing, "{name}"),
                (_, Some(id)) => panic!("{name} has an id {id}"),
            }
        }
    }
    assert!(layers["item"].len() > 50 && layers["age"].len() >= 4);
    // The exported dense parameters have the same bytes as the published ones.
    let newest = &chain[chain.len() - 1];
    let hash = newest["dense"]["blake3"].as_str().expect("a hash");
    let dense = std::fs::read(place.path("exported/dense.safetensors")).expect("it was written");
    assert_eq!(blake3::hash(&dense).to_hex().as_str(), hash);
    // An earlier version has other rows. A pointer can select the version too.
    let base = export(&place, "base", &["--version", "1", "--only", "rows"]);
    assert_eq!(base["files"].as_array().map(Vec::len), Some(layers.len()));
    let (rows, _) = read(&place.path("base/rows/user.parquet"));
    let (first, _) = layered(&place, &chain[..1]);
    assert_eq!(rows.len(), first["user"].len());
    let pointed = export(&place, "pointed", &["--pointer", "stable", "--only", "dense"]);
    assert_eq!(pointed["version"], about["version"]);
    assert!(pointed["tables"].as_array().is_some_and(Vec::is_empty) && pointed["graph"].is_null());
    assert!(!place.path("pointed/graph.onnx").exists());
}

#[test]
fn existing_files_are_overwritten_only_with_force() {
    let place = Workplace::new();
    publishing(&place, &["--set", "train.epochs=1"]);
    std::fs::create_dir(place.path("taken")).expect("a new folder");
    place.write("taken/notes.txt", "mine");
    let output = place.text("taken");
    let run = |more: &[&str]| {
        let mut arguments = vec!["model", "export", "--output", &output];
        arguments.extend(more);
        operator(&place, &arguments).output().expect("the binary runs")
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--force") && stderr(&refused).contains("taken"));
    let forced = run(&["--force"]);
    assert!(forced.status.success(), "{}", stderr(&forced));
    assert_eq!(std::fs::read_to_string(place.path("taken/notes.txt")).expect("it is mine"), "mine");
    assert!(place.path("taken/export.json").exists());

    for (arguments, said) in [(["--version", "99"], "99"), (["--pointer", "nowhere"], "nowhere")] {
        let fresh = place.text("fresh");
        let all = [&["model", "export", "--output", &fresh][..], &arguments].concat();
        let failed = operator(&place, &all).output().expect("the binary runs");
        assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
        assert!(stderr(&failed).contains(said), "{}", stderr(&failed));
    }
    // A damaged file in the cache is not exported.
    let newest = chain(&place, None);
    let hash = newest[newest.len() - 1]["dense"]["blake3"].as_str().expect("a hash").to_owned();
    let cached = place
        .path(REGISTRY)
        .join(".cache")
        .join(MODEL)
        .join("files")
        .join(format!("{hash}.safetensors"));
    let mut bytes = std::fs::read(&cached).expect("the export has fetched it");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let moved = place.path("damaged");
    std::fs::write(&moved, &bytes).expect("a disk");
    std::fs::rename(&moved, &cached).expect("a disk");
    let failed = run(&["--force"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains(&hash), "{}", stderr(&failed));
    assert!(!place.path("taken/export.json").exists(), "what is not whole is not described");
}

#[test]
fn a_killed_export_is_whole_or_not_described() {
    let place = Workplace::new();
    publishing(&place, &["--set", "train.epochs=1"]);
    // The first export fills the cache, so all other exports have the same operations.
    export(&place, "reference", &[]);
    let reference = place.digest("reference");
    let mut operations = usize::MAX;
    for fault in ["kill", "torn", "enospc"] {
        let mut disturbed = 0;
        for operation in 1..=operations {
            let name = format!("{fault}-{operation}");
            let output = place.text(&name);
            let result = operator(&place, &["model", "export", "--output", &output])
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            if result.status.success() {
                // If the cache is full, it frees space and the export continues, so the export is
                // complete anyway.
                if fault == "enospc" && operation < operations {
                    assert_eq!(visible(&place, &name), reference, "{name}");
                    std::fs::remove_dir_all(place.path(&name))
                        .expect("our own folder can be removed");
                    continue;
                }
                operations = operation;
                break;
            }
            disturbed += 1;
            match fault {
                "enospc" => assert!(stderr(&result).contains("space"), "{}", stderr(&result)),
                _ => assert_eq!(result.status.signal(), Some(9), "{}", stderr(&result)),
            }
            if place.path(&name).join("export.json").exists() {
                assert_eq!(visible(&place, &name), reference, "{name} is described");
            }
            export(&place, &name, &["--force"]);
            assert_eq!(visible(&place, &name), reference, "{name}");
            std::fs::remove_dir_all(place.path(&name)).expect("our own folder can be removed");
        }
        assert!(disturbed > 20, "{fault}: only {disturbed} operations were disturbed");
    }
}

/// Returns the files of a folder, without the temporary files of killed writes.
fn visible(place: &Workplace, name: &str) -> BTreeMap<String, String> {
    let is_hidden = |path: &String| path.rsplit('/').next().is_some_and(|n| n.starts_with('.'));
    place.digest(name).into_iter().filter(|(path, _)| !is_hidden(path)).collect()
}
