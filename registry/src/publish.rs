//! The publication of a version, which writes the files first and the manifest last.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use zillion_device::mmap;
use zillion_feature::{Schema, Statistics};
use zillion_rows::TableSpec;
use zillion_rows::layer::{LayerFile, LayerManifest};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::version::{Link, Origin, ScoreSettings, VersionFile, VersionId, VersionManifest};

/// The contents of a version to publish.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The version that a delta changes, or `None` for a base.
    pub parent: Option<Link>,
    /// The schema of the rows.
    pub schema: Schema,
    /// The settings of the version's tables.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The manifest of the layer that contains the rows.
    pub layer: LayerManifest,
    /// The folder that contains the layer's files, or `None` if the registry has the files already.
    pub folder: Option<PathBuf>,
    /// The dense graph, as `Graph::to_json` of `zillion-nn` writes it.
    pub graph: Vec<u8>,
    /// The settings that divide a batch when the trainer computes scores.
    pub settings: ScoreSettings,
    /// The dense parameters, as safetensors.
    pub dense: Vec<u8>,
    /// The parity rows, as `ParityRows` of `zillion-scorer` writes them.
    pub parity: Vec<u8>,
    /// The side tables in the schema's order, as [`write_side`](crate::write_side) writes them.
    pub sides: Vec<Vec<u8>>,
    /// The run and the step of the training from which the version was made.
    pub origin: Origin,
}

impl Model {
    /// Publishes a version. The version becomes visible when its manifest is written, after all its
    /// files. The version is signed if the registry was opened with a signer. Files of the layer
    /// that other processes have written must be there.
    ///
    /// # Errors
    /// Returns an error if the parent is missing or in quarantine, has a different schema or run,
    /// or lacks the signature of a publisher that signs, or if the store fails. Returns
    /// [`Error::VersionTaken`] if another process published at the same time.
    pub fn publish(&self, draft: Draft) -> Result<VersionManifest> {
        self.publish_after(None, draft)
    }

    /// Publishes a version like [`Model::publish`], given that `known` was published. If no other
    /// version was published since, the number of the new version is found with one request, which
    /// costs the same after any number of versions. The caller knows that the parent is not in
    /// quarantine: its pointer stands on it or has never left its chain.
    ///
    /// # Errors
    /// Returns the errors of [`Model::publish`].
    pub fn publish_after(&self, known: Option<VersionId>, draft: Draft) -> Result<VersionManifest> {
        let schema = toml::Value::Table(draft.schema.to_job().into_iter().collect());
        let schema_hash = hash_schema(&schema);
        self.check_parent(&draft, &schema_hash)?;
        if let (None, Some(link)) = (known, &draft.parent) {
            self.check_usable(link.version)?;
        }
        let mut objects = match &draft.folder {
            Some(folder) => self.layer_objects(&draft.layer, folder)?,
            None => {
                self.check_written(&draft.layer)?;
                Vec::new()
            }
        };
        let mut put = |kind: &str, bytes: Vec<u8>| -> VersionFile {
            let file = VersionFile::of(kind, &bytes);
            objects.push((self.file_object(&file.name()), Bytes::from(bytes)));
            file
        };
        let graph = put("json", draft.graph);
        let dense = put("safetensors", draft.dense);
        let parity = put("json", draft.parity);
        let sides = draft.sides.into_iter().map(|side| put("arrow", side)).collect();
        self.store.put_all(objects)?;
        let last = match known {
            Some(known) => self.versions.last_since(known.0)?,
            None => self.versions.last()?,
        };
        let version = VersionId(self.versions.next(last)?);
        let mut manifest = VersionManifest {
            format: 0,
            model: self.name.clone(),
            version,
            parent: draft.parent,
            chain: String::new(),
            published_ms: self.now_ms(),
            hash: String::new(),
            schema_hash,
            schema,
            tables: draft.tables,
            statistics: draft.statistics,
            layer: draft.layer,
            graph,
            settings: draft.settings,
            dense,
            parity,
            sides,
            origin: draft.origin,
            signatures: Vec::new(),
        }
        .seal();
        self.trust.sign_version(&mut manifest);
        if self.versions.create(version.0, manifest.to_bytes())? {
            Ok(manifest)
        } else {
            Err(Error::VersionTaken { model: self.name.clone(), version })
        }
    }

    /// Maps the files of a layer, and returns them with the names of their objects.
    fn layer_objects(&self, layer: &LayerManifest, folder: &Path) -> Result<Vec<(String, Bytes)>> {
        let object = |file: &LayerFile| {
            let path = folder.join(file.name());
            let bytes = mmap::map(&path)?;
            if bytes.len() as u64 != file.bytes {
                let reason =
                    format!("the file has {} bytes instead of {}", bytes.len(), file.bytes);
                return Err(Error::File { path, reason });
            }
            Ok((self.file_object(&file.name()), bytes))
        };
        layer.files().map(object).collect()
    }

    /// Checks that the store has the files of a layer, which other processes have written.
    fn check_written(&self, layer: &LayerManifest) -> Result<()> {
        let objects: Vec<String> =
            layer.files().map(|file| self.file_object(&file.name())).collect();
        let heads = self.store.heads(&objects)?;
        for ((file, object), there) in layer.files().zip(objects).zip(heads) {
            if there.is_none_or(|there| there.bytes != file.bytes) {
                let path = self.store.local_path(&object).unwrap_or_else(|| object.into());
                let reason = "the file is missing, although the process that holds the rows has \
                              written it; make sure that it writes to the same registry";
                return Err(Error::File { path, reason: reason.to_owned() });
            }
        }
        Ok(())
    }

    fn check_parent(&self, draft: &Draft, schema_hash: &str) -> Result<()> {
        let Some(link) = &draft.parent else { return Ok(()) };
        let parent = self.version(link.version)?;
        let refuse = |reason: String| {
            let (model, version) = (self.name.clone(), link.version);
            Err(Error::Chain { model, version, reason })
        };
        if parent.chain != link.chain {
            return refuse(
                "its hash in the registry differs from the hash of the delta's parent; publish a base"
                    .into(),
            );
        }
        if !self.is_own(&parent) {
            return refuse(
                "it has no signature of the key that signs the delta; publish a base".into(),
            );
        }
        if parent.schema_hash != schema_hash {
            return refuse(
                "its schema differs from the schema of the delta; publish a base".into(),
            );
        }
        if parent.origin.run != draft.origin.run {
            return refuse(
                "its training run differs from the run of the delta; publish a base".into(),
            );
        }
        Ok(())
    }
}

fn hash_schema(schema: &toml::Value) -> String {
    let text = serde_json::to_vec(schema)
        .expect("a job's section is plain data with text keys, which JSON can always hold");
    blake3::hash(&text).to_hex().to_string()
}
