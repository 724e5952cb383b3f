//! The row groups of a Parquet file, each of which is opened separately.

use std::ops::Range;
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};

use super::pages::PagedColumns;
use super::positioned::PositionedFile;
use crate::arrays::{GroupBatches, GroupSource, PagedFields, Start, TextRules, without_panic};
use crate::error::{Near, ReaderError, Result};
use crate::field::Field;
use crate::input::Input;

/// The number of rows that Arrow decodes at a time. With this number, a column fits into the
/// first-level cache.
const ARROW_ROWS: usize = 8192;

/// The source of the row groups of a Parquet file.
#[derive(Debug)]
pub(super) struct ParquetGroups {
    pub(super) input: Input,
    pub(super) metadata: ArrowReaderMetadata,
}

impl ParquetGroups {
    /// Opens the file for reading some columns of a row group.
    fn open_columns(&self, group: usize, columns: &[usize]) -> Result<PositionedFile> {
        PositionedFile::open(&self.input, self.ranges(group, columns))
    }

    /// Returns the places of some columns of a row group in the file, sorted. The result is
    /// empty if the file lies on this machine, where the places are not needed.
    fn ranges(&self, group: usize, columns: &[usize]) -> Vec<Range<u64>> {
        if matches!(self.input, Input::Local(_)) {
            return Vec::new();
        }
        let schema = self.metadata.parquet_schema();
        let chunks = self.metadata.metadata().row_group(group).columns().iter().enumerate();
        let chunks =
            chunks.filter(|&(leaf, _)| columns.contains(&schema.get_column_root_idx(leaf)));
        // The offsets of a damaged file may be negative, which the decoder reports.
        let mut ranges: Vec<Range<u64>> = chunks
            .filter_map(|(_, chunk)| {
                let start = match chunk.dictionary_page_offset() {
                    Some(at) if at > 0 && at < chunk.data_page_offset() => at,
                    _ => chunk.data_page_offset(),
                };
                let start = u64::try_from(start).ok()?;
                let length = u64::try_from(chunk.compressed_size()).ok()?;
                Some(start..start.checked_add(length)?)
            })
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }
}

impl GroupSource for ParquetGroups {
    fn bytes(&self, group: usize, columns: &[usize]) -> u64 {
        let schema = self.metadata.parquet_schema();
        let chunks = self.metadata.metadata().row_group(group).columns().iter().enumerate();
        let read = |leaf: usize| columns.contains(&schema.get_column_root_idx(leaf));
        let bytes = chunks.filter(|&(leaf, _)| read(leaf));
        bytes.map(|(_, c)| u64::try_from(c.compressed_size()).unwrap_or_default()).sum()
    }

    fn read_ahead(&self, group: usize, columns: &[usize]) {
        if let Input::Object(object) = &self.input {
            object.read_ahead_all(&self.ranges(group, columns));
        }
    }

    fn open(&self, roots: Vec<usize>, start: Start) -> Result<GroupBatches> {
        let file = self.open_columns(start.group, &roots)?;
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
        let file = Arc::new(self.open_columns(group, columns)?);
        let paged = PagedColumns::open(&file, &self.metadata, group, (columns, fields), rules);
        Ok(paged.map(|paged| Box::new(paged) as Box<dyn PagedFields>))
    }

    fn near(&self, group: usize) -> Near {
        Near::RowGroup(group)
    }

    fn damaged(&self, group: usize, reason: String) -> ReaderError {
        let what = format!("row group {group} cannot be decoded");
        let path = self.input.path().to_owned();
        self.input.failure_or(ReaderError::Damaged { what, reason, path })
    }
}
