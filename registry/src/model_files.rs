//! The files of a model's versions in the store: reading them, and checking that they are there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use zillion_rows::layer::{LayerFile, LayerManifest, LayerPack, OpenPack};

use crate::error::{Error, Result, describe_other_bytes};
use crate::model::Model;
use crate::reference::{VersionFile, VersionId};
use crate::version::{VersionLayer, VersionManifest};

impl Model {
    /// Returns the manifest of a version's layer. Reads the pack if the layer is in one.
    ///
    /// # Errors
    /// Returns [`Error::File`] if the pack is missing or differs from the published one.
    pub fn layer(&self, version: &VersionManifest) -> Result<LayerManifest> {
        match &version.layer {
            VersionLayer::Listed(layer) => Ok(layer.clone()),
            VersionLayer::Packed(pack) => Ok(self.read_pack(pack)?.layer().clone()),
        }
    }

    /// Reads a file of a version into memory, and verifies its hash.
    ///
    /// # Errors
    /// Returns [`Error::File`] if the file is missing or differs from the published one.
    pub fn read_file(&self, file: &VersionFile) -> Result<Bytes> {
        let (name, file) = file.entry();
        self.read_object(&name, &file).map(|(_, bytes)| bytes)
    }

    /// Reads a pack from the store, and verifies its hash.
    pub(crate) fn read_pack(&self, pack: &LayerPack) -> Result<OpenPack> {
        let (path, bytes) = self.read_object(&pack.name(), &pack.file())?;
        Ok(OpenPack::open(path, pack, bytes)?)
    }

    /// Reads the object of a file into memory, and verifies its hash. Returns it with its place.
    fn read_object(&self, name: &str, file: &LayerFile) -> Result<(PathBuf, Bytes)> {
        let object = self.file_object(name);
        let path = self.store.local_path(&object).unwrap_or_else(|| object.clone().into());
        let refuse = |reason: String| Error::File { path: path.clone(), reason };
        let bytes = self.store.get_at_most(&object, file.bytes)?;
        let bytes = bytes.ok_or_else(|| refuse("the file is missing".to_owned()))?;
        let hash = blake3::hash(&bytes).to_hex();
        if hash.as_str() != file.blake3 || bytes.len() as u64 != file.bytes {
            return Err(refuse(describe_other_bytes(bytes.len() as u64, &hash, file.bytes)));
        }
        Ok((path, bytes))
    }

    /// Checks that the store has every file of a version and of its ancestors, and that their sizes
    /// are correct.
    ///
    /// # Errors
    /// Returns [`Error::Chain`] if the chain is broken. Returns [`Error::File`] for the first file
    /// that is missing or has another size.
    pub fn check_files(&self, version: VersionId) -> Result<()> {
        let mut seen = BTreeSet::new();
        let mut wanted = Vec::new();
        for manifest in self.chain(version)? {
            for (name, file) in manifest.files() {
                if seen.insert(name.clone()) {
                    wanted.push((manifest.version, name, file.bytes));
                }
            }
        }
        self.check_some_files(version, &wanted)
    }

    /// Checks that the store has `files`, some of the files that `version` needs, and that their
    /// sizes are correct. A file is given by the version that it belongs to, its name and its
    /// number of bytes.
    ///
    /// # Errors
    /// Returns [`Error::File`] for the first file that is missing or has another size.
    pub fn check_some_files(
        &self,
        version: VersionId,
        files: &[(VersionId, String, u64)],
    ) -> Result<()> {
        let objects: Vec<String> =
            files.iter().map(|(_, name, _)| self.file_object(name)).collect();
        let heads = self.store.heads(&objects)?;
        for (((of, _, bytes), object), there) in files.iter().zip(objects).zip(heads) {
            if there.is_none_or(|there| there.bytes != *bytes) {
                let path = self.store.local_path(&object).unwrap_or_else(|| object.into());
                let reason = format!(
                    "the file is missing, because it was lost or removed by `zillion model gc` \
                     (it belongs to version {of}, which version {version} needs)"
                );
                return Err(Error::File { path, reason });
            }
        }
        Ok(())
    }
}
