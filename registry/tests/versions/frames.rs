//! Tests of what versions share: frames, dense parameters, and the packs of deltas.

use zillion_registry::VersionLayer;

use super::*;

/// Returns the names of the files in the registry, without their folders.
fn names(fixture: &Fixture) -> BTreeSet<String> {
    let files = fixture.registry_path().join("clicks/files");
    let shelves = std::fs::read_dir(files).unwrap().map(|shelf| shelf.unwrap().path());
    let names = shelves.flat_map(|shelf| std::fs::read_dir(shelf).unwrap());
    names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn manifest_path(fixture: &Fixture, version: u64) -> std::path::PathBuf {
    let name = format!("clicks/versions/{:014}/000/{version:020}.json", 0);
    fixture.registry_path().join(name)
}

#[test]
fn a_delta_is_two_files_beside_those_of_its_parent() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..2000, 1.0), None);
    let before = names(&fixture);
    let draft = Draft { dense: None, ..fixture.draft(&rows(5..9, 2.0), Some(&base)) };
    let delta = fixture.model().publish(Draft { parity: b"new".to_vec(), ..draft }).unwrap();
    let (VersionLayer::Listed(_), VersionLayer::Packed(pack)) = (&base.layer, &delta.layer) else {
        panic!("a base lists its files, and a delta is packed")
    };
    assert_eq!((pack.rows, pack.tombstones), (4, 0));
    assert_eq!((&delta.dense, &delta.frame_file), (&base.dense, &base.frame_file));
    let new: Vec<String> = names(&fixture).difference(&before).cloned().collect();
    let mut wanted = [pack.name(), delta.parity.name()];
    wanted.sort();
    assert_eq!(new, wanted);
    // The manifest of a delta says nothing that its parent has said.
    assert!(std::fs::metadata(manifest_path(&fixture, 2)).unwrap().len() < 1500);
    let model = fixture.model();
    assert_eq!(model.version(VersionId(2)).unwrap(), delta);
    assert_eq!(model.layer(&delta).unwrap().rows(), 4);
    assert_eq!(model.verify(VersionId(2), |_| ()).unwrap().rows, 2004);
    let mut cache = fixture.cache();
    let mut source = fixture.rows(&mut cache, VersionId(2)).unwrap();
    assert_reads(&mut source, (0..2100).map(key), &sum(&[rows(0..2000, 1.0), rows(5..9, 2.0)]));
}

#[test]
fn a_damaged_or_missing_frame_is_named() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..9, 1.0), None);
    let frame = base.frame_file.clone().unwrap();
    let path = fixture.registry_path().join("clicks/files").join(&frame.blake3[..2]);
    let path = path.join(frame.name());
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[7] ^= 1;
    std::fs::write(&path, bad).unwrap();
    let said = fixture.model().version(VersionId(1)).unwrap_err().to_string();
    assert!(said.contains(&frame.blake3) && said.contains("different hash"), "{said}");
    std::fs::remove_file(&path).unwrap();
    let said = fixture.model().version(VersionId(1)).unwrap_err().to_string();
    assert!(said.contains(&frame.blake3) && said.contains("missing"), "{said}");
    // A publisher that knows the frame writes it again, because a version needs it.
    let again = fixture.publish(&rows(0..9, 2.0), None);
    assert_eq!(again.frame_file, base.frame_file);
    assert_eq!(std::fs::read(&path).unwrap(), good);
}

#[test]
fn the_dense_model_of_a_version_has_the_kind_that_its_settings_name() {
    let fixture = Fixture::new();
    let draft = |parent: Option<&VersionManifest>| Draft {
        frame: Arc::new(fixture.frame(true)),
        ..fixture.draft(&rows(0..9, 1.0), parent)
    };
    let base = fixture.model().publish(draft(None)).unwrap();
    assert!(base.frame.settings.onnx && base.dense.kind == "onnx");
    let same = Draft { dense: None, ..draft(Some(&base)) };
    let delta = fixture.model().publish(same).unwrap();
    let read = |version: u64| fixture.model().version(VersionId(version));
    assert_eq!((read(1).unwrap(), read(2).unwrap()), (base.clone(), delta.clone()));
    assert_eq!(delta.dense, base.dense);
    assert_eq!(fixture.model().verify(VersionId(2), |_| ()).unwrap().rows, 18);
    // The parameters of a graph cannot come from a parent with an ONNX file.
    let mixed = Draft { dense: None, ..fixture.draft(&rows(0..1, 1.0), Some(&delta)) };
    let said = fixture.model().publish(mixed).unwrap_err().to_string();
    assert!(said.contains(".onnx") && said.contains("safetensors"), "{said}");
    let large = VersionFile { bytes: MAX_ONNX_BYTES + 1, ..base.dense.clone() };
    for (dense, problem) in [
        (VersionFile { kind: "safetensors".to_owned(), ..base.dense.clone() }, "the kind onnx"),
        (large, "a server takes at most"),
    ] {
        let wrong = VersionManifest { dense, ..base.clone() }.seal();
        let bytes = serde_json::to_vec_pretty(&wrong).unwrap();
        std::fs::write(manifest_path(&fixture, 1), bytes).unwrap();
        let said = read(1).unwrap_err().to_string();
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn a_delta_stands_on_a_version_of_the_first_format() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..50, 1.0), None);
    // The first format has the contents of the frame in the manifest.
    let first = VersionManifest { frame_file: None, ..base.clone() }.seal();
    std::fs::write(manifest_path(&fixture, 1), serde_json::to_vec_pretty(&first).unwrap()).unwrap();
    let model = fixture.model();
    assert_eq!(model.version(VersionId(1)).unwrap(), first);
    assert_eq!(serde_json::to_value(&first).unwrap()["format"], 1);
    let delta = fixture.publish(&rows(3..5, 2.0), Some(&first));
    assert_eq!(serde_json::to_value(&delta).unwrap()["format"], 2);
    let mut cache = fixture.cache();
    let mut source = fixture.rows(&mut cache, VersionId(2)).unwrap();
    assert_reads(&mut source, (0..60).map(key), &sum(&[rows(0..50, 1.0), rows(3..5, 2.0)]));
}

#[test]
fn a_manifest_with_the_fields_of_another_format_is_refused() {
    let fixture = Fixture::new();
    fixture.publish(&rows(0..9, 1.0), None);
    let path = manifest_path(&fixture, 1);
    let good: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (field, value, words) in [
        ("format", serde_json::json!(3), "format 3"),
        ("format", serde_json::json!(1), "lacks the field"),
        ("settings", serde_json::json!({ "lanes": 1, "tile_rows": 1 }), "has the field `settings`"),
        ("layer", serde_json::Value::Null, "needs either a layer"),
        ("unknown", serde_json::json!(1), "unknown field `unknown`"),
    ] {
        let mut changed = good.clone();
        changed[field] = value;
        let bytes = serde_json::to_vec(&changed).unwrap();
        let bytes = zillion_registry::reseal_manifest(&bytes).unwrap_or(bytes);
        std::fs::write(&path, bytes).unwrap();
        let said = fixture.model().version(VersionId(1)).unwrap_err().to_string();
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_base_without_dense_parameters_is_refused() {
    let fixture = Fixture::new();
    let draft = Draft { dense: None, ..fixture.draft(&rows(0..9, 1.0), None) };
    let said = fixture.model().publish(draft).unwrap_err().to_string();
    assert!(said.contains("a base needs dense parameters"), "{said}");
}

#[test]
fn a_cache_loads_shared_frames_without_the_registry() {
    let fixture = Fixture::new();
    let base = fixture.publish(&rows(0..20, 1.0), None);
    let delta = fixture.publish(&rows(3..5, 2.0), Some(&base));
    let model = fixture.model();
    let mut cache = fixture.cache();
    let chain = cache.chain(&model, delta.version).unwrap();
    drop(cache.rows(&model, &chain, &fixture.workers, &mut Unthrottled).unwrap());
    cache.trim(&[&chain]).unwrap();
    std::fs::rename(fixture.registry_path(), fixture.folder.path().join("away")).unwrap();
    std::fs::create_dir(fixture.registry_path()).unwrap();
    let (model, mut cache) = (fixture.model(), fixture.cache());
    cache.set_offline(true);
    let chain = cache.chain(&model, delta.version).unwrap();
    assert_eq!(*chain[1], delta);
    let mut source = cache.rows(&model, &chain, &fixture.workers, &mut Unthrottled).unwrap();
    assert_reads(&mut source, (0..30).map(key), &sum(&[rows(0..20, 1.0), rows(3..5, 2.0)]));
}
