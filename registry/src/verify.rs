//! Verification, which reads all files of a version and of its ancestors and reports the first
//! problem.

use zillion_device::{DeviceError, Files};
use zillion_rows::layer::{LayerFile, LayerPack, Throttle, Unthrottled, verify_layer};

use crate::cache::Cache;
use crate::error::{Error, Result, describe_other_bytes};
use crate::model::Model;
use crate::reference::VersionId;
use crate::version::{VersionLayer, VersionManifest};

/// The numbers of versions, files and rows that were verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of versions in the chain.
    pub versions: u64,
    /// The number of files of these versions.
    pub files: u64,
    /// The number of bytes of these files.
    pub bytes: u64,
    /// The number of rows and tombstones in the layers of these versions.
    pub rows: u64,
}

impl Model {
    /// Verifies a version and its ancestors, the base first. Checks the chain of hashes, the bytes
    /// of every file, the order of keys, and the directories. Calls `seen` before each version.
    ///
    /// # Errors
    /// Returns an error that names the first version, file or row with a problem.
    pub fn verify(
        &self,
        version: VersionId,
        mut seen: impl FnMut(&VersionManifest),
    ) -> Result<Verified> {
        let mut sum = Verified::default();
        for version in self.chain(version)? {
            seen(&version);
            self.verify_one(&version, &mut Unthrottled)?;
            sum.versions += 1;
            sum.rows += version.layer.rows();
            for (_, file) in version.files() {
                sum.files += 1;
                sum.bytes += file.bytes;
            }
        }
        Ok(sum)
    }

    fn verify_one(&self, version: &VersionManifest, pace: &mut dyn Throttle) -> Result<()> {
        if self.store.is_remote() {
            return self.verify_remote(version, pace);
        }
        let place = |name: &str| {
            let object = self.file_object(name);
            self.store.local_path(&object).unwrap_or_else(|| object.into())
        };
        // The verifier of the layer hashes the layer's own files in place.
        for (name, file) in &version.own_files() {
            let refuse = |reason: String| Error::File { path: place(name), reason };
            let bytes = self.store.get(&self.file_object(name))?;
            check_bytes(&bytes.ok_or_else(|| refuse("the file is missing".into()))?, file)
                .map_err(refuse)?;
        }
        match &version.layer {
            VersionLayer::Listed(layer) => {
                Ok(verify_layer(&place, layer, &version.layouts(), pace)?)
            }
            VersionLayer::Packed(pack) => self.verify_pack(pack, version, pace),
        }
    }

    /// Verifies a layer in a pack: the hash of the pack, and the files in it.
    fn verify_pack(
        &self,
        pack: &LayerPack,
        version: &VersionManifest,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let pack = self.read_pack(pack)?;
        Ok(verify_layer(&pack, pack.layer(), &version.layouts(), pace)?)
    }

    /// Verifies a version in a bucket. Fetches its files into a temporary cache, which verifies
    /// their hashes. Then verifies the layer there.
    fn verify_remote(&self, version: &VersionManifest, pace: &mut dyn Throttle) -> Result<()> {
        // Files that cannot be removed are left to the cleaning of the temporary folder.
        let scratch = tempfile::tempdir()
            .map_err(|e| DeviceError::file("create a folder in", &std::env::temp_dir(), e))?;
        let cache = Cache::open(scratch.path(), &self.name, Files::new().scratch())?;
        for (name, file) in version.files() {
            cache.read(self, &name, &file, pace)?;
        }
        match &version.layer {
            VersionLayer::Listed(layer) => {
                Ok(verify_layer(cache.folder(), layer, &version.layouts(), pace)?)
            }
            VersionLayer::Packed(pack) => self.verify_pack(pack, version, pace),
        }
    }
}

fn check_bytes(bytes: &[u8], file: &LayerFile) -> Result<(), String> {
    let hash = blake3::hash(bytes).to_hex();
    if hash.as_str() == file.blake3 && bytes.len() as u64 == file.bytes {
        return Ok(());
    }
    Err(describe_other_bytes(bytes.len() as u64, &hash, file.bytes))
}
