//! The opening of a file by its format.

use std::path::Path;
use std::sync::Arc;

use super::{ArraySource, Source};
use crate::config::DataConfig;
use crate::error::Result;
use crate::format::{FileFormat, format_of};
use crate::ipc::IpcFile;
use crate::parquet::ParquetFile;
use crate::text::TextFile;

/// A data file of any format, opened and checked, for tools that read files without a schema.
#[derive(Clone, Debug)]
pub struct DataFile(pub(crate) Arc<dyn Source>);

impl DataFile {
    /// Opens a file in the format that the settings or its ending name.
    ///
    /// # Errors
    /// Returns an error if the format is not known, or if the file cannot be read, is empty or is
    /// damaged.
    pub fn open(config: &DataConfig, path: &Path) -> Result<Self> {
        Ok(Self(match format_of(path, config.format)? {
            FileFormat::Parquet => Arc::new(ParquetFile::open(path)?),
            FileFormat::Arrow => Arc::new(IpcFile::open(path)?),
            FileFormat::Text(format, compression) => {
                Arc::new(TextFile::open(path, compression, config, format)?)
            }
        }))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the names of the columns in the order of the file.
    pub fn columns(&self) -> Vec<&str> {
        self.0.columns()
    }

    /// Returns whether the file has a column of this name.
    pub fn has_column(&self, name: &str) -> bool {
        self.columns().contains(&name)
    }

    /// Returns the number of rows, if it is known before the rows are read, as it is for Parquet
    /// and Arrow files.
    pub fn rows(&self) -> Option<u64> {
        self.0.rows()
    }

    /// Returns the file as text, if it is a text file.
    pub fn text(&self) -> Option<&TextFile> {
        self.0.text()
    }

    /// Returns the file as typed columns, if its format has types.
    pub fn arrays(&self) -> Option<&dyn ArraySource> {
        self.0.arrays()
    }
}
