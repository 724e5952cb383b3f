//! Proofs: notes of servers that they serve a version.
//!
//! A version that ends its server would end all servers if they loaded it at the same time. So a
//! server can wait until another one has served the version for the first time.
//!
//! A proof is an object of a few bytes, `<model>/proofs/<version>-<hash>.json`. The hash is the
//! beginning of the version's chain hash, so that a proof holds for one version of one registry. It
//! is never removed, like a manifest. A lost proof costs a wait and nothing else. Proofs are not
//! signed: they change when a version is loaded, and never which one.

use crate::error::Result;
use crate::model::{Model, check_name};
use crate::version::Link;

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

    fn proof_object(&self, version: &Link) -> String {
        let plain = |letter: &char| letter.is_ascii_hexdigit();
        let hash: String = version.chain.chars().filter(plain).take(HASH_LETTERS).collect();
        format!("{}/proofs/{:020}-{hash}.json", self.name, version.version.0)
    }
}
