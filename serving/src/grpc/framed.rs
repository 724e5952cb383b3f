//! The frame of an answer: five bytes before the message, for which its writer leaves room. So the
//! bytes of an answer are written once and never copied.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// The number of bytes before a message: one that says whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// A message with its prefix, while it is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Framed(Vec<u8>);

impl Framed {
    /// Creates an empty message with room for `bytes` bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut framed = Vec::with_capacity(PREFIX + bytes);
        framed.extend_from_slice(&[0; PREFIX]);
        Self(framed)
    }

    /// Writes a message of a generated type.
    pub(super) fn of(message: &impl Message) -> Self {
        let mut framed = Self::with_capacity(message.encoded_len());
        // A vector grows, so that it has room for every message.
        let _ = message.encode(&mut framed.0);
        framed
    }

    /// Returns the number of bytes of the message.
    pub(super) fn len(&self) -> usize {
        self.0.len() - PREFIX
    }

    /// Writes a field of a text, unless the text is empty as it is by default.
    pub(super) fn put_text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.begin(field, text.len());
            self.0.extend_from_slice(text.as_bytes());
        }
    }

    /// Writes a list of one number in packed form.
    pub(super) fn put_packed(&mut self, field: u32, numbers: &[u64]) {
        self.begin(field, numbers.iter().map(|&number| encoded_len_varint(number)).sum());
        numbers.iter().for_each(|&number| encode_varint(number, &mut self.0));
    }

    /// Writes a field of numbers of four bytes as bytes.
    pub(super) fn put_floats(&mut self, field: u32, numbers: &[f32]) {
        self.begin(field, size_of_val(numbers));
        self.0.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    /// Begins a field of `bytes` bytes, which the caller writes next.
    pub(super) fn begin(&mut self, field: u32, bytes: usize) {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes as u64, &mut self.0);
    }

    /// Returns the prefix and the message.
    pub(super) fn finish(mut self) -> Bytes {
        // The limit of answers is far below 4 GiB, which is the largest length of a message.
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX);
        self.0[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        self.0.into()
    }
}

/// Returns the number of bytes that [`Framed::put_text`] writes.
pub(super) fn text_len(field: u32, text: &str) -> usize {
    if text.is_empty() { 0 } else { bytes_len(field, text.len()) }
}

/// Returns the number of bytes of a field of `bytes` bytes, with its key and its length.
pub(super) fn bytes_len(field: u32, bytes: usize) -> usize {
    key_len(field) + encoded_len_varint(bytes as u64) + bytes
}
