//! Proofs: notes of servers that they serve a version.
//!
//! A version that ends its server would end all servers if they loaded it at the same time. So a
//! server can wait until another one has served the version for the first time.
//!
//! A proof is an object of a few bytes, `<model>/proofs/<version>-<hash>.json`. The hash is the
//! beginning of the version's chain hash, so that a proof holds for one version of one registry. It
//! stays as long as the manifest. A lost proof costs a wait and nothing else. Proofs are not
//! signed: they change when a version is loaded, and never which one.

use std::time::SystemTime;

use crate::error::Result;
use crate::model::{Model, check_name};
use crate::reference::{Link, VersionId};

/// The number of characters that the name of a proof takes from a chain hash.
const HASH_LETTERS: usize = 24;

impl Model {
    /// Notes that `server` serves a version. The first note stays.
    ///
    /// # Errors
    /// Returns an error if the name of the server is not allowed, or if the store fails.
    pub fn prove(&self, version: &Link, server: &str) -> Result<()> {
        check_name("server", server)?;
        let proof = serde_json::json!({
            "by": server,
            "at_ms": self.now_ms(),
            "chain": version.chain,
        });
        self.store.create(&self.proof_object(version), proof.to_string().into())?;
        Ok(())
    }

    /// Returns whether a server has served a version.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn is_proved(&self, version: &Link) -> Result<bool> {
        Ok(self.store.head(&self.proof_object(version))?.is_some())
    }

    /// Removes the proofs of the versions that `is_gone` selects, if `is_old` accepts the times of
    /// their writes.
    pub(crate) fn remove_proofs(
        &self,
        is_gone: impl Fn(VersionId) -> bool,
        is_old: impl Fn(SystemTime) -> bool,
    ) -> Result<()> {
        let folder = format!("{}/proofs", self.name);
        for object in self.store.list(&folder)?.objects {
            let version = object.name.split('-').next().and_then(|number| number.parse().ok());
            if version.is_some_and(|version| is_gone(VersionId(version))) && is_old(object.modified)
            {
                self.store.delete(&format!("{folder}/{}", object.name))?;
            }
        }
        Ok(())
    }

    /// Removes the proof of a version, if there is one.
    pub(crate) fn remove_proof(&self, version: &Link) -> Result<()> {
        Ok(self.store.delete(&self.proof_object(version))?)
    }

    fn proof_object(&self, version: &Link) -> String {
        let plain = |letter: &char| letter.is_ascii_hexdigit();
        let hash: String = version.chain.chars().filter(plain).take(HASH_LETTERS).collect();
        format!("{}/proofs/{:020}-{hash}.json", self.name, version.version.0)
    }
}
