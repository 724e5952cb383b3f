//! CSV and TSV, JSON lines, libsvm: bytes to chunks of whole records (one after another), chunks to rows
//! (in parallel).

mod cell;
mod chunks;
mod decode;
mod json;
mod lines;
mod records;
mod source;
mod svm;

use std::path::Path;
use std::sync::Arc;

use crate::config::{DataConfig, Decimal, Header, TextFormat};
use crate::error::{ReaderError, Result};
use crate::field::Field;
use crate::files::Compression;
use crate::header;

pub(crate) use chunks::{Chunk, Chunks};
pub(crate) use decode::{BadRow, Problem, TextBlock, TextPlan, count, decode};
use decode::{CellPlan, RowPlan};
use json::JsonPlan;
pub(crate) use json::{JsonRow, Keys, Value};
pub(crate) use lines::Lines;
pub(crate) use records::{Dialect, Records, Step};
use source::open_file;
pub(crate) use source::open_stream;
use svm::SvmPlan;
pub(crate) use svm::{Reads, SvmRow};

/// Rows that tell the columns of a file without a header.
const LINES_LOOKED_AT: usize = 1000;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grammar {
    /// Records of cells.
    Cells(Dialect),
    /// An object a line.
    Json,
    /// A sparse vector a line.
    Svm,
}

/// How rows are written in the text files of a dataset, and what stands for a missing value.
#[derive(Clone, Debug)]
pub(crate) struct TextSettings {
    pub(crate) grammar: Grammar,
    pub(crate) null: Arc<Vec<Vec<u8>>>,
    pub(crate) list_separator: u8,
    pub(crate) decimal: Decimal,
}

impl TextPlan {
    /// A row may have nothing that no field reads.
    pub(crate) fn refuse_others(&mut self) {
        match &mut self.rows {
            // A record has as many cells as the header.
            RowPlan::Cells(_) => {}
            RowPlan::Json(plan) => plan.keys.refuse_others(),
            RowPlan::Svm(plan) => plan.refuses_others = true,
        }
    }
}

/// Why a row is refused that has a column which the first rows of its file do not have.
pub(super) fn beyond_first_rows(column: &str) -> String {
    format!(
        "it has a column `{column}`, which none of the first {LINES_LOOKED_AT} rows of the file has and which would \
         get lost; write it in the first row too, as null or empty"
    )
}

impl TextSettings {
    pub(crate) fn new(config: &DataConfig, format: TextFormat) -> Self {
        Self {
            grammar: match format {
                TextFormat::Csv | TextFormat::Tsv => Grammar::Cells(Dialect {
                    delimiter: config.delimiter_for(format),
                    quote: config.quote.byte(),
                }),
                TextFormat::Json => Grammar::Json,
                TextFormat::Svm => Grammar::Svm,
            },
            null: Arc::new(config.null.iter().map(|text| text.clone().into_bytes()).collect()),
            list_separator: config.list_separator.0,
            decimal: config.decimal,
        }
    }
}

/// A text file whose columns are known.
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) compression: Compression,
    pub(crate) settings: TextSettings,
    /// Whether the first record is a header.
    pub(crate) has_header: bool,
    /// Names of the columns: of the header, or of the first rows.
    pub(crate) columns: Vec<String>,
    /// Whether there is a record behind the header.
    pub(crate) has_rows: bool,
}

impl TextFile {
    /// Reads the header, or looks at the first rows, and whether there is one.
    pub(crate) fn open(
        path: &Path,
        compression: Compression,
        config: &DataConfig,
        format: TextFormat,
    ) -> Result<Self> {
        let settings = TextSettings::new(config, format);
        let chunks = Chunks::new(open_file(path, compression)?, path, settings.grammar)?;
        Self::of_chunks(chunks, compression, settings, config).map(|(file, _)| file)
    }

    /// The same of a stream, which is returned behind its header.
    pub(crate) fn of_chunks(
        mut chunks: Chunks,
        compression: Compression,
        settings: TextSettings,
        config: &DataConfig,
    ) -> Result<(Self, Chunks)> {
        let (has_header, columns) = match (settings.grammar, &config.header) {
            (Grammar::Cells(dialect), Header::Yes) => (true, chunks.take_header(dialect)?),
            (Grammar::Cells(_), Header::Names(names)) => (false, names.clone()),
            (Grammar::Json, _) => (false, chunks.columns(json::columns)?),
            (Grammar::Svm, _) => (false, chunks.columns(svm::columns)?),
        };
        let has_rows = chunks.has_more()?;
        Ok((Self { compression, settings, has_header, columns, has_rows }, chunks))
    }

    /// Chunks from the first data row on.
    pub(crate) fn chunks(&self, path: &Path) -> Result<Chunks> {
        let source = open_file(path, self.compression)?;
        let mut chunks = Chunks::new(source, path, self.settings.grammar)?;
        if let (true, Grammar::Cells(dialect)) = (self.has_header, self.settings.grammar) {
            chunks.take_header(dialect)?;
        }
        Ok(chunks)
    }

    /// What each field is decoded from.
    pub(crate) fn plan(
        &self,
        path: &Path,
        fields: &[Field],
        first: Option<&Path>,
    ) -> Result<TextPlan> {
        let settings = self.settings.clone();
        let rows = match settings.grammar {
            Grammar::Cells(_) => {
                let mut cells = Vec::with_capacity(fields.len());
                for (index, field) in fields.iter().enumerate() {
                    cells.push((header::find(&self.columns, field, path, first)?, index));
                }
                cells.sort_unstable();
                RowPlan::Cells(CellPlan { width: self.columns.len(), cells })
            }
            Grammar::Json => {
                let mut plan = JsonPlan::default();
                for field in fields {
                    self.find_in_rows(field, path)?;
                    plan.key_of.push(plan.keys.add(&field.column));
                }
                RowPlan::Json(plan)
            }
            Grammar::Svm => {
                fields.iter().try_for_each(|field| self.find_in_rows(field, path))?;
                RowPlan::Svm(SvmPlan::new(&self.columns, fields, path)?)
            }
        };
        Ok(TextPlan { settings, rows })
    }

    /// Whether the first rows of a file without a header have a field's column.
    fn find_in_rows(&self, field: &Field, path: &Path) -> Result<()> {
        let found = header::find(&self.columns, field, path, None);
        found.map(drop).map_err(|error| match error {
            ReaderError::MissingColumn { column, used_by, hint, path } => {
                let rows = format!("none of the first {LINES_LOOKED_AT} rows has it");
                let remedy = match self.settings.grammar {
                    Grammar::Json => {
                        "; where a key is that rare, write it in the first row too, as null"
                    }
                    _ => "",
                };
                let hint = format!("{rows}, {hint}{remedy}");
                ReaderError::MissingColumn { column, used_by, hint, path }
            }
            other => other,
        })
    }
}
