//! Signatures of versions and of pointer moves, with ed25519 (RFC 8032).
//!
//! Any program with write access to a bucket can write a version or move a pointer. A signature
//! proves that the writer has the private key. A server with trusted keys accepts only versions and
//! pointer moves that are signed with one of these keys. The signature of a pointer move covers its
//! number and its expiry time, so that an old move cannot be used again.
//!
//! Keys are stored in PEM files of the usual formats: PKCS#8 for private keys, and
//! SubjectPublicKeyInfo for public keys. OpenSSL can read and write both formats.

mod key;
mod statement;
mod trust;

pub use key::{KeyId, KeyKind, Signature, SigningKey};
pub use statement::{pointer_statement, version_statement};
pub use trust::TrustedKeys;

#[cfg(test)]
mod tests;
