//! The number of rows of files, exact or estimated before the rows are read.

use std::path::PathBuf;

use crate::config::DataConfig;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::source::DataFile;
use crate::text::count_rows;

/// Returns the number of rows of a dataset and whether the number is exact. For text files without
/// compression, the number is estimated from the size of the files and their first rows. Returns
/// `None` if a text file is compressed or is a stream.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn estimated_rows(dataset: &Dataset) -> Result<Option<(u64, bool)>> {
    if let Some(rows) = dataset.rows() {
        return Ok(Some((rows, true)));
    }
    estimate_rows(dataset.files())
}

/// Returns the exact or estimated number of rows of files, without a schema. Returns `None` if the
/// number cannot be estimated.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn estimated_rows_of(config: &DataConfig, files: &[PathBuf]) -> Result<Option<u64>> {
    Ok(estimate_rows(&DataFile::open_all(config, files)?)?.map(|(rows, _)| rows))
}

fn estimate_rows(files: &[DataFile]) -> Result<Option<(u64, bool)>> {
    let mut sum = 0.0;
    let mut exact = true;
    for file in files {
        if let Some(rows) = file.rows() {
            sum += rows as f64;
            continue;
        }
        let Some(text) = file.text().filter(|text| !text.is_stream()) else { return Ok(None) };
        let mut chunks = text.first_chunks()?;
        let Some(chunk) = chunks.next_chunk()? else { continue };
        let rows = count_rows(&chunk, text.grammar());
        let whole = !chunks.has_more()?;
        let size = text.bytes()?.unwrap_or_default() as f64;
        if whole {
            sum += rows as f64;
        } else if text.is_plain_file() {
            exact = false;
            sum += rows as f64 * (size - chunk.offset as f64) / chunk.bytes.len() as f64;
        } else {
            return Ok(None);
        }
    }
    Ok(Some((sum.round() as u64, exact)))
}
