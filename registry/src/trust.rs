//! Signatures of versions and pointer moves: the key that signs them, and the check that refuses
//! what no trusted key signed.
//!
//! The hash of a version says that its bytes fit together, and not who published it: whoever can
//! write to a bucket can write a whole version. With trusted keys, a version and a pointer move are
//! taken only with the signature of one of these keys. A signature holds for one number of one
//! model, or for one number of one pointer, so that a copy at another place is refused.
//!
//! # Invariants
//! - Every manifest that a [`Model`](crate::Model) with trusted keys returns, and every move by
//!   which it finds a version, was checked here.
//! - A number of a pointer's move that was taken once never goes back, see [`memory`].
//! - A publisher that signs continues only versions that it signed itself. So its signature never
//!   stands above rows that another writer put into the chain.

mod memory;
mod validity;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_access::{KeyId, SigningKey, TrustedKeys, version_statement};
use zillion_device::Files;

use self::memory::PointerMemory;
pub use self::validity::Validity;
use crate::error::Result;
use crate::manifest_scan::Scan;
use crate::pointer::PointerMove;
use crate::reference::VersionId;
use crate::version::VersionManifest;

/// A private key that signs versions and pointer moves, and the time for which its moves are valid.
#[derive(Debug)]
pub struct Signer {
    key: SigningKey,
    validity: Option<Validity>,
}

impl Signer {
    /// Reads a private key. Without a validity, moves are valid for ever.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or holds no private key.
    pub fn load(key: &Path, validity: Option<Validity>) -> Result<Self> {
        Ok(Self { key: SigningKey::load(key)?, validity })
    }

    /// Returns the id of the key.
    pub fn id(&self) -> KeyId {
        self.key.id()
    }
}

/// The keys of a registry: those that are trusted, the one that signs, and the memory of moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    keys: Option<Arc<TrustedKeys>>,
    signer: Option<Arc<Signer>>,
    memory: Option<Arc<PointerMemory>>,
}

impl Trust {
    #[must_use]
    pub(crate) fn with_keys(self, keys: TrustedKeys) -> Self {
        Self { keys: Some(Arc::new(keys)), ..self }
    }

    #[must_use]
    pub(crate) fn with_signer(self, signer: Signer) -> Self {
        Self { signer: Some(Arc::new(signer)), ..self }
    }

    #[must_use]
    pub(crate) fn with_memory(self, folder: PathBuf, files: Files) -> Self {
        Self { memory: Some(Arc::new(PointerMemory::new(folder, files))), ..self }
    }

    /// Returns whether there are trusted keys, so that unsigned objects are refused.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns the memory of moves, if there is one.
    pub(crate) fn memory(&self) -> Option<&PointerMemory> {
        self.memory.as_deref()
    }

    /// Checks that a trusted key signed a version, if there are trusted keys.
    pub(crate) fn check_version(&self, manifest: &VersionManifest) -> Result<()> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let subject = format!("version {} of model `{}`", manifest.version, manifest.model);
        Ok(keys.verify(&subject, &statement(manifest), &manifest.signatures)?)
    }

    /// Checks that a trusted key signed a version, before its manifest is parsed.
    pub(crate) fn check_scan(&self, model: &str, version: VersionId, scan: &Scan) -> Result<()> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let subject = format!("version {version} of model `{model}`");
        let statement = version_statement(model, version.0, &scan.chain);
        Ok(keys.verify(&subject, &statement, &scan.signatures)?)
    }

    /// Returns whether there is a key that signs.
    pub(crate) fn has_signer(&self) -> bool {
        self.signer.is_some()
    }

    /// Returns whether the signer or a trusted key signed a move.
    pub(crate) fn stands_by(&self, model: &str, pointer: &str, entry: &PointerMove) -> bool {
        let is_own = self.signer.as_ref().is_some_and(|signer| {
            signer.key.has_signed(&entry.statement(model, pointer), &entry.signatures)
        });
        is_own || (self.has_keys() && self.check_move(model, pointer, entry).is_ok())
    }

    /// Checks that a trusted key signed a move, if there are trusted keys. The end of the move's
    /// validity is not looked at, because the log of a pointer holds moves that are over.
    pub(crate) fn check_move(&self, model: &str, pointer: &str, entry: &PointerMove) -> Result<()> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let subject = format!("move {} of pointer `{pointer}` of model `{model}`", entry.number);
        Ok(keys.verify(&subject, &entry.statement(model, pointer), &entry.signatures)?)
    }

    /// Returns whether this signer signed a version; always `true` without a signer.
    pub(crate) fn is_own(&self, manifest: &VersionManifest) -> bool {
        self.signer
            .as_ref()
            .is_none_or(|signer| signer.key.has_signed(&statement(manifest), &manifest.signatures))
    }

    /// Signs a version, if there is a key that signs.
    pub(crate) fn sign_version(&self, manifest: &mut VersionManifest) {
        if let Some(signer) = &self.signer {
            manifest.signatures = vec![signer.key.sign(&statement(manifest))];
        }
    }

    /// Signs a move and sets the end of its validity, if there is a key that signs.
    pub(crate) fn sign_move(&self, model: &str, pointer: &str, entry: &mut PointerMove) {
        if let Some(signer) = &self.signer {
            entry.expires_ms = signer.validity.map(|validity| validity.end_ms(entry.at_ms));
            entry.signatures = vec![signer.key.sign(&entry.statement(model, pointer))];
        }
    }

    /// Returns whether a pointer that points to the wanted version already needs another move: one
    /// with this signer's signature, or with a later end of its validity.
    pub(crate) fn renews(&self, model: &str, pointer: &str, last: &PointerMove) -> bool {
        self.signer.as_ref().is_some_and(|signer| {
            let statement = last.statement(model, pointer);
            signer.validity.is_some() || !signer.key.has_signed(&statement, &last.signatures)
        })
    }
}

fn statement(manifest: &VersionManifest) -> Vec<u8> {
    version_statement(&manifest.model, manifest.version.0, &manifest.chain)
}

#[cfg(test)]
mod tests;
