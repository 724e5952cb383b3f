//! The body of a request: received under limits of bytes and of time, and decompressed under the
//! same limit of bytes, and under a limit that grows with the compressed bytes.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt as _;

use crate::budget::HeldBytes;
use crate::config::Limits;
use crate::error::{Result, ServeError, UNPACKED_RATIO};

/// The largest number of bytes of an announced body that count as in flight before they arrive.
pub(super) const FIRST_BYTES: usize = 64 << 10;

/// The number of bytes to which any compressed body may unpack.
const UNPACKED_BYTES: usize = 1 << 20;

/// The compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The body is not compressed.
    Plain,
    /// The body is compressed with gzip.
    Gzip,
    /// The body is compressed with zlib, which HTTP calls `deflate`.
    Zlib,
}

/// The bytes of a body as they were received, and their encoding.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) encoding: Encoding,
}

impl Encoding {
    /// Reads the encoding of a body from the headers.
    ///
    /// # Errors
    /// Returns [`ServeError::Encoding`] if the encoding is unknown, or if there are several.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self> {
        let mut all = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(value) = all.next() else { return Ok(Self::Plain) };
        let known = match value.as_bytes().trim_ascii() {
            name if name.eq_ignore_ascii_case(b"identity") => Some(Self::Plain),
            name if name.eq_ignore_ascii_case(b"gzip") => Some(Self::Gzip),
            name if name.eq_ignore_ascii_case(b"x-gzip") => Some(Self::Gzip),
            name if name.eq_ignore_ascii_case(b"deflate") => Some(Self::Zlib),
            _ => None,
        };
        match known {
            Some(encoding) if all.next().is_none() => Ok(encoding),
            _ => {
                let name = String::from_utf8_lossy(value.as_bytes()).chars().take(40).collect();
                Err(ServeError::Encoding { name })
            }
        }
    }
}

impl Received {
    /// Decompresses the body to at most [`UNPACKED_RATIO`] times its bytes and 1 MiB, and at most
    /// the limit of bytes, so that work and memory are in proportion to what was received. This
    /// function must not run on a network thread.
    ///
    /// # Errors
    /// Returns an error if the bytes do not fit the encoding, or if the decompressed body is too
    /// large.
    pub(super) fn decode(self, limits: &Limits) -> Result<Bytes> {
        let Self { bytes, encoding } = self;
        let in_proportion =
            bytes.len().saturating_mul(UNPACKED_RATIO).saturating_add(UNPACKED_BYTES);
        let most = in_proportion.min(limits.body_bytes);
        let decoded = match encoding {
            Encoding::Plain => return Ok(bytes),
            Encoding::Gzip => {
                let mut decoder = MultiGzDecoder::new(&bytes[..]);
                read_some(&mut decoder, most)
            }
            Encoding::Zlib => {
                let mut decoder = ZlibDecoder::new(&bytes[..]);
                read_some(&mut decoder, most).and_then(|decoded| {
                    let is_all = decoder.total_in() == bytes.len() as u64;
                    let is_too_large = decoded.len() > most;
                    match is_all || is_too_large {
                        true => Ok(decoded),
                        false => Err(std::io::Error::other(
                            "bytes follow the end of the compressed data",
                        )),
                    }
                })
            }
        };
        let decoded = decoded.map_err(|e| {
            let name = if encoding == Encoding::Gzip { "gzip" } else { "deflate (zlib)" };
            ServeError::Malformed(format!(
                "the body is not valid {name} ({e}); compress it again, or correct the header \
                 `Content-Encoding`"
            ))
        })?;
        match decoded.len() > most {
            false => Ok(decoded.into()),
            true if most < limits.body_bytes => Err(ServeError::Unpacked { limit: most }),
            true => Err(too_large("the decompressed size of the body in bytes", limits)),
        }
    }
}

/// Reads to the end, or to one byte beyond the limit, because a few compressed bytes can expand to
/// any number of bytes.
fn read_some(decoder: &mut impl Read, most: usize) -> std::io::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    decoder.take(most as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}

fn too_large(what: &'static str, limits: &Limits) -> ServeError {
    let remedy = "send fewer rows at a time, or raise the setting `serve.max_body_bytes`";
    ServeError::TooLarge { what, limit: limits.body_bytes, remedy }
}

/// Receives the body of a request under the limits of bytes and of time.
///
/// # Errors
/// Returns an error if the body is too large, too slow, cut off, or in an unknown encoding.
///
/// `held` grows with the bytes that arrive, as far as it does not hold them already.
pub(super) async fn receive(
    limits: &Limits,
    held: &mut HeldBytes,
    request: Request,
) -> Result<Received> {
    let encoding = Encoding::of(request.headers())?;
    let announced = announced_bytes(limits, request.headers())?;
    let collect = collect(request.into_body(), announced, limits, held);
    let late = |_| ServeError::SlowBody { limit: limits.body_time };
    let bytes = tokio::time::timeout(limits.body_time, collect).await.map_err(late)??;
    Ok(Received { bytes, encoding })
}

/// Returns the number of bytes that the head of a request announces, or 0 if it announces none.
///
/// # Errors
/// Returns [`ServeError::TooLarge`] if the body is larger than the limit.
pub(super) fn announced_bytes(limits: &Limits, headers: &HeaderMap) -> Result<usize> {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()).map_or("0", str::trim);
    // A length that does not fit is larger than any limit; hyper refuses what is no number.
    let length = length.parse::<usize>().unwrap_or(usize::MAX);
    match length > limits.body_bytes {
        true => Err(too_large("the size of the body in bytes", limits)),
        false => Ok(length),
    }
}

/// Collects the bytes of a body. A body of one piece is not copied.
async fn collect(
    mut body: Body,
    announced: usize,
    limits: &Limits,
    held: &mut HeldBytes,
) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ServeError::Malformed(format!(
                "the body ended before its announced length ({error}); send the whole body"
            ))
        })?;
        let Ok(piece) = frame.into_data() else { continue };
        let before = first.len() + all.len();
        let length = before + piece.len();
        if length > limits.body_bytes {
            return Err(too_large("the size of the body in bytes", limits));
        }
        // A head of a few bytes announces any number of them, so that only those that came count.
        let new = length.saturating_sub(held.bytes());
        if new > 0 && !held.grow(new, limits.bytes_in_flight) {
            return Err(ServeError::Overloaded { waiting: 0, backlog: Duration::ZERO });
        }
        if before == 0 {
            first = piece;
            continue;
        }
        if all.is_empty() {
            // Memory for the announced bytes is taken as they come, and not before.
            all.reserve(announced.min(2 * length));
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&piece);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;
    use crate::budget::{Budget, Holder};

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(encoding: Encoding, bytes: &[u8], limit: usize) -> Result<Bytes> {
        let limits = Limits { body_bytes: limit, ..Limits::default() };
        Received { bytes: bytes.to_vec().into(), encoding }.decode(&limits)
    }

    #[test]
    fn headers_name_the_encoding() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
            }
            Encoding::of(&headers).ok()
        };
        assert_eq!(of(&[]), Some(Encoding::Plain));
        assert_eq!(of(&["identity"]), Some(Encoding::Plain));
        assert_eq!(of(&["GZip"]), Some(Encoding::Gzip));
        assert_eq!(of(&["deflate"]), Some(Encoding::Zlib));
        for refused in [&["br"][..], &["gzip, gzip"], &["gzip", "gzip"], &[""]] {
            assert_eq!(of(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn bytes_count_when_they_come() {
        let budget = Arc::new(Budget::default());
        let limits = Limits { bytes_in_flight: 1 << 20, ..Limits::default() };
        let receive_all = |sent: usize, announced: usize| {
            let mut held = budget.empty(Holder::Principal("p"));
            assert!(held.grow(announced.min(FIRST_BYTES), limits.bytes_in_flight));
            let request = Request::builder().header(header::CONTENT_LENGTH, announced);
            let request = request.body(Body::from(vec![b' '; sent])).unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let received = runtime.block_on(receive(&limits, &mut held, request));
            (received.map(|received| received.bytes.len()), held.bytes())
        };
        for length in [0, 9, FIRST_BYTES, FIRST_BYTES + 1, 400_000] {
            let (received, held) = receive_all(length, length);
            assert_eq!((received.unwrap(), held), (length, length));
        }
        // A body in chunks announces nothing.
        assert_eq!(receive_all(200_000, 0).1, 200_000);
        // A body that was announced and does not come holds little.
        assert_eq!(receive_all(0, 30 << 20).1, FIRST_BYTES);
        assert_eq!(receive_all(2 << 20, 2 << 20).0.unwrap_err().kind().http_status(), 429);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_decompression_bomb_is_refused() {
        let zeros = vec![0u8; 20 << 20];
        for (encoding, bomb) in [(Encoding::Gzip, gzip(&zeros)), (Encoding::Zlib, zlib(&zeros))] {
            assert!(bomb.len() < 1 << 19);
            let refused = decode(encoding, &bomb, 1 << 20).unwrap_err();
            assert_eq!(refused.kind().http_status(), 413, "{refused}");
        }
    }

    #[test]
    fn unpacked_bytes_are_in_proportion_to_packed_ones() {
        for (encoding, pack) in
            [(Encoding::Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Encoding::Zlib, zlib)]
        {
            // Any small body may unpack to 1 MiB.
            let small = vec![b' '; 1 << 20];
            assert_eq!(decode(encoding, &pack(&small), 32 << 20).unwrap().len(), 1 << 20);
            let bomb = pack(&vec![b' '; 20 << 20]);
            let most = 8 * bomb.len() + (1 << 20);
            let refused = decode(encoding, &bomb, 32 << 20).unwrap_err();
            assert_eq!(refused.kind().http_status(), 413, "{refused}");
            let text = refused.to_string();
            assert!(text.contains(&format!("more than {most} bytes, the limit")), "{text}");
            // The reader ends one byte behind the limit.
            let read = read_some(&mut MultiGzDecoder::new(&gzip(&small)[..]), 1000).unwrap();
            assert_eq!(read.len(), 1001);
        }
    }

    #[test]
    fn truncated_and_overlong_bodies_are_malformed() {
        for (encoding, whole) in [(Encoding::Gzip, gzip(b"{}")), (Encoding::Zlib, zlib(b"{}"))] {
            assert_eq!(decode(encoding, &whole, 2).unwrap(), "{}");
            for bad in [&whole[..whole.len() - 1], &[&whole[..], b"x"].concat(), b"{}", b""] {
                let refused = decode(encoding, bad, 100).unwrap_err();
                assert_eq!(refused.kind().http_status(), 400, "{encoding:?} {bad:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn compressed_bodies_are_read_back(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(decode(Encoding::Gzip, &gzip(&bytes), 300).unwrap(), &bytes[..]);
            prop_assert_eq!(decode(Encoding::Zlib, &zlib(&bytes), 300).unwrap(), &bytes[..]);
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(Encoding::Gzip, &bytes, 50);
            let _ = decode(Encoding::Zlib, &bytes, 50);
        }
    }
}
