//! Bearer tokens: random texts. The server stores only their hashes.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result};

/// The first letters of every token. Tools that scan source code find a published token by these
/// letters.
const PREFIX: &str = "zln_";

/// Returns the SHA-256 hash of a token in hexadecimal. The access file contains this text.
///
/// A simple hash is safe for 256 random bits, because nobody can try all of their values. A slow
/// password hash would only make each request slower.
pub fn hash_token(token: &str) -> String {
    to_hex(&token_digest(token))
}

/// Creates a token with 256 random bits.
///
/// # Errors
/// Returns an error if the operating system cannot provide random bytes.
pub fn new_token() -> Result<String> {
    let mut bytes = [0u8; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Returns the SHA-256 hash of a token.
pub(crate) fn token_digest(token: &str) -> [u8; 32] {
    let mut bytes = [0u8; 32];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

/// Formats bytes in hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses exactly `N` bytes from hexadecimal. Returns `None` if the text has another length or
/// contains other characters.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0u8; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_their_hash_is_sha256() {
        let (a, b) = (new_token().unwrap(), new_token().unwrap());
        assert!(a != b && a.starts_with(PREFIX) && a.len() == 47);
        // The published test vector of SHA-256 for "abc".
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_token("abc"), known);
        assert_eq!(to_hex(&from_hex::<32>(known).unwrap()), known);
        assert!(from_hex::<32>("zz").is_none() && from_hex::<1>("+1").is_none());
    }
}
