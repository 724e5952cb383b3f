//! The opening of text files and streams, with decompression while they are read.

use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::encoding::Encoding;
use crate::error::{ReaderError, Result};
use crate::format::Compression;
use crate::input::Input;

/// A source of decompressed bytes.
pub(super) type Bytes = Box<dyn Read + Send>;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The part of a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// The header and the first rows.
    Start,
    All,
}

/// Opens a file whose compression and encoding are known, and converts it to UTF-8.
pub(super) fn open_file(
    input: &Input,
    compression: Compression,
    encoding: Encoding,
    span: Span,
) -> Result<Bytes> {
    if input.is_empty()? {
        return Err(ReaderError::EmptyFile { path: input.path().to_owned() });
    }
    let bytes = match span {
        Span::Start => input.read_start()?,
        Span::All => input.read_all()?,
    };
    let bytes = decompress(bytes, compression);
    let bytes = bytes.map_err(ReaderError::io("open the file", input.path()))?;
    Ok(encoding.convert(bytes))
}

/// Opens a stream of text, and decompresses it if its first bytes show a known compression. `path`
/// is the name of the stream in messages.
///
/// # Errors
/// Returns an error if the stream cannot be read, or if it is a Parquet or Arrow file, because the
/// metadata of such a file is at its end.
pub fn open_stream(mut stream: Box<dyn Read + Send>, path: &Path) -> Result<Box<dyn Read + Send>> {
    let failed = ReaderError::io("read", path);
    let mut start = Vec::new();
    stream.by_ref().take(4).read_to_end(&mut start).map_err(failed)?;
    for (magic, format) in [(b"PAR1", "a Parquet file"), (b"ARRO", "an Arrow file")] {
        if start == magic {
            let problem = format!(
                "{format} cannot be read from a stream, because its metadata is at its end; give the path of the file"
            );
            return Err(ReaderError::setting(path.display(), problem));
        }
    }
    let compression = if start.starts_with(GZIP_MAGIC) {
        Compression::Gzip
    } else if start == ZSTD_MAGIC {
        Compression::Zstd
    } else {
        Compression::None
    };
    decompress(Box::new(io::Cursor::new(start).chain(stream)), compression).map_err(failed)
}

fn decompress(source: Bytes, compression: Compression) -> io::Result<Bytes> {
    Ok(match compression {
        Compression::None => source,
        Compression::Gzip => Box::new(MultiGzDecoder::new(source)),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(source)?),
    })
}
