//! A text file or a text stream after its columns have been determined.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::cells::CellPlan;
use super::chunks::{Chunks, FIRST_ROWS};
use super::decode::{OtherColumns, RowPlan};
use super::encoding::Encoding;
use super::json::{self, JsonPlan};
use super::open::{Bytes, Span, open_file, open_stream};
use super::settings::{Grammar, TextSettings};
use super::svm::{self, SvmPlan};
use crate::config::{DataConfig, Header};
use crate::error::{ReaderError, Result};
use crate::field::Field;
use crate::format::{Compression, TextFormat};
use crate::header;
use crate::input::Input;

/// A text file or a text stream after its columns have been determined.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    origin: Origin,
    settings: TextSettings,
    /// Whether the first record is a header.
    has_header: bool,
    columns: Vec<String>,
    has_rows: bool,
}

/// The source of the bytes of a text.
#[derive(Debug)]
enum Origin {
    File {
        input: Input,
        compression: Compression,
        encoding: Encoding,
    },
    /// A stream that is positioned after its header. `None` after a pass has taken it.
    Stream(Mutex<Option<Chunks>>),
}

impl TextFile {
    /// Opens a file, determines its columns from the header or the first rows, and checks whether
    /// it has rows.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is empty or not UTF-8, or if its first rows
    /// cannot be decoded.
    pub(crate) fn open(
        input: Input,
        compression: Compression,
        config: &DataConfig,
        format: TextFormat,
    ) -> Result<Self> {
        let encoding = config.encoding;
        let source = open_file(&input, compression, encoding, Span::Start)?;
        let path = input.path().to_owned();
        let origin = Origin::File { input, compression, encoding };
        Ok(Self::read_start(source, &path, origin, config, format)?.0)
    }

    /// Opens a stream, which can be read only once. Messages call it `name`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`TextFile::open`].
    pub(crate) fn open_stream(
        stream: Box<dyn Read + Send>,
        name: &str,
        config: &DataConfig,
        format: TextFormat,
    ) -> Result<Self> {
        let path = Path::new(name);
        let source = config.encoding.convert(open_stream(stream, path)?);
        let origin = Origin::Stream(Mutex::default());
        let (mut file, chunks) = Self::read_start(source, path, origin, config, format)?;
        file.origin = Origin::Stream(Mutex::new(Some(chunks)));
        Ok(file)
    }

    /// Determines the columns and checks whether there are rows. Returns the file and its chunks,
    /// starting with the first row.
    fn read_start(
        source: Bytes,
        path: &Path,
        origin: Origin,
        config: &DataConfig,
        format: TextFormat,
    ) -> Result<(Self, Chunks)> {
        let settings = TextSettings::new(config, format);
        let mut chunks = Chunks::new(source, path, settings.grammar)?;
        let (has_header, columns) = match (settings.grammar, &config.header) {
            (Grammar::Cells(dialect), Header::Yes) => (true, chunks.take_header(dialect)?),
            (Grammar::Cells(_), Header::Names(names)) => (false, names.clone()),
            (Grammar::Json, _) => (false, chunks.columns(json::columns)?),
            (Grammar::Svm, _) => (false, chunks.columns(svm::columns)?),
        };
        let has_rows = chunks.has_more()?;
        let path = path.to_owned();
        Ok((Self { path, origin, settings, has_header, columns, has_rows }, chunks))
    }

    /// Returns the path of the file, or the name of the stream.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of the columns from the header, the settings or the first rows.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns the grammar of the rows.
    pub fn grammar(&self) -> Grammar {
        self.settings.grammar
    }

    /// Returns the settings that determine how the rows are decoded.
    pub(crate) fn settings(&self) -> &TextSettings {
        &self.settings
    }

    /// Returns whether the text of a cell means a missing value.
    pub fn is_missing(&self, cell: &[u8]) -> bool {
        self.settings.rules.is_missing(cell)
    }

    /// Returns whether there is at least one row.
    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// Returns whether the text is a stream, which can be read only once.
    pub fn is_stream(&self) -> bool {
        matches!(self.origin, Origin::Stream(_))
    }

    /// Returns whether the text is a file of UTF-8 without compression, so that the places of its
    /// bytes are the places in the text.
    pub(crate) fn is_plain_file(&self) -> bool {
        match &self.origin {
            Origin::File { compression: Compression::None, encoding, .. } => {
                *encoding == Encoding::default()
            }
            _ => false,
        }
    }

    /// Returns the size of the file in bytes, or `None` if the text is a stream.
    ///
    /// # Errors
    /// Returns an error if the file cannot be inspected.
    pub(crate) fn bytes(&self) -> Result<Option<u64>> {
        match &self.origin {
            Origin::File { input, .. } => Ok(Some(input.facts()?.bytes)),
            Origin::Stream(_) => Ok(None),
        }
    }

    /// Returns the chunks of the text, starting with the first row of the data.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if the stream has been read before.
    pub fn chunks(&self) -> Result<Chunks> {
        self.open_chunks(Span::All)
    }

    /// Returns the chunks of the text as [`TextFile::chunks`] does, for a caller that reads only
    /// the first of them.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`TextFile::chunks`].
    pub(crate) fn first_chunks(&self) -> Result<Chunks> {
        self.open_chunks(Span::Start)
    }

    fn open_chunks(&self, span: Span) -> Result<Chunks> {
        let source = match &self.origin {
            Origin::File { input, compression, encoding } => {
                open_file(input, *compression, *encoding, span)?
            }
            Origin::Stream(chunks) => {
                let taken = chunks.lock().unwrap_or_else(PoisonError::into_inner).take();
                return taken
                    .ok_or_else(|| ReaderError::StreamConsumed { path: self.path.clone() });
            }
        };
        let mut chunks = Chunks::new(source, &self.path, self.settings.grammar)?;
        if let (true, Grammar::Cells(dialect)) = (self.has_header, self.settings.grammar) {
            chunks.take_header(dialect)?;
        }
        Ok(chunks)
    }

    /// Finds the columns of the fields and returns the plan that decodes the rows.
    ///
    /// # Errors
    /// Returns an error if a column is missing or does not fit its field.
    pub(crate) fn row_plan(
        &self,
        fields: &[Field],
        first: Option<&Path>,
        others: OtherColumns,
    ) -> Result<Box<dyn RowPlan>> {
        Ok(match self.settings.grammar {
            Grammar::Cells(dialect) => {
                if self.has_header {
                    header::refuse_headerless(&self.columns, fields, &self.path)?;
                }
                let mut cells = Vec::with_capacity(fields.len());
                for (index, field) in fields.iter().enumerate() {
                    cells.push((header::find(&self.columns, field, &self.path, first)?, index));
                }
                cells.sort_unstable();
                // The number of cells of a record is the number of columns in the header, so no
                // value of another column can be lost.
                Box::new(CellPlan { dialect, width: self.columns.len(), cells })
            }
            Grammar::Json => {
                fields.iter().try_for_each(|field| self.find_in_rows(field))?;
                Box::new(JsonPlan::new(fields, others))
            }
            Grammar::Svm => {
                fields.iter().try_for_each(|field| self.find_in_rows(field))?;
                Box::new(SvmPlan::new(&self.columns, fields, &self.path, others)?)
            }
        })
    }

    /// Checks that the first rows of a file without a header contain the column of a field.
    fn find_in_rows(&self, field: &Field) -> Result<()> {
        let found = header::find(&self.columns, field, &self.path, None);
        found.map(drop).map_err(|error| match error {
            ReaderError::MissingColumn { column, used_by, hint, path } => {
                let rows = format!("none of the first {FIRST_ROWS} rows has it");
                let remedy = match self.settings.grammar {
                    Grammar::Json => "; if the key is rare, write it in the first row too, as null",
                    _ => "",
                };
                let hint = format!("{rows}, {hint}{remedy}");
                ReaderError::MissingColumn { column, used_by, hint, path }
            }
            other => other,
        })
    }
}
