//! The conversion of data files to requests, which hold the rows in the form that a client sends.
//!
//! All other modules of this crate make batches. A request holds raw values, because a model
//! encodes them itself ([`Encoder`](zillion_feature::Encoder)). Predictions from files use this
//! module. The publishing of a version uses it too, because a version contains some rows with which
//! a server checks itself. Cells, missing values and lists are decoded as in training. If a model
//! encodes these rows, the batches are therefore bit for bit equal to the batches that training
//! reads from the files.
//!
//! # Invariants
//! * All rows are returned, in the order of the files: no row is shuffled, sampled or left out. A
//!   bad row is always an error, and `data.max_bad_rows` is ignored, because callers match other
//!   data (such as scores) to the rows by their numbers.
//! * A block contains exactly the inputs that the encoder of the schema needs. Side tables are not
//!   read; for a joined feature, the request contains the key.

mod inputs;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{LabelColumn, RawColumns, Schema};

use crate::arrays::TextRules;
use crate::assembly::gather_label;
use crate::config::DataConfig;
use crate::error::{ReaderError, Result};
use crate::feed::Feed;
use crate::field::{self, Field};
use crate::reading::Reading;
use crate::source::DataFile;
use crate::text::{OtherColumns, count_rows};
use inputs::Inputs;

/// A reader that returns the rows of data files as requests, in file order.
///
/// ```
/// use zillion_feature::{RawValues, Schema};
/// use zillion_reader::{DataConfig, RawRows};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("rows.csv");
/// std::fs::write(&file, "user,time\n7,1\n8,0\n-9,1\n")?;
/// let job: toml::Value =
///     toml::from_str::<toml::Table>("[features.user]\nkind = 'id'\n[labels.click]")?.into();
/// let schema = Schema::from_job(&job)?;
///
/// let mut rows = RawRows::open(&DataConfig::default(), &[file], &schema)?;
/// let block = rows.next_block(2)?.expect("there are three rows");
/// assert_eq!((block.first, block.rows), (0, 2));
/// assert_eq!(block.columns["user"].values, RawValues::Ints(vec![7, 8]));
/// assert_eq!(rows.next_block(2)?.map(|block| block.first), Some(2));
/// assert!(rows.next_block(2)?.is_none());
/// # Ok(())
/// # }
/// ```
pub struct RawRows {
    reading: Arc<Reading>,
    inputs: Inputs,
    /// The index of the field of each label; `None` if labels are not read or if some file lacks
    /// the column.
    labels: Vec<Option<usize>>,
    feed: Feed,
    /// The number of rows that have been returned.
    rows: u64,
    /// Whether the reading has ended, after the last row or after an error.
    is_over: bool,
}

/// Consecutive rows in the form of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RawBlock {
    /// The number of rows before the block, counted over all files.
    pub first: u64,
    /// The number of rows of the block.
    pub rows: usize,
    /// The inputs of a request.
    pub columns: RawColumns<'static>,
    /// The labels, one entry for each label of the schema. The values are 0 or 1 as in training,
    /// and a mask marks rows without a label. An entry is `None` if some file lacks the column. All
    /// entries are `None` if the reader was not opened with [`RawRows::open_labelled`].
    pub labels: Vec<Option<LabelColumn>>,
}

impl RawRows {
    /// Opens files (see [`DataConfig::files`]) in the formats of the job's data. The files need
    /// only the columns of features. The settings of `config` for the order and the sampling of
    /// rows are ignored.
    ///
    /// # Errors
    /// Returns an error in one of these cases: a file cannot be read, is empty or truncated, or
    /// lacks a column; the type of a column does not fit; there is no row; two features would have
    /// the same name in a request but need different values.
    pub fn open(config: &DataConfig, files: &[PathBuf], schema: &Schema) -> Result<Self> {
        let no_labels = schema.labels.iter().map(|_| None).collect();
        Self::open_with(config, files, schema, |_| no_labels)
    }

    /// Opens files like [`RawRows::open`], and also reads the labels whose columns are in all
    /// files.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`RawRows::open`].
    pub fn open_labelled(config: &DataConfig, files: &[PathBuf], schema: &Schema) -> Result<Self> {
        Self::open_with(config, files, schema, |sources| {
            let labels = field::labels(schema, true).map(|field| {
                sources.iter().all(|file| file.has_column(&field.column)).then_some(field)
            });
            labels.collect()
        })
    }

    /// Opens files whose `columns` a caller copies as they are. The inputs of a block have the
    /// names of the columns.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or lacks a column, if a column holds lists, or if
    /// there is no row.
    pub fn open_columns(
        config: &DataConfig,
        files: &[PathBuf],
        columns: &[String],
    ) -> Result<Self> {
        let sources = DataFile::open_all(config, files)?;
        let (inputs, fields) = Inputs::of_columns(columns);
        Self::open_fields(config, sources, inputs, fields, Vec::new())
    }

    fn open_with(
        config: &DataConfig,
        files: &[PathBuf],
        schema: &Schema,
        labels_of: impl FnOnce(&[DataFile]) -> Vec<Option<Field>>,
    ) -> Result<Self> {
        let sources = DataFile::open_all(config, files)?;
        let (inputs, mut fields) = Inputs::of(schema)?;
        let mut labels = Vec::with_capacity(schema.labels.len());
        for field in labels_of(&sources) {
            labels.push(field.is_some().then_some(fields.len()));
            fields.extend(field);
        }
        Self::open_fields(config, sources, inputs, fields, labels)
    }

    fn open_fields(
        config: &DataConfig,
        sources: Vec<DataFile>,
        inputs: Inputs,
        fields: Vec<Field>,
        labels: Vec<Option<usize>>,
    ) -> Result<Self> {
        let reading = Reading::new(
            &Arc::new(sources),
            fields,
            TextRules::new(config),
            OtherColumns::PassOver,
        )?;
        reading.refuse_empty()?;
        let reading = Arc::new(reading);
        // A pool of one thread does not start a thread.
        let workers = Workers::new(NonZeroUsize::MIN)
            .map_err(|error| ReaderError::setting("run.threads", error.to_string()))?;
        let order = (0..reading.units.len() as u32).collect();
        let feed = Feed::new(reading.clone(), Arc::new(workers), Arc::default(), order, 0);
        Ok(Self { reading, inputs, labels, feed, rows: 0, is_over: false })
    }

    /// Reads the next `limit` rows, or fewer at the end. A `limit` of 0 counts as 1. Returns `None`
    /// after the last row and after an error.
    ///
    /// # Errors
    /// Returns an error with file, row and column if a row cannot be read, if it lacks a value that
    /// a feature needs, or if it has a list with weights, which a request cannot contain.
    pub fn next_block(&mut self, limit: usize) -> Result<Option<RawBlock>> {
        if self.is_over {
            return Ok(None);
        }
        self.is_over = true;
        let pieces = self.feed.fill(limit.max(1))?;
        let rows = pieces.iter().map(|piece| piece.rows).sum();
        if rows == 0 {
            return Ok(None);
        }
        let label = |field: usize| gather_label(&pieces, field, &self.reading.fields[field].role);
        let block = RawBlock {
            first: self.rows,
            rows,
            columns: self.inputs.columns(&pieces, &self.reading.fields),
            labels: self.labels.iter().map(|field| field.map(label)).collect(),
        };
        self.rows += rows as u64;
        self.is_over = false;
        Ok(Some(block))
    }

    /// Returns the number of rows in all files, including the rows that have already been read. For
    /// text files, this function reads all bytes but decodes no value.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn count(&self) -> Result<u64> {
        let mut rows = 0;
        for file in self.reading.files.iter() {
            if let Some(known) = file.rows() {
                rows += known;
            } else if let Some(text) = file.text() {
                let mut chunks = text.chunks()?;
                while let Some(chunk) = chunks.next_chunk()? {
                    rows += count_rows(&chunk, text.grammar()) as u64;
                }
            }
        }
        Ok(rows)
    }
}

impl std::fmt::Debug for RawRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawRows")
            .field("inputs", &self.inputs)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}
