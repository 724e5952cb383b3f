//! Signatures of versions and of pointer moves, with ed25519 (RFC 8032).
//!
//! Whoever can write to a bucket can write a version and move a pointer. A signature says that a
//! holder of a private key did it: a server with trusted keys takes nothing else. A pointer move is
//! signed with its number and an end of its validity, so that an old move cannot be shown again.
//!
//! Keys are PEM files in the usual forms: PKCS#8 for private keys, SubjectPublicKeyInfo for public
//! ones. OpenSSL reads and writes both.

mod key;
mod statement;
mod trust;

pub use key::{KeyId, KeyKind, Signature, SigningKey};
pub use statement::{pointer_statement, version_statement};
pub use trust::TrustedKeys;

#[cfg(test)]
mod tests;
