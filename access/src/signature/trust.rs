//! The trusted keys, which are the public keys in one folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ring::signature::{ED25519, UnparsedPublicKey};
use zillion_device::Files;

use super::key::{KeyId, Signature, parse_public_pem, public_pem};
use crate::error::{Error, Result};
use crate::identities::read_text;

/// The public keys whose signatures are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedKeys {
    keys: BTreeMap<KeyId, [u8; 32]>,
}

impl TrustedKeys {
    /// Reads all files of a folder whose names end in `.pub`.
    ///
    /// # Errors
    /// Returns an error if the folder contains no key, or if such a file is not a public key.
    pub fn load(folder: &Path) -> Result<Self> {
        let mut keys = BTreeMap::new();
        for path in Self::files(folder)? {
            let public = read_public(&path)?;
            keys.insert(KeyId::of(&public), public);
        }
        if keys.is_empty() {
            let reason = "the folder has no trusted key (`*.pub`), so no version can be loaded; \
                          add a key with `zillion key trust`";
            return Err(Error::invalid(folder, reason));
        }
        Ok(Self { keys })
    }

    /// Lists the paths of the public keys in a folder, sorted.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).map_err(Error::file("read", folder))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut paths =
            paths.collect::<Result<Vec<_>, _>>().map_err(Error::file("read", folder))?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "pub"));
        paths.sort();
        Ok(paths)
    }

    /// Copies a public key into a folder of trusted keys. Returns the id of the key. The id is the
    /// name of the file, so a folder cannot contain a key twice.
    ///
    /// # Errors
    /// Returns an error if the file `key` is not a public key or if the folder cannot be written.
    pub fn add(key: &Path, folder: &Path, files: &Files) -> Result<KeyId> {
        let public = read_public(key)?;
        let id = KeyId::of(&public);
        files.create_dir(folder)?;
        files.write_bytes(folder.join(format!("{id}.pub")), public_pem(&public).as_bytes())?;
        Ok(id)
    }

    /// Returns the ids of the keys, sorted.
    pub fn ids(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.keys()
    }

    /// Checks that a trusted key has made one of the signatures of a statement. Error messages
    /// contain `subject`.
    ///
    /// # Errors
    /// Returns an error if there is no signature, if no trusted key has made one, or if the
    /// signature of a trusted key does not match the statement.
    pub fn verify(&self, subject: &str, statement: &[u8], signatures: &[Signature]) -> Result<()> {
        let untrusted =
            |reason: String| Err(Error::Untrusted { subject: subject.to_owned(), reason });
        if signatures.is_empty() {
            return untrusted(
                "there is no signature, but only signed versions and moves are accepted; sign it \
                 with a trusted key"
                    .to_owned(),
            );
        }
        for signature in signatures {
            let Some(key) = self.keys.get(&signature.key) else { continue };
            let matches = signature.bytes().is_some_and(|bytes| {
                UnparsedPublicKey::new(&ED25519, key).verify(statement, &bytes).is_ok()
            });
            return match matches {
                true => Ok(()),
                false => untrusted(format!(
                    "the signature with key {} does not match, because the object was changed or \
                     was copied from another place; restore the object, or sign a new one",
                    signature.key
                )),
            };
        }
        let made: Vec<String> =
            signatures.iter().map(|s| s.key.0.chars().take(40).collect()).collect();
        untrusted(format!(
            "no trusted key has signed it (it is signed with {}); sign with a trusted key, or \
             trust this key with `zillion key trust`",
            made.join(", ")
        ))
    }
}

fn read_public(path: &Path) -> Result<[u8; 32]> {
    parse_public_pem(&read_text(path)?).ok_or_else(|| {
        Error::invalid(
            path,
            "the file is not an ed25519 public key in PEM; remove it, or make a pair of keys with \
             `zillion key new`",
        )
    })
}
