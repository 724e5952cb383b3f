//! The publication of a version, which writes the files first and the manifest last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use zillion_device::mmap;
use zillion_rows::layer::{LayerFile, LayerManifest, pack_layer};

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::model::Model;
use crate::new_frame::NewFrame;
use crate::origin::Origin;
use crate::reference::{ITEM_DELTA, ITEMS, Link, VersionFile, VersionId};
use crate::version::{VersionLayer, VersionManifest};

/// The items of a version to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftItems {
    /// The bytes of the file with all items.
    Whole(Vec<u8>),
    /// The bytes of a difference to the items of the parent.
    Delta(Vec<u8>),
    /// The items of the parent, which have not changed.
    Parent,
}

/// The contents of a version to publish.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The version that a delta changes, or `None` for a base.
    pub parent: Option<Link>,
    /// The contents that the version usually shares with its parent.
    pub frame: Arc<NewFrame>,
    /// The manifest of the layer that contains the rows.
    pub layer: LayerManifest,
    /// The folder that contains the layer's files, or `None` if the registry has the files already.
    pub folder: Option<PathBuf>,
    /// The dense parameters, as safetensors, or the ONNX model if the settings of the frame say so,
    /// or `None` if they are those of the parent.
    pub dense: Option<Vec<u8>>,
    /// The parity rows, as `ParityRows` of `zillion-scorer` writes them.
    pub parity: Vec<u8>,
    /// The vectors of the items that the version can retrieve, or `None` if it retrieves none.
    pub items: Option<DraftItems>,
    /// The run and the step of the training from which the version was made.
    pub origin: Origin,
}

impl Model {
    /// Publishes a version. The version becomes visible when its manifest is written, after all its
    /// files. The version is signed if the registry was opened with a signer. Files of the layer
    /// that other processes have written must be there.
    ///
    /// The files of a small delta are written as one file (see
    /// [`pack_layer`](zillion_rows::layer::pack_layer)). What the version shares with its parent is
    /// not written again.
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
    /// quarantine (its pointer stands on it or has never left its chain), and that the files of the
    /// parent exist.
    ///
    /// # Errors
    /// Returns the errors of [`Model::publish`].
    pub fn publish_after(&self, known: Option<VersionId>, draft: Draft) -> Result<VersionManifest> {
        let parent = self.read_checked_parent(&draft)?;
        if let (None, Some(parent)) = (known, &parent) {
            self.check_usable(parent.version)?;
        }
        let (layer, mut objects) = self.place_layer(&draft)?;
        let mut put = |kind: &str, bytes: Vec<u8>| -> VersionFile {
            let file = VersionFile::of(kind, &bytes);
            objects.push((self.file_object(&file.name()), Bytes::from(bytes)));
            file
        };
        let dense = match (draft.dense, &parent) {
            (Some(bytes), _) => put(draft.frame.frame.settings.dense_kind(), bytes),
            (None, Some(parent)) => parent.dense.clone(),
            (None, None) => {
                return Err(Error::Refused(
                    "a base needs dense parameters, because it has no parent whose parameters it could \
                     have; publish it with its parameters"
                        .to_owned(),
                ));
            }
        };
        // Readers would refuse the version, which must not become visible.
        draft.frame.frame.settings.check_dense(&dense).map_err(Error::Refused)?;
        let parity = put("json", draft.parity);
        let of_parent = parent.as_ref().and_then(|parent| parent.items.as_ref());
        let items = match (draft.items, of_parent) {
            (None, _) => None,
            // The files of the parent are there, so unchanged vectors are not written again.
            (Some(DraftItems::Parent), Some(known)) => Some(known.clone()),
            (Some(DraftItems::Whole(bytes)), of_parent) => match of_parent {
                Some(known) if *known == VersionFile::of(ITEMS, &bytes) => Some(known.clone()),
                _ => Some(put(ITEMS, bytes)),
            },
            (Some(DraftItems::Delta(bytes)), Some(_)) => Some(put(ITEM_DELTA, bytes)),
            (Some(DraftItems::Parent | DraftItems::Delta(_)), None) => {
                return Err(Error::Refused(
                    "a difference of items needs a parent with items; publish the whole items"
                        .to_owned(),
                ));
            }
        };
        let NewFrame { frame, file, files } = &*draft.frame;
        if !self.has_frame(parent.as_ref(), file, known.is_some())? {
            let files = files.iter();
            objects.extend(files.map(|(name, bytes)| (self.file_object(name), bytes.clone())));
        }
        self.store.put_all(objects)?;
        self.frames.insert(file.clone(), frame.clone());
        let last = match known {
            Some(known) => self.versions.last_since(known.0)?,
            None => self.versions.last()?,
        };
        let version = VersionId(self.versions.next(last)?);
        self.create_version(VersionManifest {
            model: self.name.clone(),
            version,
            parent: draft.parent,
            chain: String::new(),
            published_ms: self.now_ms(),
            hash: String::new(),
            frame: frame.clone(),
            frame_file: Some(file.clone()),
            layer,
            dense,
            parity,
            items,
            origin: draft.origin,
            signatures: Vec::new(),
        })
    }

    /// Seals, signs and writes the manifest of a new version.
    pub(crate) fn create_version(&self, manifest: VersionManifest) -> Result<VersionManifest> {
        let mut manifest = manifest.seal();
        self.trust.sign_version(&mut manifest);
        if self.versions.create(manifest.version.0, manifest.to_bytes())? {
            Ok(manifest)
        } else {
            let (model, version) = (self.name.clone(), manifest.version);
            Err(Error::VersionTaken { model, version })
        }
    }

    /// Returns whether the registry has the files of a frame. A version in use keeps them, so only
    /// the frame of the parent is known to be there.
    fn has_frame(
        &self,
        parent: Option<&VersionManifest>,
        file: &VersionFile,
        is_checked: bool,
    ) -> Result<bool> {
        let Some(parent) = parent.filter(|parent| parent.frame_file.as_ref() == Some(file)) else {
            return Ok(false);
        };
        if is_checked {
            return Ok(true);
        }
        let files = parent.frame_files();
        let objects: Vec<String> = files.iter().map(|(name, _)| self.file_object(name)).collect();
        let heads = self.store.heads(&objects)?.into_iter().zip(&files);
        Ok(heads
            .into_iter()
            .all(|(there, (_, file))| there.is_some_and(|there| there.bytes == file.bytes)))
    }

    /// Returns the layer of a draft as its manifest has it, and the objects to write for it.
    fn place_layer(&self, draft: &Draft) -> Result<(VersionLayer, Vec<(String, Bytes)>)> {
        let listed = || VersionLayer::Listed(draft.layer.clone());
        let Some(folder) = &draft.folder else {
            self.check_written(&draft.layer)?;
            return Ok((listed(), Vec::new()));
        };
        // A base keeps its files apart, so that any Arrow tool opens them.
        if draft.parent.is_some()
            && let Some((pack, bytes)) = pack_layer(folder, &draft.layer)?
        {
            let object = self.file_object(&pack.name());
            return Ok((VersionLayer::Packed(pack), vec![(object, bytes)]));
        }
        Ok((listed(), self.layer_objects(&draft.layer, folder)?))
    }

    /// Maps the files of a layer, and returns them with the names of their objects.
    pub(crate) fn layer_objects(
        &self,
        layer: &LayerManifest,
        folder: &Path,
    ) -> Result<Vec<(String, Bytes)>> {
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

    /// Reads the parent of a draft, and checks that the draft can stand on it.
    fn read_checked_parent(&self, draft: &Draft) -> Result<Option<VersionManifest>> {
        let Some(link) = &draft.parent else { return Ok(None) };
        let parent = self.version(link.version)?;
        let refuse = |reason: &str| {
            let (model, version, reason) = (self.name.clone(), link.version, reason.to_owned());
            Err(Error::Chain { model, version, reason })
        };
        if parent.chain != link.chain {
            return refuse(
                "its hash in the registry differs from the hash of the delta's parent; publish a base",
            );
        }
        if !self.is_own(&parent) {
            return refuse("it has no signature of the key that signs the delta; publish a base");
        }
        if parent.frame.schema_hash != draft.frame.frame.schema_hash {
            return refuse("its schema differs from the schema of the delta; publish a base");
        }
        let types = |frame: &Frame| frame.tables.iter().map(|t| t.published).collect::<Vec<_>>();
        if types(&parent.frame) != types(&draft.frame.frame) {
            return refuse(
                "its rows have another number type than those of the delta; publish a base",
            );
        }
        if parent.origin.run != draft.origin.run {
            return refuse("its training run differs from the run of the delta; publish a base");
        }
        Ok(Some(parent))
    }
}
