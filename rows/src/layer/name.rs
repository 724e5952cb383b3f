//! The check of hashes that become names of files. It is made where a manifest is parsed.
//!
//! A manifest comes from a store that others can write to. Its hashes become parts of paths, so a
//! text that is not a hash could lead to a file outside of the folder.

use serde::de::{Deserialize as _, Deserializer, Error as _, Unexpected};

/// The number of hexadecimal digits of a BLAKE3 hash.
const DIGITS: usize = 64;

/// Reads a BLAKE3 hash: 64 lower-case hexadecimal digits. The fields of manifests that name files
/// use this function with `deserialize_with`.
///
/// # Errors
/// Returns an error if the value is another text, or no text.
pub fn deserialize_hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() == DIGITS && text.bytes().all(is_digit) {
        return Ok(text);
    }
    let shown: String = text.chars().take(DIGITS).collect();
    Err(D::Error::invalid_value(
        Unexpected::Str(&shown),
        &"a BLAKE3 hash of 64 lower-case hexadecimal digits",
    ))
}

#[cfg(test)]
mod tests {
    use crate::layer::LayerFile;

    fn parse(blake3: &str) -> Result<LayerFile, String> {
        let text = format!("blake3 = '{blake3}'\nbytes = 1");
        toml::from_str(&text).map_err(|e| e.message().to_owned())
    }

    #[test]
    fn only_hashes_become_names_of_files() {
        let hash = "0123456789abcdef".repeat(4);
        assert_eq!(parse(&hash).unwrap().name(), format!("{hash}.arrow"));
        let climbing = format!("{}..", "../".repeat(20)) + "aa";
        assert_eq!(climbing.len(), 64);
        let others = ["", "..", "/etc/passwd", &climbing, &hash[1..], &hash.to_uppercase()];
        for text in others {
            let said = parse(text).unwrap_err();
            assert!(said.contains("64 lower-case hexadecimal digits"), "{text}: {said}");
        }
        let said = parse(&"x".repeat(1 << 20)).unwrap_err();
        assert!(said.len() < 300, "{} bytes", said.len());
    }
}
