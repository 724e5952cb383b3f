//! The opened files of all formats. A file is either text, or row groups with typed columns.
//!
//! A format with row groups implements [`GroupFile`] in a file of this folder. All other code of
//! the crate uses a [`DataFile`] and does not depend on the format.

mod arrow;
mod open;
mod parquet;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::arrays::GroupPlan;
use crate::error::Result;
use crate::field::Field;
use crate::text::{TextFile, TextPlan};

pub use open::DataFile;

/// An iterator over the record batches of a file with all columns.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>>>;

/// A file that has been opened and checked.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Text(Arc<TextFile>),
    Groups(Arc<dyn GroupFile>),
}

/// A file of row groups that declares the types of its columns.
pub(crate) trait GroupFile: ArraySource + fmt::Debug + Send + Sync {
    /// Returns the path of the file.
    fn path(&self) -> &Path;

    /// Returns the names of the columns in the order of the file.
    fn columns(&self) -> Vec<&str>;

    /// Returns the number of rows of each row group.
    fn groups(&self) -> &[u64];

    /// Finds the columns of the fields, checks their types, and returns the plan that decodes them.
    /// `first` is the first file of the list if this file is a later one.
    ///
    /// # Errors
    /// Returns an error if a column is missing or if its type does not fit.
    fn plan(&self, fields: &[Field], first: Option<&Path>) -> Result<GroupPlan>;
}

/// A file that declares the types of its columns and is read as Arrow arrays.
pub trait ArraySource {
    /// Returns the names of the columns and the types of their values. The types ignore the
    /// encoding.
    fn schema(&self) -> SchemaRef;

    /// Returns an iterator over the record batches of the file with all columns.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened. The iterator returns an error if a batch
    /// cannot be decoded.
    fn batches(&self) -> Result<Batches>;
}

/// The plan by which one file is decoded in one pass.
#[derive(Clone, Debug)]
pub(crate) enum FilePlan {
    /// The plan for a file of row groups, which are decoded column by column.
    Groups(Arc<GroupPlan>),
    /// The plan for a text file, which is decoded row by row.
    Text(Arc<TextPlan>),
}

/// The unit of the shuffled order of files: a row group, a record batch or a whole text file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// The index of the file in the list.
    pub(crate) file: usize,
    /// The index of the row group or record batch in the file; 0 for text.
    pub(crate) group: usize,
    /// The number of rows of the file before the unit.
    pub(crate) rows_before: u64,
    /// The number of rows of the unit; 0 for text, whose rows are counted while they are read.
    pub(crate) rows: u64,
}
