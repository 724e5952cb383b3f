//! The conversion of a message in Arrow to the bytes of a file.
//!
//! The decoder of messages bounds what a message may cost. So only messages that it has decoded
//! come here.
//!
//! A message may be a stream, whose batches are found one after the other. The reader of files
//! needs the list of batches at the end of a file.

use std::borrow::Cow;
use std::io::Cursor;
use std::path::Path;

use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::FileWriter;

use super::MAGIC;
use crate::arrays::without_panic;
use crate::error::{ReaderError, Result};

/// Returns the bytes of an Arrow file with the rows of a message that was decoded before. `path` is
/// the place of the file, for errors.
///
/// # Errors
/// Returns [`ReaderError::Damaged`] if the message cannot be decoded, or if a dictionary changes
/// within it, which a file does not allow.
pub fn make_arrow_file<'m>(message: &'m [u8], path: &Path) -> Result<Cow<'m, [u8]>> {
    if message.starts_with(MAGIC) {
        return Ok(Cow::Borrowed(message));
    }
    without_panic(|| convert(message).map_err(|error| error.to_string()))
        .map(Cow::Owned)
        .map_err(ReaderError::damaged("a message that cannot be written as an Arrow file", path))
}

fn convert(message: &[u8]) -> std::result::Result<Vec<u8>, arrow_schema::ArrowError> {
    let stream = StreamReader::try_new(Cursor::new(message), None)?;
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &stream.schema())?;
    for batch in stream {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    drop(writer);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use arrow_ipc::writer::StreamWriter;

    use super::super::IpcFile;
    use super::*;
    use crate::input::Input;

    fn stream(batches: &[i64]) -> Vec<u8> {
        let batch = |rows: i64| {
            let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
            RecordBatch::try_from_iter([("id", column)]).unwrap()
        };
        let mut writer = StreamWriter::try_new(Vec::new(), &batch(1).schema()).unwrap();
        batches.iter().for_each(|&rows| writer.write(&batch(rows)).unwrap());
        writer.into_inner().unwrap()
    }

    #[test]
    fn a_stream_becomes_a_file_with_the_same_batches() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.arrow");
        let bytes = make_arrow_file(&stream(&[3, 1, 8]), &path).unwrap().into_owned();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(IpcFile::open(Input::Local(path.clone())).unwrap().groups, [3, 1, 8]);
        // A file stays as it is.
        assert!(matches!(make_arrow_file(&bytes, &path).unwrap(), Cow::Borrowed(_)));
    }

    #[test]
    fn a_cut_message_is_an_error_and_no_panic() {
        let whole = stream(&[5]);
        let path = Path::new("rows.arrow");
        assert!(make_arrow_file(b"nonsense", path).is_err());
        // The end of a stream is optional, so a cut between two parts is legal.
        let errors = (0..whole.len()).filter(|&at| make_arrow_file(&whole[..at], path).is_err());
        assert!(errors.count() > whole.len() / 2);
    }
}
