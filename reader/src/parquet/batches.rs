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

/// The number of rows that are decoded at a time.
const BATCH: usize = 16_384;

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
                .with_batch_size(BATCH)
                .build()
        })
        .map_err(ReaderError::damaged("it cannot be decoded", input.path()))?;
        Ok(std::iter::from_fn(move || {
            let next = without_panic(|| reader.next().transpose());
            let damaged = ReaderError::damaged("it cannot be decoded", input.path());
            next.map_err(|reason| input.failure_or(damaged(reason))).transpose()
        }))
    }
}
