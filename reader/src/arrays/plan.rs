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
    /// For each field, the index of its column in the file.
    pub(crate) columns: Vec<usize>,
}

/// A file whose row groups become Arrow arrays.
pub(crate) trait GroupSource: fmt::Debug + Send + Sync {
    /// Returns the number of bytes of the file that must be read to decode some columns of a row
    /// group.
    fn bytes(&self, group: usize, columns: &[usize]) -> u64;

    /// Begins to read the bytes of some columns of a row group, if the file lies in a bucket. The
    /// group is opened soon after.
    fn read_ahead(&self, group: usize, columns: &[usize]);

    /// Opens a reader of some columns of a row group. `roots` holds the positions of the columns in
    /// the file, ascending. `start` names the row group and its first row to read.
    fn open(&self, roots: Vec<usize>, start: Start) -> Result<GroupBatches>;

    /// Opens the decoder of the fields that need no Arrow arrays. Field `i` reads column
    /// `columns[i]` of the file. Returns `None` if there is no such field.
    fn open_pages(
        &self,
        _group: usize,
        _columns: &[usize],
        _fields: &[Field],
        _rules: &TextRules,
    ) -> Result<Option<Box<dyn PagedFields>>> {
        Ok(None)
    }

    /// Returns the index of the row group in the form that error messages need.
    fn near(&self, group: usize) -> Near;

    /// Returns the error for a row group that cannot be decoded.
    fn damaged(&self, group: usize, reason: String) -> ReaderError;
}

/// An iterator over the rows of one row group, which returns a few rows at a time.
pub(crate) type GroupBatches =
    Box<dyn Iterator<Item = std::result::Result<RecordBatch, String>> + Send>;

/// A decoder of the fields of a row group that are read directly from the pages of the file.
pub(crate) trait PagedFields: Send {
    /// Returns whether a field is decoded from pages.
    fn has(&self, field: usize) -> bool;

    /// Appends the next `rows` rows of the fields to their columns. Returns `false` if the pages
    /// hold something that only arrays can decode or report. In this case, the columns may already
    /// hold some of the rows.
    fn decode(&mut self, rows: usize, fields: &[Field], columns: &mut [Column]) -> bool;
}

/// The row group that a reader is opened for, and the first row that the reader returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) group: usize,
    pub(crate) rows_before: u64,
    pub(crate) row: u64,
}
