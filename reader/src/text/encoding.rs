//! The encodings of text files, and the conversion to UTF-8 while a file is read.

use std::io::{self, Read};

use encoding_rs::{Decoder, DecoderResult, UTF_8};
use serde::{Deserialize, Serialize};

use super::open::Bytes;

/// The number of bytes that are converted at a time.
const PIECE: usize = 1 << 16;

/// The encoding of a text file. A job writes it as one of its usual names, such as `latin1`,
/// `windows-1252`, `utf-16le`, `gbk` or `shift_jis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Encoding(&'static encoding_rs::Encoding);

impl Encoding {
    /// Returns an encoding as a setting.
    pub fn new(encoding: &'static encoding_rs::Encoding) -> Self {
        Self(encoding)
    }

    /// Returns the name of the encoding in lower case.
    pub fn name(self) -> String {
        self.0.name().to_lowercase()
    }

    /// Converts a source of this encoding to UTF-8. A byte order mark of the encoding is removed.
    /// Bytes that the encoding does not have are an error of the source. UTF-8 is not checked here.
    pub(super) fn convert(self, source: Bytes) -> Bytes {
        match self.0 == UTF_8 {
            true => source,
            false => Box::new(Converted {
                source,
                decoder: self.0.new_decoder_with_bom_removal(),
                name: self.name(),
                raw: vec![0; PIECE],
                raw_range: 0..0,
                consumed: 0,
                text: Vec::new(),
                text_at: 0,
                at_end: false,
            }),
        }
    }
}

impl Default for Encoding {
    fn default() -> Self {
        Self(UTF_8)
    }
}

impl TryFrom<String> for Encoding {
    type Error = String;

    fn try_from(label: String) -> Result<Self, String> {
        // The standard knows `latin1` and not `latin-1`, and `shift_jis` and not `shiftjis`, so
        // both spellings are tried.
        let known = encoding_rs::Encoding::for_label(label.as_bytes());
        let known = known.or_else(|| encoding_rs::Encoding::for_label(plain(&label).as_bytes()));
        known.map(Self).ok_or_else(|| {
            format!(
                "unknown encoding {label:?}; use a name such as \"utf-8\", \"windows-1252\", \
                 \"latin1\", \"utf-16le\", \"gbk\" or \"shift_jis\""
            )
        })
    }
}

impl From<Encoding> for String {
    fn from(encoding: Encoding) -> Self {
        encoding.name()
    }
}

/// Returns a name without its hyphens, such as `latin1` for `latin-1`.
fn plain(label: &str) -> String {
    label.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect()
}

/// A source that is converted to UTF-8 while it is read.
struct Converted {
    source: Bytes,
    decoder: Decoder,
    name: String,
    raw: Vec<u8>,
    /// The part of `raw` that has been read and not converted.
    raw_range: std::ops::Range<usize>,
    /// The number of bytes of the source that have been converted.
    consumed: u64,
    text: Vec<u8>,
    /// The position in `text` of the first byte that has not been returned.
    text_at: usize,
    /// Whether the source has ended and its last byte has been converted.
    at_end: bool,
}

impl Converted {
    /// Converts more bytes. Afterwards there is text to return, or the source has ended.
    fn fill(&mut self) -> io::Result<()> {
        self.text.resize(3 * PIECE, 0);
        self.text_at = 0;
        let mut written = 0;
        while written == 0 && !self.at_end {
            let mut is_last = false;
            if self.raw_range.is_empty() {
                let read = match self.source.read(&mut self.raw) {
                    Ok(read) => read,
                    Err(error) => {
                        // The caller may read again, and must not find the unused buffer.
                        self.text.clear();
                        return Err(error);
                    }
                };
                self.raw_range = 0..read;
                is_last = read == 0;
            }
            let raw = &self.raw[self.raw_range.clone()];
            let (result, read, wrote) =
                self.decoder.decode_to_utf8_without_replacement(raw, &mut self.text, is_last);
            self.raw_range.start += read;
            self.consumed += read as u64;
            written = wrote;
            match result {
                DecoderResult::InputEmpty => self.at_end = is_last,
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(..) => {
                    self.text.truncate(wrote);
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "the bytes before byte {} are not {}; correct `data.encoding`",
                            self.consumed, self.name
                        ),
                    ));
                }
            }
        }
        self.text.truncate(written);
        Ok(())
    }
}

impl Read for Converted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.text_at == self.text.len() {
            self.fill()?;
        }
        let text = &self.text[self.text_at..];
        let count = text.len().min(to.len());
        to[..count].copy_from_slice(&text[..count]);
        self.text_at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, bytes: &[u8]) -> io::Result<String> {
        let encoding = Encoding::try_from(name.to_owned()).expect("a known name");
        let mut text = String::new();
        let bytes = bytes.to_vec();
        encoding.convert(Box::new(io::Cursor::new(bytes))).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn texts_become_utf_8() {
        for name in ["latin-1", "latin1", "ISO-8859-1", "windows-1252"] {
            assert_eq!(read(name, b"K\xf6ln").expect("a text"), "Köln", "{name}");
        }
        assert_eq!(read("utf-16le", b"\xff\xfeK\0\xf6\0").expect("a text"), "Kö");
        assert_eq!(read("shift_jis", b"\x93\xfa").expect("a text"), "日");
        assert_eq!(read("utf-8", b"K\xc3\xb6ln").expect("a text"), "Köln");
        // A text that is longer than a piece, with characters across the ends of pieces.
        let long: String = (0..50_000).map(|i| if i % 3 == 0 { '日' } else { 'ö' }).collect();
        let raw: Vec<u8> = long.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(read("utf-16le", &raw).expect("a text") == long);
    }

    #[test]
    fn bytes_that_an_encoding_lacks_are_an_error() {
        let error = read("shift_jis", b"ab\x93").expect_err("half a character").to_string();
        assert!(error.contains("not shift_jis; correct `data.encoding`"), "{error}");
        let error = Encoding::try_from("klingon".to_owned()).expect_err("no encoding");
        assert!(error.contains("unknown encoding \"klingon\""), "{error}");
    }
}
