//! The record of a pending row in a segment.
//!
//! A record begins with a head of 44 bytes, little-endian: the length of the row (4 bytes), the low
//! half of the xxh3-64 of all that follows (4), the key (16), the event time (8), the sequence
//! number (8) and the weight (4). The bytes of the row follow.

use xxhash_rust::xxh3::xxh3_64;

use super::key::Key;

/// The size of the head of a record in bytes.
pub(crate) const HEAD: usize = 44;
/// The position of the first byte that the checksum covers.
const COVERED: usize = 8;

/// The order in which pending rows leave: by event time, then in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) time: i64,
    pub(crate) sequence: u64,
}

/// The head of a record, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) key: Key,
    pub(crate) rank: Rank,
    pub(crate) weight: f32,
    pub(crate) row_bytes: u32,
}

/// Adds a record to the end of `out`.
pub(crate) fn append(out: &mut Vec<u8>, head: &Head, row: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&head.row_bytes.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&head.key.to_bytes());
    out.extend_from_slice(&head.rank.time.to_le_bytes());
    out.extend_from_slice(&head.rank.sequence.to_le_bytes());
    out.extend_from_slice(&head.weight.to_le_bytes());
    out.extend_from_slice(row);
    let check = xxh3_64(&out[start + COVERED..]) as u32;
    out[start + 4..start + COVERED].copy_from_slice(&check.to_le_bytes());
}

/// Returns the head at the beginning of `bytes`, or `None` if there are too few bytes.
pub(crate) fn head(bytes: &[u8]) -> Option<Head> {
    let bytes = bytes.first_chunk::<HEAD>()?;
    let part = |from: usize| bytes[from..].first_chunk().copied();
    Some(Head {
        row_bytes: u32::from_le_bytes(*bytes.first_chunk()?),
        key: Key::from_bytes(*bytes[8..].first_chunk()?),
        rank: Rank {
            time: i64::from_le_bytes(*bytes[24..].first_chunk()?),
            sequence: u64::from_le_bytes(*bytes[32..].first_chunk()?),
        },
        weight: f32::from_le_bytes(part(40)?),
    })
}

/// Returns the head and the row of a whole record, or `None` if its checksum is wrong.
pub(crate) fn decode(record: &[u8]) -> Option<(Head, &[u8])> {
    let head = head(record)?;
    let check = u32::from_le_bytes(*record[4..].first_chunk()?);
    if check != xxh3_64(&record[COVERED..]) as u32 {
        return None;
    }
    Some((head, &record[HEAD..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_every_bit_counts() {
        let head = Head {
            key: Key::of(b"key"),
            rank: Rank { time: 12_345, sequence: 67 },
            weight: 0.5,
            row_bytes: 5,
        };
        let mut bytes = b"before".to_vec();
        append(&mut bytes, &head, b"a row");
        let record = &bytes[6..];
        assert_eq!(record.len(), HEAD + 5);
        assert_eq!(decode(record), Some((head, &b"a row"[..])));
        assert_eq!(decode(&record[..HEAD - 1]), None);
        // The length is outside of the checksum: the reader cuts the record by it.
        for bit in 32..record.len() * 8 {
            let mut altered = record.to_vec();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&altered), None, "bit {bit}");
        }
    }
}
