//! The dense model of a version: the number type of its layers, or the ONNX file that takes their
//! place.

use std::sync::Arc;

use zillion_nn::{DenseType, Params};
use zillion_registry::{RoundedDense, VersionManifest};
use zillion_rows::layer::Throttle;

use super::engine::Engine;
use crate::error::{Error, Result};
use crate::onnx::OnnxModel;

/// Checks that a version whose dense model is an ONNX file can be computed. Other versions pass.
///
/// # Errors
/// Returns an error if this build has no ONNX Runtime, if a device is to compute the version, or if
/// dense layers are to be computed in another number type than f32.
pub(super) fn check_onnx(
    manifest: &VersionManifest,
    has_device: bool,
    dense: Option<DenseType>,
) -> Result<()> {
    if !manifest.frame.settings.onnx {
        return Ok(());
    }
    let refuse = |problem: &str| Err(refuse_onnx(manifest, problem));
    if !cfg!(feature = "onnx") {
        return refuse(
            "this program was built without ONNX (its feature `onnx`); build it with this feature \
             (docs/PYTHON.md), or publish a model whose operations a graph has",
        );
    }
    if has_device {
        return refuse("a device computes graphs alone; serve it on processors");
    }
    match dense.filter(|dense| !dense.is_exact()) {
        Some(dense) => refuse(&format!(
            "it is computed as it is, not in {dense}; set `dense` to \"f32\", or leave it out"
        )),
        None => Ok(()),
    }
}

/// Reads the dense model of a version: the parameters of the graph, and the ONNX model if it has
/// one.
///
/// # Errors
/// Returns an error if the bytes do not fit the graph, or if the ONNX model cannot be loaded.
pub(super) fn read_dense(
    engine: &Engine,
    manifest: &VersionManifest,
    bytes: &[u8],
    pace: &mut dyn Throttle,
) -> Result<(Arc<Params>, Option<Arc<OnnxModel>>)> {
    let specs = &engine.programs.graph().params;
    let Some(interface) = &engine.onnx else {
        let params = Params::from_safetensors_by_piece(specs, bytes, &mut || pace.piece())?;
        return Ok((Arc::new(params), None));
    };
    if !specs.is_empty() {
        return Err(refuse_onnx(
            manifest,
            "its graph has parameters, which no file holds; publish it again",
        ));
    }
    let loaded = OnnxModel::load(bytes, interface.clone()).map_err(|error| match error {
        Error::Onnx(problem) => refuse_onnx(manifest, &problem),
        other => other,
    })?;
    Ok((Arc::new(Params::init(specs, 0)), Some(Arc::new(loaded))))
}

fn refuse_onnx(manifest: &VersionManifest, problem: &str) -> Error {
    Error::Onnx(format!(
        "version {} of the model `{}` is not loaded, because its dense model is an ONNX file and \
         {problem}",
        manifest.version, manifest.model
    ))
}

/// Returns the number type that a version has chosen for its dense layers.
///
/// # Errors
/// Returns an error if this processor cannot compute products of the type.
pub(super) fn choose_dense(manifest: &VersionManifest) -> Result<DenseType> {
    let dense = published_dense(manifest);
    if !dense.is_available() {
        return Err(Error::Refused(format!(
            "version {} has dense layers in {dense}, and this processor does not have the \
             instructions for them; choose f32 or int8 in the settings of the server (`dense`)",
            manifest.version
        )));
    }
    Ok(dense)
}

/// Returns the number type in which a server computes the dense layers of a version, unless the
/// server chooses one itself.
pub fn published_dense(manifest: &VersionManifest) -> DenseType {
    match manifest.frame.settings.dense {
        None => DenseType::F32,
        Some(RoundedDense::Bf16) => DenseType::Bf16,
        Some(RoundedDense::Int8) => DenseType::Int8,
    }
}

#[cfg(test)]
mod tests {
    use zillion_registry::{VersionId, VersionLayer};
    use zillion_rows::layer::LayerPack;

    use super::*;

    /// Returns the manifest of a version whose dense model is an ONNX file, or a graph.
    fn manifest(onnx: bool) -> VersionManifest {
        let hash = "a".repeat(64);
        let file = |kind: &str| serde_json::json!({ "kind": kind, "blake3": hash, "bytes": 1 });
        let frame = serde_json::json!({
            "schema_hash": "", "schema": {}, "tables": [], "statistics": {}, "graph": file("json"),
            "settings": { "lanes": 8, "tile_rows": 256, "onnx": onnx }, "sides": [],
        });
        let pack = LayerPack { blake3: hash.clone(), bytes: 1, rows: 1, tombstones: 0 };
        let read = |file| serde_json::from_value(file).unwrap();
        VersionManifest {
            model: "clicks".to_owned(),
            version: VersionId(3),
            parent: None,
            chain: String::new(),
            published_ms: 0,
            hash: String::new(),
            frame: Arc::new(serde_json::from_value(frame).unwrap()),
            frame_file: None,
            layer: VersionLayer::Packed(pack),
            dense: read(file("onnx")),
            parity: read(file("json")),
            items: None,
            origin: Default::default(),
            signatures: Vec::new(),
        }
    }

    #[test]
    fn a_version_that_this_program_cannot_compute_is_refused_by_name() {
        let rounded = Some(DenseType::Int8);
        assert!(check_onnx(&manifest(false), true, rounded).is_ok());
        let refusal = |has_device, dense| match check_onnx(&manifest(true), has_device, dense) {
            Err(error) => error.to_string(),
            Ok(()) => String::new(),
        };
        let begins = "version 3 of the model `clicks` is not loaded";
        if cfg!(feature = "onnx") {
            assert_eq!(refusal(false, None), "");
            assert_eq!(refusal(false, Some(DenseType::F32)), "");
            let said = refusal(true, None);
            assert!(said.starts_with(begins) && said.contains("serve it on processors"), "{said}");
            let said = refusal(false, rounded);
            assert!(said.starts_with(begins) && said.contains("set `dense` to \"f32\""), "{said}");
        } else {
            let said = refusal(false, None);
            let remedy = "(its feature `onnx`); build it with this feature";
            assert!(said.starts_with(begins) && said.contains(remedy), "{said}");
        }
    }
}
