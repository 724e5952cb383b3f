//! Private keys, which sign, and the ids of public keys.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};
use zillion_device::Files;

use crate::error::{Error, Result};
use crate::identities::read_text;
use crate::token::{from_hex, to_hex};

/// The bytes that come before the 32 bytes of the key in a SubjectPublicKeyInfo of ed25519 (RFC
/// 8410).
const PUBLIC_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The id of a public key: the first 16 bytes of its BLAKE3 hash, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl KeyId {
    /// Returns the id of a public key.
    pub(crate) fn of(public: &[u8; 32]) -> Self {
        Self(to_hex(&blake3::hash(public).as_bytes()[..16]))
    }

    /// Reads the file of a private or a public key. Returns the id of the key and the kind of the
    /// file. A private key and its public key have the same id.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains no ed25519 key.
    pub fn load(path: &Path) -> Result<(Self, KeyKind)> {
        let text = read_text(path)?;
        if let Some(public) = parse_public_pem(&text) {
            return Ok((Self::of(&public), KeyKind::Public));
        }
        if from_pem("PRIVATE KEY", &text).is_some() {
            return Ok((SigningKey::parse(&text, path)?.id(), KeyKind::Private));
        }
        let reason =
            "the file is not an ed25519 key in PEM; make a pair of keys with `zillion key new`";
        Err(Error::invalid(path, reason))
    }
}

/// The kind of the key in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A private key, which signs.
    Private,
    /// A public key, which verifies.
    Public,
}

/// A signature, with the id of the key that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The id of the public key.
    pub key: KeyId,
    /// The 64 bytes of the ed25519 signature, in hexadecimal.
    pub ed25519: String,
}

impl Signature {
    /// Returns the 64 bytes of the signature, or `None` if the text is not the hexadecimal form of
    /// 64 bytes.
    pub(crate) fn bytes(&self) -> Option<[u8; 64]> {
        from_hex(&self.ed25519)
    }
}

/// A private key that signs versions and pointer moves.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: [u8; 32],
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Creates a key and writes it to two new files. The private key goes to `private`, which only
    /// its owner can read. The public key goes to `public`.
    ///
    /// # Errors
    /// Returns an error if one of the files already exists or cannot be written.
    pub fn create(private: &Path, public: &Path, files: &Files) -> Result<Self> {
        for path in [private, public] {
            if path.exists() {
                let reason =
                    "the file exists already, and a key is never overwritten; choose another name";
                return Err(Error::invalid(path, reason));
            }
        }
        let pkcs8 =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| Error::Random)?;
        let key = Self::from_pkcs8(pkcs8.as_ref(), private)?;
        write_private(private, &pem("PRIVATE KEY", pkcs8.as_ref()))?;
        files.write_bytes(public, public_pem(&key.public).as_bytes())?;
        Ok(key)
    }

    /// Reads a private key from a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains no ed25519 key.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&read_text(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let der = from_pem("PRIVATE KEY", text).ok_or_else(|| {
            Error::invalid(
                path,
                "the file is not a private key in PEM (PKCS#8); \
                                                 make a key with `zillion key new`",
            )
        })?;
        Self::from_pkcs8(&der, path)
    }

    fn from_pkcs8(der: &[u8], path: &Path) -> Result<Self> {
        // OpenSSL writes only the private key (version 1). *ring* also writes the public key.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map_err(|e| Error::invalid(path, format!(
                "the private key is not a valid ed25519 key ({e}); make a key with `zillion key \
                 new`")))?;
        let mut public = [0u8; 32];
        public.copy_from_slice(pair.public_key().as_ref());
        Ok(Self { pair, public })
    }

    /// Returns the id of the public key.
    pub fn id(&self) -> KeyId {
        KeyId::of(&self.public)
    }

    /// Returns the signature of the bytes of a statement.
    pub fn sign(&self, statement: &[u8]) -> Signature {
        Signature { key: self.id(), ed25519: to_hex(self.pair.sign(statement).as_ref()) }
    }

    /// Returns whether `signatures` contains the signature of the statement by this key. The key
    /// and the statement determine the bytes of an ed25519 signature, so the function signs again
    /// and compares.
    pub fn has_signed(&self, statement: &[u8], signatures: &[Signature]) -> bool {
        signatures.contains(&self.sign(statement))
    }
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::file("write", path))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(Error::file("write", path))
}

/// Writes a public key in PEM.
pub(crate) fn public_pem(public: &[u8; 32]) -> String {
    pem("PUBLIC KEY", &[&PUBLIC_PREFIX[..], public].concat())
}

/// Reads a public key from PEM. Returns `None` if the text does not contain an ed25519 key.
pub(crate) fn parse_public_pem(text: &str) -> Option<[u8; 32]> {
    let der = from_pem("PUBLIC KEY", text)?;
    der.strip_prefix(&PUBLIC_PREFIX[..])?.try_into().ok()
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn from_pem(label: &str, text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body: String = body.split_whitespace().collect();
    STANDARD.decode(body).ok()
}
