//! The frame of a record: the length, the number and the checksums of a decision.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Decision;
use crate::error::{Error, Result};

/// The number of bytes before the text of a decision.
pub(super) const HEADER_BYTES: usize = 16;
/// The number of bytes behind the text of a decision.
pub(super) const TRAILER_BYTES: usize = 8;
/// The largest number of bytes of the text of a decision.
pub(super) const MAX_TEXT: usize = 16 << 20;

/// The header of a record whose checksum was right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The number of bytes of the text.
    pub(super) length: u32,
    /// The number of the decision.
    pub(super) number: u64,
}

impl Header {
    /// Reads a header. Returns `None` if its checksum is wrong.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [l0, l1, l2, l3, n0, n1, n2, n3, n4, n5, n6, n7, c0, c1, c2, c3] = *bytes;
        let check = u32::from_le_bytes([c0, c1, c2, c3]);
        (check == checksum(&bytes[..12])).then_some(Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            number: u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
        })
    }
}

/// Appends the record of a decision to `buffer`.
///
/// # Errors
/// Returns an error if the decision is longer than [`MAX_TEXT`]. Then `buffer` is unchanged.
pub(super) fn encode(buffer: &mut Vec<u8>, number: u64, decision: &Decision) -> Result<()> {
    let start = buffer.len();
    buffer.resize(start + HEADER_BYTES, 0);
    // The serialisation of a decision into memory cannot fail: its maps have text keys.
    let written = serde_json::to_writer(&mut *buffer, decision);
    let bytes = buffer.len() - start - HEADER_BYTES;
    if written.is_err() || bytes > MAX_TEXT {
        buffer.truncate(start);
        return Err(Error::DecisionTooLong { number, bytes, limit: MAX_TEXT });
    }
    let check = text_checksum(&buffer[start + HEADER_BYTES..], number);
    buffer.extend_from_slice(&check.to_le_bytes());
    let header = &mut buffer[start..start + HEADER_BYTES];
    header[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    header[4..12].copy_from_slice(&number.to_le_bytes());
    let check = checksum(&header[..12]);
    header[12..].copy_from_slice(&check.to_le_bytes());
    Ok(())
}

/// Returns the checksum of the text of a decision.
pub(super) fn text_checksum(text: &[u8], number: u64) -> u64 {
    xxh3_64_with_seed(text, number)
}

/// Returns the checksum of the length and the number of a record.
fn checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}
