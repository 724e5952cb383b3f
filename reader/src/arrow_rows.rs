//! A reader that returns the rows of files as Arrow record batches, starting at any row.
//! Conversions use it.
//!
//! For text files, the pool decodes the rows chunk by chunk with the decoders of training, into
//! columns of the types that the caller declares. The columns of Parquet and Arrow files keep their
//! types.

mod columns;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field as ArrowField, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use zillion_device::Workers;

use crate::arrays::TextRules;
use crate::block::Piece;
use crate::config::DataConfig;
use crate::error::{ReaderError, Result};
use crate::feed::Feed;
use crate::policy::{RowPolicy, Thinning};
use crate::reading::Reading;
use crate::rejects::{Reject, RejectLog};
use crate::source::{ArraySource, Batches, DataFile};
use crate::text::OtherColumns;
pub use columns::ColumnType;

/// A reader of the rows of some files as Arrow record batches.
pub struct ArrowRows {
    source: RowSource,
    schema: SchemaRef,
    at: u64,
}

enum RowSource {
    Text {
        feed: Box<Feed>,
        types: Arc<Vec<ColumnType>>,
        log: Arc<RejectLog>,
        /// The number of bad rows that [`ArrowRows::take_rejects`] has returned.
        taken: usize,
    },
    Arrays {
        /// The batches of all files, which are opened one after another.
        batches: Batches,
        /// The rows of the last batch that have not been returned yet, or `None` if there are no
        /// such rows.
        rest: Option<RecordBatch>,
    },
}

/// The rows that one call of [`ArrowRows::next`] has read, before they are converted to a record
/// batch.
pub struct RowSpan {
    values: Values,
    /// The number of rows of the data that the span covers.
    pub span: u64,
    /// The number of rows that the record batch will have.
    pub rows: u64,
    /// The number of rows of the span that were left out as bad.
    pub bad: u64,
}

enum Values {
    Pieces(Vec<Piece>, Arc<Vec<ColumnType>>),
    Batches(Vec<RecordBatch>),
}

impl ArrowRows {
    /// Opens files at row `from` of the data, counted from 0. `columns` holds the columns of text
    /// files and their types. `columns` must be empty for Parquet and Arrow files, because these
    /// files declare types. The reader leaves out up to `max_bad_rows` bad rows.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, if text files and files with types are mixed, if
    /// the columns of a file differ from those of the first file or from `columns`, or if there is
    /// no row.
    pub fn open(
        config: &DataConfig,
        paths: &[PathBuf],
        columns: &[(String, ColumnType)],
        max_bad_rows: u64,
        workers: &Arc<Workers>,
        from: u64,
    ) -> Result<Self> {
        let files = DataFile::open_all(config, paths)?;
        let is_text = |file: &&DataFile| file.text().is_some();
        match (files.iter().find(is_text), files.iter().find(|file| !is_text(file))) {
            (Some(text), Some(other)) => Err(ReaderError::setting(
                text.path().display(),
                format!(
                    "the file is text, but {} is Parquet or Arrow; convert them in separate runs",
                    other.path().display()
                ),
            )),
            (Some(_), None) => {
                let policy = RowPolicy { max_bad: max_bad_rows, thinning: Thinning::default() };
                Self::open_text(config, files, columns, policy, workers, from)
            }
            (None, _) => Self::open_arrays(files, columns, from),
        }
    }

    fn open_text(
        config: &DataConfig,
        files: Vec<DataFile>,
        columns: &[(String, ColumnType)],
        policy: RowPolicy,
        workers: &Arc<Workers>,
        from: u64,
    ) -> Result<Self> {
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrow = Vec::with_capacity(columns.len());
        for (name, of) in columns {
            fields.push(columns::field(name, *of));
            arrow.extend(columns::arrow_fields(name, *of));
        }
        check_names(&arrow)?;
        check_columns(columns, &files)?;
        let files = Arc::new(files);
        // If a column has no type, the conversion must not drop it silently.
        let rules = TextRules::new(config);
        let mut reading = Reading::new(&files, fields, rules, OtherColumns::Refuse)?;
        reading.refuse_empty()?;
        let log = Arc::new(RejectLog::new(true));
        reading.leave_out(&policy, 0, &log, Path::new(""));
        let order = (0..reading.units.len() as u32).collect();
        let feed = Feed::new(Arc::new(reading), workers.clone(), Arc::default(), order, from);
        let types = columns.iter().map(|(_, of)| *of).collect();
        let source =
            RowSource::Text { feed: Box::new(feed), types: Arc::new(types), log, taken: 0 };
        Ok(Self { source, schema: Arc::new(Schema::new(arrow)), at: from })
    }

    fn open_arrays(
        files: Vec<DataFile>,
        columns: &[(String, ColumnType)],
        from: u64,
    ) -> Result<Self> {
        if !columns.is_empty() {
            return Err(ReaderError::setting(
                files[0].path().display(),
                "types were given, but the file is Parquet or Arrow and keeps the types of its \
                 columns; remove the types",
            ));
        }
        let mut schema: Option<SchemaRef> = None;
        for file in &files {
            let Some(first) = batches(file)?.next() else { continue };
            let found = plain_schema(first?.schema_ref());
            match &schema {
                None => schema = Some(found),
                Some(schema) if **schema == *found => {}
                Some(schema) => return Err(other_columns(schema, &found, file.path())),
            }
        }
        let schema = schema.ok_or_else(|| DataFile::no_rows(&files))?;
        let batches = files.into_iter().flat_map(|file| match batches(&file) {
            Ok(batches) => batches,
            Err(error) => Box::new(std::iter::once(Err(error))),
        });
        let is_empty =
            |batch: &Result<RecordBatch>| batch.as_ref().is_ok_and(|batch| batch.num_rows() == 0);
        let batches = Box::new(batches.filter(move |batch| !is_empty(batch)));
        let source = RowSource::Arrays { batches, rest: None };
        let mut rows = Self { source, schema, at: 0 };
        while rows.at < from {
            let step = (from - rows.at).min(1 << 16) as usize;
            let Some(span) = rows.next(step)? else { break };
            debug_assert!(span.span > 0, "a span has rows");
        }
        Ok(rows)
    }

    /// Returns the index of the next row of the data, counted from 0 over all files.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns the names and types of the columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reads the next rows, at most `limit` rows of the data. Returns `None` at the end.
    ///
    /// # Errors
    /// Returns an error if rows cannot be read, or if too many of them are bad.
    pub fn next(&mut self, limit: usize) -> Result<Option<RowSpan>> {
        let span = match &mut self.source {
            RowSource::Text { feed, types, .. } => {
                let pieces = feed.fill(limit)?;
                let span = pieces.iter().map(|piece| piece.span as u64).sum();
                let rows = pieces.iter().map(|piece| piece.rows as u64).sum();
                let bad = pieces.iter().map(|piece| piece.rejected().count() as u64).sum();
                RowSpan { values: Values::Pieces(pieces, types.clone()), span, rows, bad }
            }
            RowSource::Arrays { batches: source, rest } => {
                let mut batches = Vec::new();
                let mut have = 0;
                while have < limit {
                    let next = rest.take().map(Ok).or_else(|| source.next());
                    let Some(batch) = next.transpose()? else { break };
                    let taken = batch.num_rows().min(limit - have);
                    if taken < batch.num_rows() {
                        *rest = Some(batch.slice(taken, batch.num_rows() - taken));
                    }
                    have += taken;
                    batches.push(batch.slice(0, taken));
                }
                let rows = have as u64;
                RowSpan { values: Values::Batches(batches), span: rows, rows, bad: 0 }
            }
        };
        self.at += span.span;
        Ok((span.span > 0).then_some(span))
    }

    /// Returns the next `count` bad rows that were left out and that no earlier call has returned.
    pub fn take_rejects(&mut self, count: u64) -> Vec<Reject> {
        match &mut self.source {
            RowSource::Text { log, taken, .. } if count > 0 => {
                let rows = log.rows().into_iter().skip(*taken).take(count as usize).collect();
                *taken += count as usize;
                rows
            }
            _ => Vec::new(),
        }
    }

    /// Returns the error messages of the first bad rows.
    pub fn examples(&self) -> Vec<String> {
        match &self.source {
            RowSource::Text { log, .. } => log.examples(),
            RowSource::Arrays { .. } => Vec::new(),
        }
    }
}

impl RowSpan {
    /// Converts the rows to one record batch.
    ///
    /// # Errors
    /// Returns an error if the rows hold more text than the offsets of a record batch can count.
    pub fn batch(self, schema: &SchemaRef) -> Result<RecordBatch> {
        let together = match self.values {
            Values::Pieces(pieces, types) => {
                let mut columns = Vec::with_capacity(schema.fields().len());
                for (field, of) in types.iter().enumerate() {
                    columns.extend(columns::array_of(&pieces, field, *of)?);
                }
                RecordBatch::try_new(schema.clone(), columns)
            }
            Values::Batches(batches) => {
                let own: std::result::Result<Vec<RecordBatch>, _> = batches
                    .iter()
                    .map(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()))
                    .collect();
                own.and_then(|own| concat_batches(schema, &own))
            }
        };
        together.map_err(columns::batch_error)
    }
}

fn batches(file: &DataFile) -> Result<Batches> {
    // Text files cannot occur here, because `open` handles them separately.
    file.arrays().map_or_else(|| Ok(Box::new(std::iter::empty()) as Batches), ArraySource::batches)
}

/// Returns the names and types of a file's columns, without the other metadata of the file.
fn plain_schema(schema: &SchemaRef) -> SchemaRef {
    let field = |f: &Arc<ArrowField>| ArrowField::new(f.name(), f.data_type().clone(), true);
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

fn other_columns(first: &Schema, found: &Schema, path: &Path) -> ReaderError {
    let list = |schema: &Schema| {
        let fields = schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type()));
        fields.collect::<Vec<_>>().join(", ")
    };
    let problem = format!(
        "the file has the columns ({}), but the first file has ({}); convert them in separate runs",
        list(found),
        list(first)
    );
    ReaderError::setting(path.display(), problem)
}

fn check_names(fields: &[ArrowField]) -> Result<()> {
    let mut names = std::collections::BTreeSet::new();
    match fields.iter().find(|field| !names.insert(field.name())) {
        None => Ok(()),
        Some(field) => Err(ReaderError::setting(
            field.name(),
            "two columns of the new file would have this name; rename one of them",
        )),
    }
}

/// Checks that every column of every file is in `columns`, because the conversion would lose any
/// other column.
fn check_columns(columns: &[(String, ColumnType)], files: &[DataFile]) -> Result<()> {
    for file in files {
        let is_typed = |name: &str| columns.iter().any(|(typed, _)| typed == name);
        if let Some(name) = file.columns().into_iter().find(|name| !is_typed(name)) {
            let problem = format!(
                "the file has a column `{name}` that the first file does not have; convert them in separate runs"
            );
            return Err(ReaderError::setting(file.path().display(), problem));
        }
    }
    Ok(())
}
