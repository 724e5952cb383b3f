//! The recent counts and rates of ids, such as the click rate of an item in the last seven days.
//!
//! # Invariants
//! * A counter of a row with time `t` counts only rows with a time before `t - lag`. It never
//!   counts the row itself, another row with the same time, or a later row, so no row sees its own
//!   label or a label that was not known yet.
//! * A window of the length `w` counts the rows with times from `t - lag - w` to just before
//!   `t - lag`. The window `all` has no beginning.
//! * All files share one timeline. Their rows must be sorted by time, over the files too, because
//!   the files are read once and may be larger than memory.
//! * A rate is `(positives + smoothing × base) / (rows + smoothing)`. The base rate is
//!   `(positives + 0.5) / (rows + 1)` over all rows before `t - lag`, so it looks back too.
//!
//! Memory contains the distinct ids, and the rows in the longest window and the lag. If they would
//! take more than the limit, an error says so.

mod recent;
mod span;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use zillion_device::{Files, Workers};
use zillion_feature::TimeUnit;
use zillion_reader::{ReaderError, Result};

use crate::condition::Condition;
use crate::history::column::{Moments, read_owners};
use crate::parquet_files::{failed, find_column, setting};
use crate::rewrite::{RewrittenFile, RowFiles, Transform};
use recent::{Recent, Spans};
pub use span::Span;

/// The settings of counters.
#[derive(Clone, Debug)]
pub struct CounterSpec {
    /// The columns of ids. Each of them gets its own counters.
    pub by: Vec<String>,
    /// The column of event times: whole numbers, dates or timestamps.
    pub time: String,
    /// The unit of the times if they are whole numbers. It is needed for spans such as `7d`.
    pub time_unit: Option<TimeUnit>,
    /// The condition of a positive row. A row for which the condition is neither true nor false,
    /// because its label is missing, is not counted.
    pub positive: Condition,
    /// The lengths of the windows.
    pub windows: Vec<Span>,
    /// The time until the label of a row is known.
    pub lag: Span,
    /// The number of rows at the base rate that are added to the rows of an id.
    pub smoothing: f64,
    /// The maximum number of bytes that the ids and the rows of the windows may take.
    pub max_memory: u64,
}

/// The result of a computation of counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// The reports about the new files.
    pub files: Vec<RewrittenFile>,
    /// The names of the new columns.
    pub columns: Vec<String>,
    /// The number of rows without a time. Their counters are missing, and other rows do not count
    /// them.
    pub without_time: u64,
    /// The number of rows without a label. Other rows do not count them.
    pub without_label: u64,
    /// The number of distinct ids of each column in `by`.
    pub ids: Vec<u64>,
}

impl CounterSpec {
    /// Checks the settings that do not depend on the files.
    ///
    /// # Errors
    /// Returns an error if no column or no window is named, if one of them is named twice, or if
    /// the smoothing is negative or not finite.
    pub fn check(&self) -> Result<()> {
        let find_twice = |names: &[String]| {
            let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
            twice.map(|(_, name)| name.clone())
        };
        let windows: Vec<String> = self.windows.iter().map(Span::to_string).collect();
        for (names, key, what) in [(&self.by, "by", "column"), (&windows, "windows", "window")] {
            if names.is_empty() {
                return Err(setting(format!("no {what} is named; name at least one"), key));
            }
            if let Some(name) = find_twice(names) {
                return Err(setting(format!("{what} `{name}` is named twice; name it once"), key));
            }
        }
        if self.lag == Span::All {
            return Err(setting("the lag has no end; give a span such as 1h", "lag"));
        }
        if !(self.smoothing.is_finite() && self.smoothing >= 0.0) {
            let problem = format!("the smoothing is {}; set a number from 0 on", self.smoothing);
            return Err(setting(problem, "smoothing"));
        }
        Ok(())
    }

    /// Returns the names of the new columns: the number of rows, the number of positive rows and
    /// the rate for each window of each column.
    pub fn columns(&self) -> Vec<String> {
        let mut names = Vec::new();
        for by in &self.by {
            for window in &self.windows {
                names.extend(["rows", "positives", "rate"].map(|of| format!("{by}_{of}_{window}")));
            }
        }
        names
    }
}

/// Adds counters to files. `seen` is called with the number of rows that were read so far.
///
/// # Errors
/// Returns an error if [`CounterSpec::check`] refuses the settings, if a column is missing or its
/// type does not fit, if a new column exists already, if a span does not fit the unit of the times,
/// if the rows are not sorted by time, if the counters need more memory than allowed, if a source
/// cannot be read, or if [`RowFiles::targets`] refuses a new file.
pub fn add_counters(
    spec: &CounterSpec,
    rows: &RowFiles,
    workers: &Arc<Workers>,
    files: &Files,
    seen: &mut dyn FnMut(u64),
) -> Result<Counted> {
    spec.check()?;
    let mut counters = Counters {
        spec,
        schema: Arc::new(Schema::empty()),
        moments: Moments::new(&spec.time),
        recent: None,
        newest: i64::MIN,
        read: 0,
        done: None,
        without_time: 0,
        without_label: 0,
    };
    let files = rows.rewrite(&mut counters, workers, files, seen)?;
    Ok(Counted {
        files,
        columns: spec.columns(),
        without_time: counters.without_time,
        without_label: counters.without_label,
        ids: counters.recent.map(|recent| recent.ids()).unwrap_or_default(),
    })
}

struct Counters<'a> {
    spec: &'a CounterSpec,
    schema: SchemaRef,
    moments: Moments<'a>,
    /// The state of the timeline, or `None` before the first file.
    recent: Option<Recent>,
    /// The time of the last row that has a time.
    newest: i64,
    /// The number of rows of the source that were taken.
    read: u64,
    done: Option<RecordBatch>,
    without_time: u64,
    without_label: u64,
}

impl Transform for Counters<'_> {
    fn start(&mut self, source: &SchemaRef, path: &Path) -> Result<SchemaRef> {
        self.read = 0;
        let empty = RecordBatch::new_empty(source.clone());
        let time = find_column(&empty, &self.spec.time, "time", path)?.data_type().clone();
        self.moments.read(&empty, path)?;
        if self.recent.is_none() {
            let ticks = |span: &Span, key| span.ticks(&time, self.spec.time_unit, key);
            let spans = Spans {
                windows: self
                    .spec
                    .windows
                    .iter()
                    .map(|span| ticks(span, "windows"))
                    .collect::<Result<_>>()?,
                lag: ticks(&self.spec.lag, "lag")?.unwrap_or_default(),
            };
            self.recent = Some(Recent::new(self.spec.by.len(), spans));
        }
        let mut fields: Vec<Arc<Field>> = source.fields().to_vec();
        for (index, name) in self.spec.columns().into_iter().enumerate() {
            if source.column_with_name(&name).is_some() {
                let problem = format!(
                    "file `{}` has a column `{name}`, which is the name of a new column; rename \
                     that column",
                    path.display()
                );
                return Err(setting(problem, "by"));
            }
            let of = if index % 3 == 2 { DataType::Float32 } else { DataType::Int64 };
            fields.push(Arc::new(Field::new(&name, of, true)));
        }
        self.schema = Arc::new(Schema::new(fields));
        Ok(self.schema.clone())
    }

    fn push(&mut self, batch: RecordBatch, path: &Path) -> Result<()> {
        let times = self.moments.read(&batch, path)?;
        let labels = self.spec.positive.evaluate(&batch, "positive", path)?;
        let mut owners = Vec::with_capacity(self.spec.by.len());
        for column in &self.spec.by {
            owners.push(read_owners(column, &batch, path)?);
        }
        let Some(recent) = &mut self.recent else { return Ok(()) };
        let counters = self.spec.by.len() * self.spec.windows.len();
        let mut new = NewColumns::new(counters, batch.num_rows());
        for (row, (time, label)) in times.into_iter().zip(labels).enumerate() {
            let Some(time) = time else {
                self.without_time += 1;
                new.push_missing();
                continue;
            };
            if time < self.newest {
                return Err(self.unsorted(path, self.read + row as u64 + 1, time));
            }
            self.newest = time;
            self.without_label += u64::from(label.is_none());
            let keys = owners.iter().map(|owners| owners[row]);
            recent.advance(time);
            let base = recent.base_rate();
            for counts in recent.count(keys, time, label) {
                new.push(counts, base, self.spec.smoothing);
            }
        }
        let bytes = recent.bytes();
        if bytes > self.spec.max_memory {
            let problem = format!(
                "the counters need up to {bytes} bytes for {} distinct ids and {} rows in the \
                 longest window and the lag, but the limit is {}; raise the limit, shorten the \
                 windows, or count one column at a time",
                recent.ids().iter().sum::<u64>(),
                recent.held_rows(),
                self.spec.max_memory
            );
            return Err(setting(problem, "max_memory"));
        }
        self.read += batch.num_rows() as u64;
        let columns = batch.columns().iter().cloned().chain(new.finish()).collect();
        let done = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|error| failed("add counters to the rows of the file", path, error))?;
        self.done = Some(done);
        Ok(())
    }

    fn pull(&mut self, _path: &Path) -> Result<Option<RecordBatch>> {
        Ok(self.done.take())
    }
}

impl Counters<'_> {
    fn unsorted(&self, path: &Path, row: u64, time: i64) -> ReaderError {
        let problem = format!(
            "row {row} of {} has the time {time}, but an earlier row has {}; sort the rows by \
             `{}`, and name the files in the order of their times",
            path.display(),
            self.newest,
            self.spec.time
        );
        setting(problem, "time")
    }
}

/// The counts of the rows and of the positive rows of an id in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    rows: u32,
    positives: u32,
}

/// The builders of the new columns. The counters of a row are pushed in the order of the columns.
struct NewColumns {
    columns: Vec<(Int64Builder, Int64Builder, Float32Builder)>,
    next: usize,
}

impl NewColumns {
    fn new(counters: usize, rows: usize) -> Self {
        let whole = || Int64Builder::with_capacity(rows);
        let columns = (0..counters).map(|_| (whole(), whole(), Float32Builder::with_capacity(rows)));
        Self { columns: columns.collect(), next: 0 }
    }

    /// Adds missing values for a whole row.
    fn push_missing(&mut self) {
        for _ in 0..self.columns.len() {
            self.push(None, 0.0, 0.0);
        }
    }

    /// Adds the next counter of the row. It is `None` if the row has no id.
    fn push(&mut self, counts: Option<Counts>, base: f64, smoothing: f64) {
        let next = self.next;
        self.next = (next + 1) % self.columns.len();
        let (rows, positives, rate) = &mut self.columns[next];
        rows.append_option(counts.map(|counts| i64::from(counts.rows)));
        positives.append_option(counts.map(|counts| i64::from(counts.positives)));
        let smoothed = counts.and_then(|counts| {
            let rows = f64::from(counts.rows) + smoothing;
            let positives = f64::from(counts.positives) + smoothing * base;
            // Without smoothing, an id without rows has no rate.
            (rows > 0.0).then(|| (positives / rows) as f32)
        });
        rate.append_option(smoothed);
    }

    fn finish(self) -> Vec<ArrayRef> {
        let arrays = self.columns.into_iter().flat_map(|(mut rows, mut positives, mut rate)| {
            let arrays: [ArrayRef; 3] = [
                Arc::new(rows.finish()),
                Arc::new(positives.finish()),
                Arc::new(rate.finish()),
            ];
            arrays
        });
        arrays.collect()
    }
}

#[cfg(test)]
mod tests;
