//! The opened files of every format, as text or as row groups of typed columns.
//!
//! A format of row groups implements [`GroupFile`] in a file of this folder. All other code of the
//! crate uses a [`DataFile`] and does not depend on the format.

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

/// The record batches of a file, one after another, with all its columns.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>>>;

/// A file that has been opened and checked.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Text(Arc<TextFile>),
    Groups(Arc<dyn GroupFile>),
}

/// A file of row groups, whose columns have types of their own.
pub(crate) trait GroupFile: ArraySource + fmt::Debug + Send + Sync {
    /// Returns the path of the file.
    fn path(&self) -> &Path;

    /// Returns the names of the columns in the order of the file.
    fn columns(&self) -> Vec<&str>;

    /// Returns the number of rows of each row group.
    fn groups(&self) -> &[u64];

    /// Finds and checks the columns of the fields. `first` is the first file of the list if this is
    /// a later one.
    ///
    /// # Errors
    /// Returns an error if a column is missing or has a type that does not fit its field.
    fn plan(&self, fields: &[Field], first: Option<&Path>) -> Result<GroupPlan>;
}

/// A file whose columns have types of their own and are read as Arrow arrays.
pub trait ArraySource {
    /// Returns the columns with the types of their values, without the encoding.
    fn schema(&self) -> SchemaRef;

    /// Reads all columns of the file from its beginning, batch after batch.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened; the iterator returns an error if a batch
    /// cannot be decoded.
    fn batches(&self) -> Result<Batches>;
}

/// The way in which the fields of one pass are decoded from one file.
#[derive(Clone, Debug)]
pub(crate) enum FilePlan {
    /// Row groups, which are decoded column by column.
    Groups(Arc<GroupPlan>),
    /// Text, which is decoded row by row.
    Text(Arc<TextPlan>),
}

/// The rows that are permuted as a whole: a row group, a record batch or a text file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// The index of the file.
    pub(crate) file: usize,
    /// The row group or record batch of the file; 0 for text.
    pub(crate) group: usize,
    /// The number of rows of the file before the unit.
    pub(crate) rows_before: u64,
    /// The number of rows of the unit; 0 for text, whose rows are counted while they are read.
    pub(crate) rows: u64,
}
