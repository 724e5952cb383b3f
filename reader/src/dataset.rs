//! A dataset: a list of files as one set of rows.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Cursor, Schema, Statistics};

use crate::arrays::TextRules;
use crate::assembly::Assembly;
use crate::config::{DataConfig, Share};
use crate::counts::{Counts, ReadCounts};
use crate::error::Result;
use crate::field::{self, Field, Slot};
use crate::format::{Format, TextFormat};
use crate::policy::{RowPolicy, Thinning};
use crate::reading::Reading;
use crate::rejects::{Reject, RejectLog};
use crate::side_tables::SideTables;
use crate::source::{DataFile, Opened};
use crate::stream::{BatchOrder, BatchStream};
use crate::text::{OtherColumns, TextFile};

/// The number of rows of a window if nothing is shuffled: enough to keep the pool busy, and few
/// enough that they are still in a cache when batches are cut from them.
const PLAIN_WINDOW: usize = 8192;

/// The requirement for the columns that only training and evaluation need: labels, weights, groups
/// and event times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// A file without such a column is an error.
    #[default]
    Required,
    /// A column that some file lacks is left out of the batches, as prediction needs it.
    Optional,
}

/// A list of files whose headers, types and sizes have been checked against a schema.
#[derive(Clone, Debug)]
pub struct Dataset {
    files: Arc<Vec<DataFile>>,
    schema: Arc<Schema>,
    sides: SideTables,
    statistics: Statistics,
    /// The labels and similar columns that the files do not have.
    lacking: Vec<Slot>,
    rules: TextRules,
    shuffle_window: usize,
    policy: RowPolicy,
    rejects: Arc<RejectLog>,
    counts: Arc<Counts>,
    root: PathBuf,
}

impl Dataset {
    /// Opens files (see [`DataConfig::files`]) and checks them before any row is read.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, is empty or truncated, or lacks a column, if the
    /// type of a column does not fit, or if there is no row.
    pub fn open(config: &DataConfig, files: &[PathBuf], schema: &Schema) -> Result<Self> {
        Self::open_with(config, files, schema, Labels::Required)
    }

    /// Opens files as [`Dataset::open`] does, with a choice about labels.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Dataset::open`].
    pub fn open_with(
        config: &DataConfig,
        files: &[PathBuf],
        schema: &Schema,
        labels: Labels,
    ) -> Result<Self> {
        Self::open_beside(config, files, schema, labels, &SideTables::load(config, schema)?)
    }

    /// Opens files as [`Dataset::open_with`] does, with side tables that have already been read for
    /// the same schema.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Dataset::open`].
    pub fn open_beside(
        config: &DataConfig,
        files: &[PathBuf],
        schema: &Schema,
        labels: Labels,
        sides: &SideTables,
    ) -> Result<Self> {
        let files = DataFile::open_all(config, files)?;
        Self::of_files(config, files, schema, labels, sides.clone())
    }

    /// Opens a dataset of one text stream, such as standard input, which can be read once. The
    /// format is the text format that `data.format` names, or else CSV. The compression is
    /// recognised from the first bytes. `name` is the name of the stream in messages.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Dataset::open`].
    pub fn from_reader(
        config: &DataConfig,
        stream: impl Read + Send + 'static,
        name: &str,
        schema: &Schema,
        labels: Labels,
    ) -> Result<Self> {
        config.check()?;
        let format = match config.format {
            Format::Tsv => TextFormat::Tsv,
            Format::Jsonl => TextFormat::Json,
            Format::Libsvm => TextFormat::Svm,
            Format::Auto | Format::Csv | Format::Parquet | Format::Arrow => TextFormat::Csv,
        };
        let file = TextFile::open_stream(Box::new(stream), name, config, format)?;
        let sides = SideTables::load(config, schema)?;
        Self::of_files(config, vec![DataFile(Opened::Text(Arc::new(file)))], schema, labels, sides)
    }

    fn of_files(
        config: &DataConfig,
        files: Vec<DataFile>,
        schema: &Schema,
        labels: Labels,
        sides: SideTables,
    ) -> Result<Self> {
        let mut dataset = Self {
            files: Arc::new(files),
            schema: Arc::new(schema.clone()),
            sides,
            statistics: Statistics::default(),
            lacking: Vec::new(),
            rules: TextRules::new(config),
            shuffle_window: config.shuffle_window.get(),
            policy: RowPolicy { max_bad: config.max_bad_rows, thinning: Thinning::default() },
            rejects: Arc::new(RejectLog::new(config.rejects.is_some())),
            counts: Arc::default(),
            root: config.root.clone(),
        };
        let mut fields = field::unresolved(schema, &dataset.sides)?;
        if labels == Labels::Optional {
            let lacks = |field: &Field| {
                field.slot.only_training_needs_it()
                    && !dataset.files.iter().all(|file| file.has_column(&field.column))
            };
            dataset.lacking = fields.iter().filter(|f| lacks(f)).map(|f| f.slot).collect();
            fields.retain(|field| !dataset.lacking.contains(&field.slot));
        }
        dataset.reading(fields)?.refuse_empty()?;
        Ok(dataset)
    }

    /// Returns the same data with the statistics that its transforms need. Every dataset that a
    /// model sees uses the statistics of the training data.
    #[must_use]
    pub fn with_statistics(mut self, statistics: Statistics) -> Self {
        self.statistics = statistics;
        self
    }

    /// Returns the training data: the same files with only those rows that `data.sample` and
    /// `data.negatives` keep. The first passes read the sample with all its rows of label 0.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`DataConfig::negatives`].
    pub fn thinned(mut self, config: &DataConfig, seed: u64) -> Result<Self> {
        self.policy.thinning = Thinning {
            seed,
            sample: config.sample.map(Share::get),
            negatives: config.negatives(&self.schema)?,
        };
        Ok(self)
    }

    /// Returns the rows that all passes so far have left out as bad, each once, sorted by file and
    /// row.
    /// The list is empty unless `data.rejects` names a file.
    pub fn rejects(&self) -> Vec<Reject> {
        self.rejects.rows()
    }

    /// Returns the messages of the first few bad rows.
    pub fn first_rejects(&self) -> Vec<String> {
        self.rejects.examples()
    }

    /// Returns the counts of bytes and bad rows over all passes so far; clones of a dataset share
    /// the counts.
    pub fn counts(&self) -> ReadCounts {
        self.counts.snapshot()
    }

    /// Returns whether bad rows may be left out; all passes must leave out the same rows.
    pub(crate) fn leaves_out(&self) -> bool {
        self.policy.max_bad > 0
    }

    /// Returns whether the files lack the column of a field that only training needs.
    pub(crate) fn lacks(&self, field: &Field) -> bool {
        self.lacking.contains(&field.slot)
    }

    /// Returns the statistics that the transforms of the schema use.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the side tables of the schema.
    pub fn sides(&self) -> &SideTables {
        &self.sides
    }

    pub(crate) fn files(&self) -> &[DataFile] {
        &self.files
    }

    /// Returns the schema that the data was checked against.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the paths of the files in their order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }

    /// Returns the number of rows, if the files record it (as Parquet does).
    pub fn rows(&self) -> Option<u64> {
        self.files.iter().map(DataFile::rows).sum()
    }

    /// Returns the batches from a position to the end of its epoch. The order of rows is a function
    /// of the seed, the cursor's epoch, the files and the shuffle window; the number of threads
    /// does not change it. Rows that are left out, because they are bad or not drawn, keep their
    /// places in the order.
    ///
    /// # Errors
    /// Returns an error if a transform needs statistics that [`Dataset::with_statistics`] was not
    /// given.
    pub fn batches(
        &self,
        order: BatchOrder,
        from: Cursor,
        workers: Arc<Workers>,
    ) -> Result<BatchStream> {
        let mut fields = field::resolved(&self.schema, &self.sides, &self.statistics)?;
        fields.retain(|field| !self.lacking.contains(&field.slot));
        let mut reading = self.reading(fields)?;
        reading.leave_out(&self.policy, from.epoch, &self.rejects, &self.root);
        let reading = Arc::new(reading);
        let window = match (order.shuffle, reading.is_stream()) {
            (true, _) => self.shuffle_window,
            // Rows of a stream are passed on as soon as a batch is full.
            (false, true) => order.batch_rows.max(1),
            (false, false) => PLAIN_WINDOW.max(order.batch_rows),
        };
        let assembly = Assembly::new(&self.schema, &self.sides, &self.statistics, |_| true)?;
        Ok(BatchStream::new(reading, assembly, order, window, from, workers))
    }

    /// Returns a pass before the first epoch. Bad rows and rows that are not sampled are left out
    /// as in training, but all rows of label 0 are read, because every epoch draws others.
    pub(crate) fn first_pass(&self, fields: Vec<Field>) -> Result<Reading> {
        let mut reading = self.reading(fields)?;
        let thinning = Thinning { negatives: None, ..self.policy.thinning };
        let policy = RowPolicy { thinning, ..self.policy };
        reading.leave_out(&policy, 0, &self.rejects, &self.root);
        Ok(reading)
    }

    /// Plans a pass that decodes `fields` of every row.
    pub(crate) fn reading(&self, fields: Vec<Field>) -> Result<Reading> {
        let reading =
            Reading::new(&self.files, fields, self.rules.clone(), OtherColumns::PassOver)?;
        Ok(Reading { counts: self.counts.clone(), ..reading })
    }
}
