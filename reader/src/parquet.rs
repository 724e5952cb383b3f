//! The reader of Parquet files. It checks a file against the schema by the metadata alone, and
//! decodes one row group at a time.

mod batches;
mod groups;
mod pages;
mod positioned;
mod runs;

use std::path::Path;
use std::sync::Arc;

use arrow_schema::{DataType, Field as ArrowField, Schema as ArrowSchema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::Encoding;

use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::Length;

use crate::arrays::{GroupPlan, check_type, without_panic};
use crate::error::{ReaderError, Result};
use crate::field::{Field, Role};
use crate::header;
use crate::input::Input;
use crate::stores::Stores;

use groups::ParquetGroups;
use positioned::PositionedFile;

/// A Parquet file whose metadata has been read.
#[derive(Debug)]
pub struct ParquetFile {
    pub(crate) input: Input,
    metadata: Arc<ParquetMetaData>,
    /// The types of the columns as the Parquet metadata declares them. A writer may also store an
    /// Arrow schema in the file, which is ignored here: it distinguishes encodings with the same
    /// meaning, such as large and small strings, and each encoding would need a decoder of its own.
    schema: SchemaRef,
    /// The number of rows of each row group.
    pub(crate) groups: Vec<u64>,
}

impl ParquetFile {
    /// Opens a file and reads its metadata. The path may be the URL of a file in a bucket.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is empty or is not Parquet.
    pub fn open(path: &Path, stores: &Stores) -> Result<Self> {
        Self::open_input(Input::open(stores, path)?)
    }

    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`ParquetFile::open`].
    pub(crate) fn open_input(input: Input) -> Result<Self> {
        let path = input.path();
        let file = PositionedFile::open(&input, Vec::new())?;
        if file.len() == 0 {
            return Err(ReaderError::EmptyFile { path: path.to_owned() });
        }
        let damaged = ReaderError::damaged("not a readable Parquet file", path);

        let options = || ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = without_panic(|| ArrowReaderMetadata::load(&file, options()))
            .map_err(|reason| input.failure_or(damaged(reason)))?;
        let groups: std::result::Result<Vec<u64>, _> =
            metadata.metadata().row_groups().iter().map(|g| u64::try_from(g.num_rows())).collect();
        Ok(Self {
            metadata: metadata.metadata().clone(),
            schema: metadata.schema().clone(),
            groups: groups
                .map_err(|_| damaged("a row group has a negative number of rows".to_owned()))?,
            input,
        })
    }

    /// Finds the columns of the fields, checks their types, and returns the plan that decodes them.
    /// `first` is the first file of the list if this file is a later one.
    pub(crate) fn group_plan(&self, fields: &[Field], first: Option<&Path>) -> Result<GroupPlan> {
        let path = self.input.path();
        let names = self.names();
        let mut types: Vec<DataType> =
            self.schema.fields().iter().map(|f| f.data_type().clone()).collect();
        let mut columns = Vec::with_capacity(fields.len());
        for field in fields {
            let column = header::find(&names, field, path, first)?;
            check_type(field, self.schema.field(column).data_type(), path)?;
            columns.push(column);
        }
        for (field, &column) in fields.iter().zip(&columns) {
            if types[column] != DataType::Utf8 {
                continue;
            }
            // Strings that the file stores as a dictionary are decoded as a dictionary, so that
            // each string is hashed only once. Other strings stay in their page (as views) until
            // they are hashed.
            let alone = columns.iter().filter(|&&c| c == column).count() == 1;
            let dictionary = alone && matches!(field.role, Role::Id { .. });
            types[column] = if dictionary && self.is_dictionary(column) {
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
            } else {
                DataType::Utf8View
            };
        }
        let typed = |(field, data_type): (&Arc<ArrowField>, DataType)| {
            field.as_ref().clone().with_data_type(data_type)
        };
        let schema: Vec<ArrowField> = self.schema.fields().iter().zip(types).map(typed).collect();
        let schema = ArrowSchema::new_with_metadata(schema, self.schema.metadata().clone());
        let options =
            ArrowReaderOptions::new().with_skip_arrow_metadata(true).with_schema(Arc::new(schema));
        let metadata = ArrowReaderMetadata::try_new(self.metadata.clone(), options);
        let damaged = ReaderError::damaged("its schema cannot be read", path);
        let metadata = metadata.map_err(|error| damaged(error.to_string()))?;
        let source = ParquetGroups { input: self.input.clone(), metadata };
        Ok(GroupPlan { source: Arc::new(source), columns })
    }

    /// Returns whether all pages of a column are encoded with a dictionary.
    fn is_dictionary(&self, column: usize) -> bool {
        let descriptor = self.metadata.file_metadata().schema_descr();
        let Some(leaf) =
            (0..descriptor.num_columns()).find(|&l| descriptor.get_column_root_idx(l) == column)
        else {
            return false;
        };
        self.metadata.row_groups().iter().all(|group| {
            group.column(leaf).page_encoding_stats_mask().is_some_and(|mask| {
                mask.is_only(Encoding::RLE_DICTIONARY) || mask.is_only(Encoding::PLAIN_DICTIONARY)
            })
        })
    }
}
