//! The plan by which the fields of a pass are decoded from the row groups of a file.

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::texts::TextRules;
use crate::block::Column;
use crate::error::{Near, ReaderError, Result};
use crate::field::Field;

/// The columns to decode from a file of row groups (record batches of an Arrow file).
#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
    pub(crate) source: Arc<dyn GroupSource>,
    /// The position of each field's column in the file.
    pub(crate) columns: Vec<usize>,
}

/// A file whose row groups become Arrow arrays.
pub(crate) trait GroupSource: fmt::Debug + Send + Sync {
    /// Returns the number of bytes of the file that decoding some columns of a row group reads.
    fn bytes(&self, group: usize, columns: &[usize]) -> u64;

    /// Opens a reader of the columns `roots` (ascending), which starts at a row of a row group.
    fn open(&self, roots: Vec<usize>, start: Start) -> Result<GroupBatches>;

    /// Opens the fields that can be decoded without arrays. Field `i` reads column `columns[i]`.
    fn open_pages(
        &self,
        _group: usize,
        _columns: &[usize],
        _fields: &[Field],
        _rules: &TextRules,
    ) -> Result<Option<Box<dyn PagedFields>>> {
        Ok(None)
    }

    /// Returns the row group as the second coordinate of a place in messages.
    fn near(&self, group: usize) -> Near;

    /// Returns the error for a row group that cannot be decoded.
    fn damaged(&self, group: usize, reason: String) -> ReaderError;
}

/// The rows of one row group, some at a time.
pub(crate) type GroupBatches =
    Box<dyn Iterator<Item = std::result::Result<RecordBatch, String>> + Send>;

/// The fields of a row group that are decoded from the file's own pages.
pub(crate) trait PagedFields: Send {
    /// Returns whether a field is decoded from pages.
    fn has(&self, field: usize) -> bool;

    /// Appends the next `rows` rows of the fields to their columns. Returns `false` if the pages
    /// hold something that only arrays can decode or report; the columns may then have some of the
    /// rows.
    fn decode(&mut self, rows: usize, fields: &[Field], columns: &mut [Column]) -> bool;
}

/// The row group that a reader is opened for, and the row at which it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) group: usize,
    pub(crate) rows_before: u64,
    pub(crate) row: u64,
}
