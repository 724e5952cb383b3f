//! Reading everything that a version consists of, and saying what is wrong first.

use zillion_embedding::layer::{AtOnce, LayerFile, Pace, verify_layer};
use zillion_embedding::{TableLayout, TableSpec};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::version::{VersionId, VersionManifest};

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Versions of the chain.
    pub versions: u64,
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Keys in their layers.
    pub rows: u64,
}

impl Model {
    /// Verifies a version and all that it stands on, the base first: the chain of hashes, the bytes of every
    /// file, the order of keys, the directories. `seen` is called before each version.
    ///
    /// # Errors
    /// The first version, file and row that is wrong.
    pub fn verify(
        &self,
        version: VersionId,
        mut seen: impl FnMut(&VersionManifest),
    ) -> Result<Verified> {
        let mut sum = Verified::default();
        for version in self.chain(version)? {
            seen(&version);
            self.verify_one(&version, &mut AtOnce)?;
            sum.versions += 1;
            sum.rows += version.layer.rows();
            for (_, file) in version.files() {
                sum.files += 1;
                sum.bytes += file.bytes;
            }
        }
        Ok(sum)
    }

    fn verify_one(&self, version: &VersionManifest, pace: &mut dyn Pace) -> Result<()> {
        let place = |name: &str| {
            let object = self.file_object(name);
            self.store.local_path(&object).unwrap_or_else(|| object.into())
        };
        // The layer's own files are hashed by its verifier, in place.
        for (name, file) in version.files().iter().skip(version.layer.files().count()) {
            let refuse = |reason: String| Error::File { path: place(name), reason };
            let bytes = self.store.get(&self.file_object(name))?;
            check_bytes(&bytes.ok_or_else(|| refuse("the file is not there".into()))?, file)
                .map_err(refuse)?;
        }
        let layouts: Vec<TableLayout> = version.tables.iter().map(TableSpec::layout).collect();
        Ok(verify_layer(&place, &version.layer, &layouts, pace)?)
    }
}

fn check_bytes(bytes: &[u8], file: &LayerFile) -> Result<(), String> {
    let hash = blake3::hash(bytes).to_hex();
    if hash.as_str() == file.blake3 && bytes.len() as u64 == file.bytes {
        return Ok(());
    }
    Err(format!(
        "its {} bytes hash to {hash}, and {} bytes of another hash were published",
        bytes.len(),
        file.bytes
    ))
}
