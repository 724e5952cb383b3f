//! The dataset: the rows of a list of files.

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

/// The number of rows of a window if rows are not shuffled. It is large enough to give all threads
/// of the pool work, and small enough that the rows are still in a cache when batches are cut from
/// the window.
const PLAIN_WINDOW: usize = 8192;

/// The rule for the columns that prediction does not need: labels, weights, groups and event times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// A file without such a column is an error.
    #[default]
    Required,
    /// A column that is missing in some file is left out of all batches. Prediction uses this rule.
    Optional,
}

/// A list of files whose columns, types and sizes have been checked against a schema.
#[derive(Clone, Debug)]
pub struct Dataset {
    files: Arc<Vec<DataFile>>,
    schema: Arc<Schema>,
    sides: SideTables,
    statistics: Statistics,
    /// The places in a batch of those labels, weights, groups and event times that lack their
    /// column in some file.
    lacking: Vec<Slot>,
    rules: TextRules,
    shuffle_window: usize,
    policy: RowPolicy,
    rejects: Arc<RejectLog>,
    counts: Arc<Counts>,
    root: PathBuf,
    whole_groups: bool,
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

    /// Opens files like [`Dataset::open`]. `labels` tells whether the columns of labels, weights,
    /// groups and event times may be missing.
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

    /// Opens files like [`Dataset::open_with`], with side tables that have already been read for
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

    /// Opens one stream of text, such as standard input, as a dataset that can be read once. The
    /// setting `data.format` names the text format; the default is CSV. The first bytes of the
    /// stream show its compression. Error messages call the stream `name`.
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
            whole_groups: false,
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

    /// Returns the dataset with the statistics that its transforms need. All datasets that are
    /// given to a model use the statistics of the training data.
    #[must_use]
    pub fn with_statistics(mut self, statistics: Statistics) -> Self {
        self.statistics = statistics;
        self
    }

    /// Returns the dataset as training data: batches contain only the rows that `data.sample` and
    /// `data.negatives` select. The passes before the first epoch apply `data.sample` but not
    /// `data.negatives`.
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

    /// Returns the dataset with batches of whole groups: no group of the schema's group column is
    /// divided between two batches. Files then keep their order, and whole groups are shuffled
    /// inside each window. The rows of a group must stand beside each other, which is checked
    /// inside each window.
    #[must_use]
    pub fn with_whole_groups(mut self) -> Self {
        self.whole_groups = true;
        self
    }

    /// Returns the bad rows that all passes so far have left out, sorted by file and row. Each row
    /// is listed once. The list is empty unless `data.rejects` names a file.
    pub fn rejects(&self) -> Vec<Reject> {
        self.rejects.rows()
    }

    /// Returns the error messages of the first few bad rows.
    pub fn first_rejects(&self) -> Vec<String> {
        self.rejects.examples()
    }

    /// Returns the counts of bytes and bad rows in all passes so far. Clones of a dataset share
    /// these counters.
    pub fn counts(&self) -> ReadCounts {
        self.counts.snapshot()
    }

    /// Returns whether a pass may leave out bad rows. If it may, all passes must leave out the same
    /// rows.
    pub(crate) fn leaves_out(&self) -> bool {
        self.policy.max_bad > 0
    }

    /// Returns whether the column of a field is missing in some file, which is allowed for this
    /// field.
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

    /// Returns the number of rows, or `None` if some file does not record it (text files do not).
    pub fn rows(&self) -> Option<u64> {
        self.files.iter().map(DataFile::rows).sum()
    }

    /// Returns the batches from the position `from` to the end of its epoch. The order of rows
    /// depends only on the seed, the epoch of the cursor, the files and the shuffle window. It does
    /// not depend on the number of threads. A row that is left out (because it is bad or not
    /// sampled) keeps its position in the order.
    ///
    /// # Errors
    /// Returns an error if a transform needs statistics and [`Dataset::with_statistics`] was not
    /// called with them.
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
            // The rows of a stream are returned as soon as a batch is full.
            (false, true) => order.batch_rows.max(1),
            (false, false) => PLAIN_WINDOW.max(order.batch_rows),
        };
        let assembly = Assembly::new(&self.schema, &self.sides, &self.statistics, |_| true)?;
        let group = reading.fields.iter().position(|field| field.slot == Slot::Group);
        let groups = group.filter(|_| self.whole_groups);
        Ok(BatchStream::new(reading, assembly, order, window, from, groups, workers))
    }

    /// Returns the plan of a pass that runs before the first epoch. The pass leaves out bad rows
    /// and rows that `data.sample` does not select. It reads all rows with label 0, because each
    /// epoch selects a different set of them.
    pub(crate) fn first_pass(&self, fields: Vec<Field>) -> Result<Reading> {
        let mut reading = self.reading(fields)?;
        let thinning = Thinning { negatives: None, ..self.policy.thinning };
        let policy = RowPolicy { thinning, ..self.policy };
        reading.leave_out(&policy, 0, &self.rejects, &self.root);
        Ok(reading)
    }

    /// Returns the plan of a pass that decodes `fields` of every row.
    pub(crate) fn reading(&self, fields: Vec<Field>) -> Result<Reading> {
        let reading =
            Reading::new(&self.files, fields, self.rules.clone(), OtherColumns::PassOver)?;
        Ok(Reading { counts: self.counts.clone(), ..reading })
    }
}
