//! The row groups of a Parquet file, each of which is opened separately.

use std::path::PathBuf;
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};

use super::pages::PagedColumns;
use super::positioned::PositionedFile;
use crate::arrays::{GroupBatches, GroupSource, PagedFields, Start, TextRules, without_panic};
use crate::error::{Near, ReaderError, Result};
use crate::field::Field;

/// The number of rows that Arrow decodes at a time. With this number, a column fits into the
/// first-level cache.
const ARROW_ROWS: usize = 8192;

/// The source of the row groups of a Parquet file.
#[derive(Debug)]
pub(super) struct ParquetGroups {
    pub(super) path: PathBuf,
    pub(super) metadata: ArrowReaderMetadata,
}

impl GroupSource for ParquetGroups {
    fn bytes(&self, group: usize, columns: &[usize]) -> u64 {
        let schema = self.metadata.parquet_schema();
        let chunks = self.metadata.metadata().row_group(group).columns().iter().enumerate();
        let read = |leaf: usize| columns.contains(&schema.get_column_root_idx(leaf));
        let bytes = chunks.filter(|&(leaf, _)| read(leaf));
        bytes.map(|(_, c)| u64::try_from(c.compressed_size()).unwrap_or_default()).sum()
    }

    fn open(&self, roots: Vec<usize>, start: Start) -> Result<GroupBatches> {
        let file = PositionedFile::open(&self.path)?;
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots);
        let reader = without_panic(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
                .with_projection(mask)
                .with_row_groups(vec![start.group])
                .with_batch_size(ARROW_ROWS)
                .with_offset(usize::try_from(start.row).unwrap_or(usize::MAX))
                .build()
        });
        let mut reader = reader.map_err(|reason| self.damaged(start.group, reason))?;
        let next = move || without_panic(|| reader.next().transpose()).transpose();
        Ok(Box::new(std::iter::from_fn(next)))
    }

    fn open_pages(
        &self,
        group: usize,
        columns: &[usize],
        fields: &[Field],
        rules: &TextRules,
    ) -> Result<Option<Box<dyn PagedFields>>> {
        let file = Arc::new(PositionedFile::open(&self.path)?);
        let paged = PagedColumns::open(&file, &self.metadata, group, (columns, fields), rules);
        Ok(paged.map(|paged| Box::new(paged) as Box<dyn PagedFields>))
    }

    fn near(&self, group: usize) -> Near {
        Near::RowGroup(group)
    }

    fn damaged(&self, group: usize, reason: String) -> ReaderError {
        let what = format!("row group {group} cannot be decoded");
        ReaderError::Damaged { what, reason, path: self.path.clone() }
    }
}
