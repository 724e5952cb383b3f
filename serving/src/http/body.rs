//! The body of a request: received under limits of bytes and of time, and decompressed under the
//! same limit of bytes.

use std::io::Read;

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::config::Limits;
use crate::error::{Result, ServeError};

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
#[derive(Debug)]
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
    /// Decompresses the body under the limit of bytes. This function must not run on a network
    /// thread.
    ///
    /// # Errors
    /// Returns an error if the bytes do not fit the encoding, or if the decompressed body is too
    /// large.
    pub(super) fn decode(self, limits: &Limits) -> Result<Bytes> {
        let Self { bytes, encoding } = self;
        let decoded = match encoding {
            Encoding::Plain => return Ok(bytes),
            Encoding::Gzip => {
                let mut decoder = MultiGzDecoder::new(&bytes[..]);
                read_some(&mut decoder, limits)
            }
            Encoding::Zlib => {
                let mut decoder = ZlibDecoder::new(&bytes[..]);
                read_some(&mut decoder, limits).and_then(|decoded| {
                    let is_all = decoder.total_in() == bytes.len() as u64;
                    let is_too_large = decoded.len() > limits.body_bytes;
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
                "the body is not {name}, which its header announces: {e}"
            ))
        })?;
        if decoded.len() > limits.body_bytes {
            return Err(too_large("the decompressed body", limits));
        }
        Ok(decoded.into())
    }
}

/// Reads to the end, or to one byte beyond the limit, because a few compressed bytes can expand to
/// any number of bytes.
fn read_some(decoder: &mut impl Read, limits: &Limits) -> std::io::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    decoder.take(limits.body_bytes as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}

fn too_large(what: &'static str, limits: &Limits) -> ServeError {
    ServeError::TooLarge { what, limit: limits.body_bytes, setting: "serve.max_body_bytes" }
}

/// Receives the body of a request under the limits of bytes and of time.
///
/// # Errors
/// Returns an error if the body is too large, too slow, cut off, or in an unknown encoding.
pub(super) async fn receive(limits: &Limits, request: Request) -> Result<Received> {
    let encoding = Encoding::of(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|l| l.to_str().ok()).and_then(|l| l.parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(too_large("the body", limits));
    }
    let body = Limited::new(request.into_body(), limits.body_bytes);
    match tokio::time::timeout(limits.body_time, body.collect()).await {
        Err(_) => Err(ServeError::SlowBody { limit: limits.body_time }),
        Ok(Ok(body)) => Ok(Received { bytes: body.to_bytes(), encoding }),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large("the body", limits)),
        Ok(Err(error)) => Err(ServeError::Malformed(format!(
            "the body ended before its announced length: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;

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
    fn a_decompression_bomb_is_refused() {
        let zeros = vec![0u8; 20 << 20];
        for (encoding, bomb) in [(Encoding::Gzip, gzip(&zeros)), (Encoding::Zlib, zlib(&zeros))] {
            assert!(bomb.len() < 1 << 19);
            let refused = decode(encoding, &bomb, 1 << 20).unwrap_err();
            assert_eq!(refused.kind().http_status(), 413, "{refused}");
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
