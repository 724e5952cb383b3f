//! The check of a pointer's last move by a reader with trusted keys: its signature, its place in
//! the order of moves, its version, and its validity.

use std::path::Path;

use zillion_device::Files;

use crate::error::{Error, Result};
use crate::model::{Model, check_name};
use crate::pointer::PointerMove;
use crate::version::VersionManifest;

impl Model {
    /// Returns the same model with a memory of pointer moves in the folder of a cache, which is
    /// used if the registry was opened with trusted keys. A move with a lower number than one that
    /// was taken before is refused, also after a restart.
    #[must_use]
    pub fn with_memory(&self, cache: &Path, files: Files) -> Self {
        let folder = cache.join(&self.name).join("pointers");
        Self { trust: self.trust.clone().with_memory(folder, files), ..self.clone() }
    }

    /// Returns whether this model may continue a version and point to it: always without a signer,
    /// otherwise if the signer signed the version itself.
    pub fn is_own(&self, manifest: &VersionManifest) -> bool {
        self.trust.is_own(manifest)
    }

    /// Checks the last move of a pointer, if there are trusted keys: its signature, its number
    /// against the moves that were taken before, the hash of the version that it names, and the end
    /// of its validity.
    pub(crate) fn check_last_move(&self, pointer: &str, entry: &PointerMove) -> Result<()> {
        if !self.trust.has_keys() {
            return Ok(());
        }
        self.trust.check_move(&self.name, pointer, entry)?;
        let memory = self.trust.memory();
        let is_linked = match memory {
            Some(memory) => memory.take(&self.name, pointer, entry)?,
            None => false,
        };
        if !is_linked {
            self.check_link(pointer, entry)?;
            if let Some(memory) = memory {
                memory.set_linked(pointer, entry);
            }
        }
        self.check_validity(pointer, entry)
    }

    /// Checks that the validity of a move has not ended.
    fn check_validity(&self, pointer: &str, entry: &PointerMove) -> Result<()> {
        match entry.expires_ms {
            Some(expires_ms) if self.now_ms() >= expires_ms => Err(Error::Expired {
                model: self.name.clone(),
                pointer: pointer.to_owned(),
                number: entry.number,
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether there are trusted keys, so that unsigned versions and moves are refused.
    pub fn has_trusted_keys(&self) -> bool {
        self.trust.has_keys()
    }

    /// Returns the last move of a pointer that this reader took, without the registry, if there are
    /// trusted keys and a memory. The move is checked again: its signature, and the end of its
    /// validity.
    ///
    /// # Errors
    /// Returns [`Error::Access`] if no trusted key signed the move, [`Error::Expired`] if its
    /// validity has ended, or an error if the memory cannot be read.
    pub fn recall_pointer(&self, pointer: &str) -> Result<Option<PointerMove>> {
        check_name("pointer", pointer)?;
        let Some(memory) = self.trust.memory().filter(|_| self.trust.has_keys()) else {
            return Ok(None);
        };
        let Some(entry) = memory.read(pointer)? else { return Ok(None) };
        self.trust.check_move(&self.name, pointer, &entry)?;
        self.check_validity(pointer, &entry)?;
        Ok(Some(entry))
    }

    /// Checks that the version of a move's number is the one that the move was signed for.
    fn check_link(&self, pointer: &str, entry: &PointerMove) -> Result<()> {
        let manifest = self.version(entry.to.version)?;
        if manifest.chain == entry.to.chain {
            return Ok(());
        }
        let reason = format!(
            "its hash is {}, but pointer `{pointer}` names the hash {}; move the pointer to a version of \
             the registry",
            manifest.chain, entry.to.chain
        );
        Err(Error::Chain { model: self.name.clone(), version: entry.to.version, reason })
    }
}
