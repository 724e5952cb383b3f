//! CSV and TSV: bytes to chunks of whole records (one after another), chunks to rows (in parallel).

mod chunks;
mod decode;
mod records;
mod source;

use std::path::Path;
use std::sync::Arc;

use crate::config::{DataConfig, Decimal, Header, TextFormat};
use crate::error::Result;
use crate::field::Field;
use crate::files::Compression;
use crate::header;

pub(crate) use chunks::{Chunk, Chunks};
pub(crate) use decode::{BadRow, Problem, TextPlan, count, decode};
pub(crate) use records::{Dialect, Records, Step};
use source::open_file;
pub(crate) use source::open_stream;

/// How cells are separated, quoted and left empty in all text files of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct TextSettings {
    pub(crate) dialect: Dialect,
    pub(crate) null: Arc<Vec<Vec<u8>>>,
    pub(crate) list_separator: u8,
    pub(crate) decimal: Decimal,
}

impl TextSettings {
    pub(crate) fn new(config: &DataConfig, format: TextFormat) -> Self {
        Self {
            dialect: Dialect {
                delimiter: config.delimiter_for(format),
                quote: config.quote.byte(),
            },
            null: Arc::new(config.null.iter().map(|text| text.clone().into_bytes()).collect()),
            list_separator: config.list_separator.0,
            decimal: config.decimal,
        }
    }
}

/// A text file whose header has been read.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) compression: Compression,
    pub(crate) settings: TextSettings,
    /// Whether the first record is a header.
    pub(crate) has_header: bool,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// Whether there is a record behind the header.
    pub(crate) has_rows: bool,
}

impl TextFile {
    /// Reads the header and looks whether there is a row.
    pub(crate) fn open(
        path: &Path,
        compression: Compression,
        config: &DataConfig,
        format: TextFormat,
    ) -> Result<Self> {
        let settings = TextSettings::new(config, format);
        let chunks = Chunks::new(open_file(path, compression)?, path, settings.dialect)?;
        Self::of_chunks(chunks, compression, settings, config).map(|(file, _)| file)
    }

    /// The same of a stream, which is returned behind its header.
    pub(crate) fn of_chunks(
        mut chunks: Chunks,
        compression: Compression,
        settings: TextSettings,
        config: &DataConfig,
    ) -> Result<(Self, Chunks)> {
        let (has_header, columns) = match &config.header {
            Header::Yes => (true, chunks.take_header()?),
            Header::Names(names) => (false, names.clone()),
        };
        let has_rows = chunks.has_more()?;
        Ok((Self { compression, settings, has_header, columns, has_rows }, chunks))
    }

    /// Chunks from the first data row on.
    pub(crate) fn chunks(&self, path: &Path) -> Result<Chunks> {
        let source = open_file(path, self.compression)?;
        let mut chunks = Chunks::new(source, path, self.settings.dialect)?;
        if self.has_header {
            chunks.take_header()?;
        }
        Ok(chunks)
    }

    /// Which cell each field is decoded from.
    pub(crate) fn plan(
        &self,
        path: &Path,
        fields: &[Field],
        first: Option<&Path>,
    ) -> Result<TextPlan> {
        let mut cells = Vec::with_capacity(fields.len());
        for (index, field) in fields.iter().enumerate() {
            cells.push((header::find(&self.columns, field, path, first)?, index));
        }
        cells.sort_unstable();
        Ok(TextPlan { width: self.columns.len(), cells, settings: self.settings.clone() })
    }
}
