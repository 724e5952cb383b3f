//! The targets of the crate `registry`: manifests of versions, moves of pointers, and side tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use zillion_device::{Files, SystemClock};
use zillion_feature::{
    Encoder, FeatureKey, KeyColumn, Schema, SideColumn, SideIndex, SideTable, Statistics,
};
use zillion_registry::{
    Model, Registry, STABLE, VersionId, read_side, reseal_manifest, write_side,
};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 4] = [&VERSION_MANIFESTS, &VERSION_FRAMES, &POINTER_MOVES, &SIDE_TABLES];

/// The reader of the manifest of a version. A writer of the bucket can compute the right hash for
/// any manifest. The target therefore seals a manifest again if it can be parsed.
pub const VERSION_MANIFESTS: Target = Target {
    name: "version_manifests",
    read: |bytes| {
        let stored = reseal_manifest(bytes).unwrap_or_else(|| bytes.to_vec());
        let (folder, model) = model_with("versions", &stored);
        put_frame(folder.path(), &sample_frame());
        read_version(&model)
    },
    seeds: || {
        let text = |manifest: &Value| {
            let bytes = serde_json::to_vec(manifest).expect("a manifest can be written");
            reseal_manifest(&bytes).expect("the sample is a manifest")
        };
        vec![text(&inline_manifest()), text(&referring_manifest(&sample_frame()))]
    },
};

/// The reader of a frame, which the manifest of a version names by its hash.
pub const VERSION_FRAMES: Target = Target {
    name: "version_frames",
    read: |bytes| {
        let manifest = serde_json::to_vec(&referring_manifest(bytes)).expect("it can be written");
        let manifest = reseal_manifest(&manifest).expect("the sample is a manifest");
        let (folder, model) = model_with("versions", &manifest);
        put_frame(folder.path(), bytes);
        read_version(&model)
    },
    seeds: || vec![sample_frame()],
};

/// The reader of the log of a pointer.
pub const POINTER_MOVES: Target = Target {
    name: "pointer_moves",
    read: |bytes| {
        let (_folder, model) = model_with(&format!("pointers/{STABLE}"), bytes);
        let last = model.pointer(STABLE);
        let _ = model.pointers();
        last.is_ok() && model.moves(STABLE, None, 10).is_ok()
    },
    seeds: || {
        let first = json!({
            "number": 1,
            "to": { "version": 1, "chain": "ab".repeat(32) },
            "from": 2,
            "kind": "promote",
            "at_ms": 1_800_000_000_000_u64,
            "by": "operator",
            "note": "a note",
        });
        vec![serde_json::to_vec_pretty(&first).expect("a move can be written")]
    },
};

/// The reader of side tables, and the encoder that a server makes from the side tables.
pub const SIDE_TABLES: Target = Target {
    name: "side_tables",
    read: |bytes| {
        let schema = schema();
        let table = read_side(&schema, Bytes::copy_from_slice(bytes));
        let Ok(table) = table else { return false };
        Encoder::new(&schema, &Statistics::default(), &[Arc::new(table)]).is_ok()
    },
    seeds: || {
        let id = FeatureKey::from_u64;
        let mut index = SideIndex::default();
        for key in [9, 3, 7] {
            index.push(id(key)).expect("the keys differ");
        }
        let lists = KeyColumn::ragged(vec![0, 2, 2, 3], vec![id(1), id(2), id(3)]);
        let columns = vec![
            (0, SideColumn::Keys(vec![id(4), id(5), id(6)])),
            (1, SideColumn::Lists(lists)),
            (2, SideColumn::Numbers(vec![0.5, f64::NAN, -3.0])),
        ];
        let table = SideTable { index: Arc::new(index), columns };
        vec![write_side(&schema(), &table).expect("a side table can be written")]
    },
};

/// Reads version 1 as servers do, and returns whether it is valid.
fn read_version(model: &Model) -> bool {
    let Ok(manifest) = model.version(VersionId(1)) else { return false };
    let _ = (manifest.link(), manifest.published(), manifest.files(), manifest.layer.rows());
    manifest.frame.tables.iter().for_each(|table| drop(table.layout()));
    let _ = Schema::from_job(&manifest.frame.schema);
    model.chain(VersionId(1)).is_ok()
}

/// Writes a frame to the place that its hash gives.
fn put_frame(registry: &Path, bytes: &[u8]) {
    let name = format!("{}.json", blake3::hash(bytes).to_hex());
    let place = registry.join("m/files").join(&name[..2]);
    fs::create_dir_all(&place).expect("folders can be made");
    fs::write(place.join(name), bytes).expect("a file can be written");
}

/// Returns a model in a new registry. The first numbered object of the given kind has these bytes.
fn model_with(kind: &str, bytes: &[u8]) -> (TempDir, Model) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let place = format!("m/{kind}/{:014}/{:03}/{:020}.json", 0, 0, 1);
    let place: PathBuf = folder.path().join(place);
    fs::create_dir_all(place.parent().expect("it has folders")).expect("folders can be made");
    fs::write(&place, bytes).expect("a file can be written");
    let url = folder.path().display().to_string();
    let registry = Registry::open(&url, Files::new(), Arc::new(SystemClock::new()));
    let model = registry.and_then(|registry| registry.model("m"));
    (folder, model.expect("the folder is a registry"))
}

fn schema() -> Schema {
    let job = "
        [features.zip]
        kind = 'id'
        side = 's'
        [features.tags]
        kind = 'ids'
        side = 's'
        [features.age]
        kind = 'numeric'
        side = 's'
        missing = 0
        [labels.y]
        [side.s]
        path = 's.csv'
        key = 'k'
    ";
    let job: toml::Table = job.parse().expect("the sample is TOML");
    Schema::from_job(&job.into()).expect("the sample is a schema")
}

/// Returns a file of a version with this name.
fn named(kind: &str) -> Value {
    let hash = blake3::hash(kind.as_bytes()).to_hex();
    json!({ "kind": kind, "blake3": hash.as_str(), "bytes": 1000 })
}

/// Returns the contents of a frame.
fn frame_fields() -> Value {
    let initializer = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let segment = SegmentSpec::new("s", 4, initializer, OptimizerSpec::Sgd { lr: 0.1 });
    let job: toml::Table = schema().to_job().into_iter().collect();
    json!({
        "schema_hash": blake3::hash(b"schema").to_hex().as_str(),
        "schema": job,
        "tables": [TableSpec::new("u", vec![segment])],
        "statistics": {},
        "graph": named("json"),
        "settings": { "lanes": 8, "tile_rows": 256 },
        "sides": [named("arrow")],
    })
}

fn sample_frame() -> Vec<u8> {
    serde_json::to_vec(&frame_fields()).expect("a frame can be written")
}

/// Returns the fields that manifests of both formats have.
fn common_fields(format: u32) -> Value {
    json!({
        "format": format,
        "model": "m",
        "version": 1,
        "parent": null,
        "chain": "",
        "published_ms": 1_800_000_000_000_u64,
        "hash": "",
        "dense": named("safetensors"),
        "parity": named("json"),
        "origin": {
            "run": "one",
            "step": 9,
            "cursor": { "epoch": 0, "row": 100 },
            "dirty_epoch": 1,
            "metrics": { "valid_auc": 0.75 },
        },
    })
}

/// Returns a manifest of format 1 without the optional fields.
fn inline_manifest() -> Value {
    let file = |name: &str| json!({ "blake3": blake3::hash(name.as_bytes()).to_hex().as_str(), "bytes": 1000 });
    let layer = json!({
        "tables": [{
            "table": "u",
            "segments": [["s", 4]],
            "rows": 10,
            "tombstones": 1,
            "parts": [{ "file": file("part"), "rows": 10, "first_entry": 0, "bits": 2 }],
        }],
        "directory": file("directory"),
    });
    with(with(common_fields(1), frame_fields()), json!({ "layer": layer }))
}

/// Returns a manifest of format 2 with a pack, which names a frame with these bytes.
fn referring_manifest(frame: &[u8]) -> Value {
    let hash = blake3::hash(frame).to_hex();
    let pack = blake3::hash(b"pack").to_hex();
    let more = json!({
        "frame": { "kind": "json", "blake3": hash.as_str(), "bytes": frame.len() },
        "pack": { "blake3": pack.as_str(), "bytes": 4096, "rows": 10, "tombstones": 1 },
    });
    with(common_fields(2), more)
}

/// Returns an object with the fields of two.
fn with(mut one: Value, other: Value) -> Value {
    if let (Some(one), Value::Object(other)) = (one.as_object_mut(), other) {
        one.extend(other);
    }
    one
}
