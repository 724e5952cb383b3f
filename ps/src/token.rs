//! The token that clients show to a server.

use std::fmt;
use std::path::Path;

use crate::error::{Result, start_error};

/// The smallest and the largest number of characters of a token.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// A secret that all servers and trainers of a cluster share. Debug output does not contain it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Reads the token from a file. White space around the token is ignored.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if it does not hold 16 to 256 visible ASCII
    /// characters.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            start_error(format!(
                "cannot read the token file `{}`: {e}; write a secret of 16 to 256 characters into \
                 it",
                path.display()
            ))
        })?;
        let text = text.trim();
        if LENGTHS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(text.to_owned()));
        }
        Err(start_error(format!(
            "the token file `{}` does not hold 16 to 256 visible ASCII characters in one line; \
             write such a secret into it, for example the output of `openssl rand -hex 32`",
            path.display()
        )))
    }

    /// Returns the secret, to show it to a server.
    pub(crate) fn show(&self) -> String {
        self.0.clone()
    }

    /// Returns whether a client has shown this token. The time of the comparison does not depend on
    /// the token.
    #[cfg(feature = "server")]
    pub(crate) fn is(&self, shown: Option<&str>) -> bool {
        let hash = |text: &str| blake3::hash(text.as_bytes());
        // The comparison of two BLAKE3 hashes takes the same time for all values.
        shown.is_some_and(|shown| hash(shown) == hash(&self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_and_never_shown_by_debug() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for bad in ["", "short", "with a space in the middle", &"x".repeat(257)] {
            std::fs::write(&path, bad).unwrap();
            let error = Token::read(&path).unwrap_err().to_string();
            assert!(error.contains("16 to 256") && error.contains("token"), "{error}");
        }
        assert!(Token::read(&folder.path().join("missing")).is_err());
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let token = Token::read(&path).unwrap();
        assert!(!format!("{token:?}").contains("0123"));
        assert_eq!(token.show(), "0123456789abcdef");
    }
}
