//! Proofs: notes of servers that they serve a version.
//!
//! A version that ends its server would end all servers if they loaded it at the same time. So a
//! server can wait until another one has served the version for the first time.
//!
//! A proof is an object of a few bytes, `<model>/proofs/<version>.json`. It is never removed, like
//! a manifest. A lost proof costs a wait and nothing else.

use crate::error::Result;
use crate::model::{Model, check_name};
use crate::version::VersionId;

impl Model {
    /// Notes that `server` serves a version. The first note stays.
    ///
    /// # Errors
    /// Returns an error if the name of the server is not allowed, or if the store fails.
    pub fn prove(&self, version: VersionId, server: &str) -> Result<()> {
        check_name("server", server)?;
        let proof = serde_json::json!({ "by": server, "at_ms": self.now_ms() });
        self.store.create(&self.proof_object(version), proof.to_string().into())?;
        Ok(())
    }

    /// Returns whether a server has served a version.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn is_proved(&self, version: VersionId) -> Result<bool> {
        Ok(self.store.head(&self.proof_object(version))?.is_some())
    }

    fn proof_object(&self, version: VersionId) -> String {
        format!("{}/proofs/{:020}.json", self.name, version.0)
    }
}
