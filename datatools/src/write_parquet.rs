//! The writing of batches to a Parquet file, which appears only when it is complete.

use std::io;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use zillion_device::Files;
use zillion_reader::{ReaderError, Result};

/// The number of rows of a row group, which shuffling permutes as a whole and one thread decodes at
/// a time.
const GROUP_ROWS: usize = 65_536;

/// Writes the batches that `next` returns, until it returns an empty list.
pub(crate) fn write_parquet(
    path: &Path,
    schema: SchemaRef,
    files: &Files,
    mut next: impl FnMut() -> io::Result<Vec<RecordBatch>>,
) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build();
    let written = files.write_file(path, |file| {
        // The writer must own its target, so it writes to memory, which is copied to the file after
        // each batch.
        let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
        loop {
            let batches = next()?;
            if batches.is_empty() {
                break;
            }
            for batch in batches {
                writer.write(&batch)?;
                file.write_all(writer.inner())?;
                writer.inner_mut().clear();
            }
        }
        file.write_all(&writer.into_inner()?)
    });
    written.map(drop).map_err(|error| ReaderError::Io {
        what: "write the file",
        source: io::Error::other(error),
        path: path.to_owned(),
    })
}
