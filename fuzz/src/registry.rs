//! The targets of the crate `registry`: manifests of versions, moves of pointers, and side tables.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tempfile::TempDir;
use zillion_device::{Files, SystemClock};
use zillion_feature::{
    Encoder, FeatureKey, KeyColumn, Schema, SideColumn, SideIndex, SideTable, Statistics,
};
use zillion_registry::{
    Model, Registry, STABLE, VersionId, VersionManifest, read_side, write_side,
};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 3] = [&VERSION_MANIFESTS, &POINTER_MOVES, &SIDE_TABLES];

/// The reader of the manifest of a version. A writer of the bucket can compute the right hash for
/// any manifest. The target therefore seals a manifest again if it can be parsed.
pub const VERSION_MANIFESTS: Target = Target {
    name: "version_manifests",
    read: |bytes| {
        let sealed = serde_json::from_slice(bytes).map(|manifest: VersionManifest| manifest.seal());
        let sealed = sealed.and_then(|sealed| serde_json::to_vec(&sealed));
        let stored = sealed.unwrap_or_else(|_| bytes.to_vec());
        let (_folder, model) = model_with("versions", &stored);
        let Ok(manifest) = model.version(VersionId(1)) else { return false };
        let _ = (manifest.link(), manifest.published(), manifest.files(), manifest.layer.rows());
        manifest.tables.iter().for_each(|table| drop(table.layout()));
        let _ = Schema::from_job(&manifest.schema);
        model.chain(VersionId(1)).is_ok()
    },
    seeds: || {
        let manifest = sample_manifest().seal();
        vec![serde_json::to_vec_pretty(&manifest).expect("a manifest can be written")]
    },
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

/// Returns a manifest without the optional fields.
fn sample_manifest() -> VersionManifest {
    let hash = |name: &str| blake3::hash(name.as_bytes()).to_hex().to_string();
    let file = |name: &str| json!({ "blake3": hash(name), "bytes": 1000 });
    let named = |kind: &str| json!({ "kind": kind, "blake3": hash(kind), "bytes": 1000 });
    let initializer = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let segment = SegmentSpec::new("s", 4, initializer, OptimizerSpec::Sgd { lr: 0.1 });
    let job: toml::Table = schema().to_job().into_iter().collect();
    let manifest = json!({
        "format": 1,
        "model": "m",
        "version": 1,
        "parent": null,
        "chain": "",
        "published_ms": 1_800_000_000_000_u64,
        "hash": "",
        "schema_hash": hash("schema"),
        "schema": job,
        "tables": [TableSpec::new("u", vec![segment])],
        "statistics": {},
        "layer": {
            "tables": [{
                "table": "u",
                "segments": [["s", 4]],
                "rows": 10,
                "tombstones": 1,
                "parts": [{ "file": file("part"), "rows": 10, "first_entry": 0, "bits": 2 }],
            }],
            "directory": file("directory"),
        },
        "graph": named("json"),
        "settings": { "lanes": 8, "tile_rows": 256 },
        "dense": named("safetensors"),
        "parity": named("json"),
        "sides": [named("arrow")],
        "origin": {
            "run": "one",
            "step": 9,
            "cursor": { "epoch": 0, "row": 100 },
            "dirty_epoch": 1,
            "metrics": { "valid_auc": 0.75 },
        },
    });
    serde_json::from_value(manifest).expect("the sample is a manifest")
}
