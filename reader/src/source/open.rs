//! The opening of data files of all formats.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ArraySource, FilePlan, Opened, Unit};
use crate::config::DataConfig;
use crate::error::{ReaderError, Result};
use crate::field::Field;
use crate::format::{FileFormat, format_of};
use crate::input::Input;
use crate::ipc::IpcFile;
use crate::parquet::ParquetFile;
use crate::text::{OtherColumns, TextFile, TextPlan};

/// The number of files in buckets whose first requests are sent before they are opened.
const OPENED_AHEAD: usize = 16;

/// The number of bytes at the beginning of a text file, or at the end of another file, that are
/// requested before the file is opened. Most headers and footers are shorter.
const OPENING_BYTES: u64 = 64 << 10;

/// A data file of any format that has been opened and checked. Tools use it to read files without a
/// schema.
#[derive(Clone, Debug)]
pub struct DataFile(pub(crate) Opened);

impl DataFile {
    /// Opens a file. If the settings name no format, the extension of the file decides.
    ///
    /// # Errors
    /// Returns an error if the format is not known, or if the file cannot be read, is empty or is
    /// damaged.
    pub fn open(config: &DataConfig, path: &Path) -> Result<Self> {
        let input = Input::open(&config.stores, path)?;
        Ok(Self(match format_of(path, config.format)? {
            FileFormat::Parquet => Opened::Groups(Arc::new(ParquetFile::open_input(input)?)),
            FileFormat::Arrow => Opened::Groups(Arc::new(IpcFile::open(input)?)),
            FileFormat::Text(format, compression) => {
                Opened::Text(Arc::new(TextFile::open(input, compression, config, format)?))
            }
        }))
    }

    /// Checks the settings, and opens the files of a list with them.
    pub(crate) fn open_all(config: &DataConfig, paths: &[PathBuf]) -> Result<Vec<Self>> {
        config.check()?;
        if paths.is_empty() {
            return Err(ReaderError::setting("data", "no files are given; name at least one"));
        }
        config.stores.bind(paths)?;
        let mut files = Vec::with_capacity(paths.len());
        let mut ahead = paths.iter();
        ahead.by_ref().take(OPENED_AHEAD).try_for_each(|path| Self::read_ahead(config, path))?;
        for path in paths {
            files.push(Self::open(config, path)?);
            ahead.next().map_or(Ok(()), |path| Self::read_ahead(config, path))?;
        }
        Ok(files)
    }

    /// Begins to read those bytes of a file in a bucket that opening it needs.
    fn read_ahead(config: &DataConfig, path: &Path) -> Result<()> {
        if let Input::Object(object) = Input::open(&config.stores, path)? {
            let bytes = object.bytes();
            object.read_ahead(match format_of(path, config.format)? {
                FileFormat::Text(..) => 0..bytes.min(OPENING_BYTES),
                FileFormat::Parquet | FileFormat::Arrow => {
                    bytes.saturating_sub(OPENING_BYTES)..bytes
                }
            });
        }
        Ok(())
    }

    /// Returns the error about a list of files that have no rows.
    pub(crate) fn no_rows(files: &[Self]) -> ReaderError {
        ReaderError::NoRows { files: files.len(), path: files[0].path().to_owned() }
    }

    /// Returns the path of the file, or the name of the stream.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Opened::Text(file) => file.path(),
            Opened::Groups(file) => file.path(),
        }
    }

    /// Returns the names of the columns in the order of the file.
    pub fn columns(&self) -> Vec<&str> {
        match &self.0 {
            Opened::Text(file) => file.columns().iter().map(String::as_str).collect(),
            Opened::Groups(file) => file.columns(),
        }
    }

    /// Returns whether the file has a column of this name.
    pub fn has_column(&self, name: &str) -> bool {
        self.columns().contains(&name)
    }

    /// Returns the number of rows if it is known before the rows are read, as in Parquet and Arrow
    /// files; otherwise returns `None`.
    pub fn rows(&self) -> Option<u64> {
        match &self.0 {
            Opened::Text(file) => (!file.has_rows() && !file.is_stream()).then_some(0),
            Opened::Groups(file) => Some(file.groups().iter().sum()),
        }
    }

    /// Returns the text file, or `None` if the file is not text.
    pub fn text(&self) -> Option<&TextFile> {
        match &self.0 {
            Opened::Text(file) => Some(file),
            Opened::Groups(_) => None,
        }
    }

    /// Returns the file as a source of Arrow arrays, or `None` if it is a text file.
    pub fn arrays(&self) -> Option<&dyn ArraySource> {
        match &self.0 {
            Opened::Text(_) => None,
            Opened::Groups(file) => Some(file.as_ref()),
        }
    }

    /// Returns the units of the file. `file` is the index of the file in the list. Units without
    /// rows are left out.
    pub(crate) fn units(&self, file: usize) -> Vec<Unit> {
        let groups = match &self.0 {
            Opened::Text(text) => {
                let unit = Unit { file, group: 0, rows_before: 0, rows: 0 };
                return text.has_rows().then_some(unit).into_iter().collect();
            }
            Opened::Groups(groups) => groups.groups(),
        };
        let mut rows_before = 0;
        let units = groups.iter().enumerate().map(|(group, &rows)| {
            rows_before += rows;
            Unit { file, group, rows_before: rows_before - rows, rows }
        });
        units.filter(|unit| unit.rows > 0).collect()
    }

    /// Finds the columns of the fields, checks their types, and returns the plan that decodes them.
    /// `first` is the first file of the list if this file is a later one. `others` is the rule for
    /// the columns of a text file that no field reads.
    ///
    /// # Errors
    /// Returns an error if a column is missing or if its type does not fit.
    pub(crate) fn plan(
        &self,
        fields: &[Field],
        first: Option<&Path>,
        others: OtherColumns,
    ) -> Result<FilePlan> {
        Ok(match &self.0 {
            Opened::Text(file) => {
                let rows = file.row_plan(fields, first, others)?;
                FilePlan::Text(Arc::new(TextPlan { file: file.clone(), rows }))
            }
            Opened::Groups(file) => FilePlan::Groups(Arc::new(file.plan(fields, first)?)),
        })
    }
}
