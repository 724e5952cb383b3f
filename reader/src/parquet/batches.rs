//! A reader that returns all rows of a Parquet file as Arrow arrays. Only tools use it; training
//! does not.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

use super::ParquetFile;
use super::positioned::PositionedFile;
use crate::arrays::without_panic;
use crate::error::{ReaderError, Result};

/// The maximum number of rows that are decoded at a time.
const BATCH: u64 = 16_384;
/// The number of bytes of rows that are decoded at a time, by the sizes in the file's metadata. A
/// column with a dictionary takes more memory than its size there.
const BYTES: u64 = 32 << 20;

impl ParquetFile {
    /// Returns the names of the columns.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// Returns the names and types of the columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns an iterator over all rows of the file, in batches with all columns.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened. The iterator returns an error if a batch
    /// cannot be decoded.
    pub(crate) fn all_batches(&self) -> Result<impl Iterator<Item = Result<RecordBatch>> + use<>> {
        let input = self.input.clone();
        let file = PositionedFile::open(&input, Vec::new())?;
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let mut reader = without_panic(|| {
            let metadata = ArrowReaderMetadata::try_new(self.metadata.clone(), options)?;
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
                .with_batch_size(self.batch_rows())
                .build()
        })
        .map_err(ReaderError::damaged("it cannot be decoded", input.path()))?;
        Ok(std::iter::from_fn(move || {
            let next = without_panic(|| reader.next().transpose());
            let damaged = ReaderError::damaged("it cannot be decoded", input.path());
            next.map_err(|reason| input.failure_or(damaged(reason))).transpose()
        }))
    }

    /// Returns the number of rows to decode at a time: those of [`BYTES`] in the row group with the
    /// heaviest rows, and at most [`BATCH`].
    fn batch_rows(&self) -> usize {
        let groups = self.metadata.row_groups().iter();
        rows_that_fit(groups.map(|group| (group.num_rows(), group.total_byte_size())))
    }
}

/// Returns the number of rows to decode at a time from groups with these numbers of rows and bytes.
fn rows_that_fit(groups: impl Iterator<Item = (i64, i64)>) -> usize {
    // The numbers of a damaged file may be negative.
    let groups = groups.filter_map(|(rows, bytes)| {
        let rows = u64::try_from(rows).ok().filter(|&rows| rows > 0)?;
        BYTES.saturating_mul(rows).checked_div(u64::try_from(bytes).ok()?)
    });
    groups.min().unwrap_or(BATCH).clamp(1, BATCH) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_rows_decide_the_size_of_batches() {
        let fit = |groups: &[(i64, i64)]| rows_that_fit(groups.iter().copied());
        assert_eq!(fit(&[]), 16_384);
        assert_eq!(fit(&[(0, 8), (5, 0), (-1, 8), (5, -1)]), 16_384);
        assert_eq!(fit(&[(1000, 8000)]), 16_384);
        assert_eq!(fit(&[(1000, 8000), (64, 64 << 20)]), 32);
        assert_eq!(fit(&[(1, 1 << 40)]), 1);
    }
}
