//! The Parquet files of the tools: checks of the sources, lookups of columns, and the writing of
//! files. A new file appears only when it is complete.

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::take::take;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use zillion_device::Files;
use zillion_reader::{FileFormat, Format, ParquetFile, ReaderError, Result, Stores, format_of};

/// The number of rows in a row group. Shuffling moves a row group as a whole, and one thread
/// decodes it at a time.
const GROUP_ROWS: usize = 65_536;
/// The memory of an open row group, in bytes, at which it is written although it has fewer rows.
const GROUP_BYTES: usize = 256 << 20;

/// Returns the error about the setting or the path that `key` names.
pub(crate) fn setting(problem: impl Into<String>, key: impl Display) -> ReaderError {
    ReaderError::Setting { problem: problem.into(), key: key.to_string() }
}

/// Returns the error about a failed action on a file. `what` names the action.
pub(crate) fn failed(
    what: &'static str,
    path: &Path,
    error: impl Into<Box<dyn Error + Send + Sync>>,
) -> ReaderError {
    ReaderError::Io { what, source: io::Error::other(error), path: path.to_owned() }
}

/// Returns the error about the type of a column. `needed` describes the type that the column must
/// have.
pub(crate) fn wrong_type(name: &str, found: &DataType, needed: &str, path: &Path) -> ReaderError {
    ReaderError::ColumnType {
        column: name.to_owned(),
        mismatch: format!("{found}, but {needed}; convert the column, or name another one"),
        path: path.to_owned(),
    }
}

/// Opens a source, which must be Parquet. Other formats are refused because they do not store the
/// types of columns.
pub(crate) fn open_parquet(path: &Path, stores: &Stores) -> Result<ParquetFile> {
    if format_of(path, Format::Auto)? == FileFormat::Parquet {
        return ParquetFile::open(path, stores);
    }
    let problem =
        "the file is not Parquet, which stores the types of columns; convert it to Parquet first";
    Err(setting(problem, path.display()))
}

/// Returns the column with the name `name`. `used_by` is the setting that names the column; an
/// error message mentions it.
pub(crate) fn find_column<'a>(
    batch: &'a RecordBatch,
    name: &str,
    used_by: &str,
    path: &Path,
) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| {
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let hint = match zillion_config::nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the columns are {}", names.join(", ")),
        };
        ReaderError::MissingColumn {
            column: name.to_owned(),
            used_by: format!("`{used_by}`"),
            hint,
            path: path.to_owned(),
        }
    })
}

/// Returns the values of a dictionary array row by row. An array of another type is returned
/// unchanged.
pub(crate) fn decode_dictionary(array: &ArrayRef, path: &Path) -> Result<ArrayRef> {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => take(dictionary.values(), dictionary.keys(), None)
            .map_err(|error| failed("decode a dictionary of the file", path, error)),
        None => Ok(array.clone()),
    }
}

/// Returns an error if a target is also a source, because the source would be overwritten while it
/// is read.
pub(crate) fn refuse_sources(sources: &[PathBuf], targets: &[PathBuf]) -> Result<()> {
    let read: Vec<PathBuf> =
        sources.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let is_source = |target: &&PathBuf| fs::canonicalize(target).is_ok_and(|t| read.contains(&t));
    match targets.iter().find(is_source) {
        Some(target) => {
            let problem = "the file would be overwritten while it is read; name another folder";
            Err(setting(problem, target.display()))
        }
        None => Ok(()),
    }
}

/// Returns an error if a target exists, unless existing files are replaced.
pub(crate) fn refuse_existing<'a>(
    mut targets: impl Iterator<Item = &'a Path>,
    overwrite: bool,
) -> Result<()> {
    match targets.find(|target| !overwrite && target.exists()) {
        Some(target) => {
            let problem = "the file exists; remove it, name another folder, or set `overwrite`";
            Err(setting(problem, target.display()))
        }
        None => Ok(()),
    }
}

/// Creates the folder for new files.
pub(crate) fn create_folder(folder: &Path, files: &Files) -> Result<()> {
    files.create_dir(folder).map_err(|error| failed("make the folder", folder, error))
}

/// Returns the properties that the Parquet files of the tools share.
pub(crate) fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
}

/// Writes a Parquet file with the batches that `next` returns. The file is complete when `next`
/// returns an empty list.
pub(crate) fn write_parquet(
    path: &Path,
    schema: SchemaRef,
    properties: WriterPropertiesBuilder,
    files: &Files,
    mut next: impl FnMut() -> io::Result<Vec<RecordBatch>>,
) -> Result<()> {
    let written = files.write_file(path, |file| {
        // The writer must own its target, so it writes to memory, which is copied to the file after
        // each batch.
        let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties.build()))?;
        loop {
            let batches = next()?;
            if batches.is_empty() {
                break;
            }
            for batch in batches {
                writer.write(&batch)?;
                if writer.memory_size() >= GROUP_BYTES {
                    writer.flush()?;
                }
                file.write_all(writer.inner())?;
                writer.inner_mut().clear();
            }
        }
        file.write_all(&writer.into_inner()?)
    });
    written.map(drop).map_err(|error| failed("write the file", path, error))
}
