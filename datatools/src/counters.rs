//! The recent counts and rates of ids, such as the click rate of an item in the last seven days.
//!
//! # Invariants
//! * A counter of a row with time `t` counts only rows with a time before `t - lag`. It never
//!   counts the row itself, another row with the same time, or a later row, so no row sees its own
//!   label or a label that was not known yet.
//! * A window of the length `w` counts the rows with times from `t - lag - w` to just before
//!   `t - lag`. The window `all` has no beginning.
//! * All files share one timeline. Rows that are sorted by time, over the files too, are read once,
//!   and the files may be larger than memory. Rows in another order are sorted in memory first, if
//!   the settings ask for it; otherwise, they are an error.
//! * A rate is `(positives + smoothing × base) / (rows + smoothing)`. The base rate is
//!   `(positives + 0.5) / (rows + 1)` over all rows before `t - lag`, so it looks back too.
//!
//! Memory contains the distinct ids, and the rows in the longest window and the lag; or, if rows
//! are sorted, the ids, the times, the labels and the counts of all rows. If they would take more
//! than the limit, an error says so.

mod recent;
mod sorted;
mod span;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use zillion_device::{Files, Workers};
use zillion_feature::{DateOrder, FeatureKey, TimeUnit};
use zillion_reader::{ReaderError, Result};

use crate::condition::Condition;
use crate::history::column::{Moments, read_owners};
use crate::parquet_files::{failed, find_column, setting};
use crate::rewrite::{RewrittenFile, RowFiles, Transform};
use recent::{Recent, Spans};
use sorted::SortedCounts;
pub use span::Span;

/// The settings of counters.
#[derive(Clone, Debug)]
pub struct CounterSpec {
    /// The columns of ids. Each of them gets its own counters.
    pub by: Vec<String>,
    /// The column of event times: whole numbers, dates or timestamps.
    pub time: String,
    /// The unit of the times if they are whole numbers. It is needed for spans such as `7d`. Times
    /// that are not plausible in this unit are an error.
    pub time_unit: Option<TimeUnit>,
    /// The order of day and month in texts with dates that need one.
    pub date_order: Option<DateOrder>,
    /// The condition of a positive row. A row for which the condition is neither true nor false,
    /// because its label is missing, is not counted.
    pub positive: Condition,
    /// The lengths of the windows.
    pub windows: Vec<Span>,
    /// The time until the label of a row is known.
    pub lag: Span,
    /// The number of rows at the base rate that are added to the rows of an id.
    pub smoothing: f64,
    /// The maximum number of bytes that the ids and the rows in memory may take.
    pub max_memory: u64,
    /// Whether the rows are sorted by time in memory first. Otherwise, the files must be sorted.
    pub sort: bool,
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

    /// Returns the number of counters of a row.
    fn counters(&self) -> usize {
        self.by.len() * self.windows.len()
    }

    /// Returns the state before the first row, for a column of times with the type `time`.
    fn begin(&self, time: &DataType) -> Result<Recent> {
        let ticks = |span: &Span, key| span.ticks(time, self.time_unit, key);
        let windows = self.windows.iter().map(|span| ticks(span, "windows"));
        let spans = Spans {
            windows: windows.collect::<Result<_>>()?,
            lag: ticks(&self.lag, "lag")?.unwrap_or_default(),
        };
        Ok(Recent::new(self.by.len(), spans))
    }

    /// Checks that whole numbers are plausible times in their unit, if it is set.
    fn check_times(&self, times: &[Option<i64>], path: &Path) -> Result<()> {
        let Some(unit) = self.time_unit else { return Ok(()) };
        let is_wrong = |time: &&i64| unit.to_ms(**time).is_none();
        match times.iter().flatten().find(is_wrong) {
            Some(time) => {
                let problem = format!(
                    "column `{}` of {} has {time}, which is no time between 1980 and 2199 in \
                     {unit}; set the unit that the column has (s, ms, us or ns), or leave it out \
                     and give spans as numbers",
                    self.time,
                    path.display()
                );
                Err(setting(problem, "time_unit"))
            }
            None => Ok(()),
        }
    }

    /// Returns an error if the state and `more` bytes take more memory than allowed.
    fn check_memory(&self, recent: &Recent, more: u64) -> Result<()> {
        let bytes = recent.bytes().saturating_add(more);
        if bytes <= self.max_memory {
            return Ok(());
        }
        let problem = format!(
            "the counters need up to {bytes} bytes for {} distinct ids and {} rows in the longest \
             window and the lag{}, but the limit is {}; raise the limit, shorten the windows, or \
             count one column at a time",
            recent.ids().iter().sum::<u64>(),
            recent.held_rows(),
            if self.sort { ", and for all rows, which are sorted" } else { "" },
            self.max_memory
        );
        Err(setting(problem, "max_memory"))
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
    rows.targets()?;
    let sorted = match spec.sort {
        true => Some(SortedCounts::compute(spec, rows, workers, seen)?),
        false => None,
    };
    let mut counters = Counters {
        spec,
        schema: Arc::new(Schema::empty()),
        moments: Moments::in_order(&spec.time, spec.date_order),
        recent: None,
        sorted,
        newest: i64::MIN,
        read: 0,
        done: None,
        without_time: 0,
        without_label: 0,
    };
    let files = rows.rewrite(&mut counters, workers, files, seen)?;
    let Counters { recent, sorted, without_time, without_label, .. } = counters;
    let ids = sorted.map(|sorted| sorted.ids).or_else(|| Some(recent?.ids()));
    Ok(Counted {
        files,
        columns: spec.columns(),
        without_time,
        without_label,
        ids: ids.unwrap_or_default(),
    })
}

struct Counters<'a> {
    spec: &'a CounterSpec,
    schema: SchemaRef,
    moments: Moments<'a>,
    /// The state of the timeline, or `None` before the first file.
    recent: Option<Recent>,
    /// The counts of all rows, if the rows were sorted.
    sorted: Option<SortedCounts>,
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
            self.recent = Some(self.spec.begin(&time)?);
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
        let facts = Facts::read(self.spec, &mut self.moments, &batch, path)?;
        let Some(recent) = &mut self.recent else { return Ok(()) };
        let mut new = NewColumns::new(self.spec.counters(), batch.num_rows());
        for (row, (&time, &label)) in facts.times.iter().zip(&facts.labels).enumerate() {
            let Some(time) = time else {
                self.without_time += 1;
                new.push_missing();
                if let Some(sorted) = &mut self.sorted {
                    sorted.next();
                }
                continue;
            };
            self.without_label += u64::from(label.is_none());
            if let Some(sorted) = &mut self.sorted {
                let (base, counts) = sorted.next();
                counts.iter().for_each(|counts| new.push(*counts, base, self.spec.smoothing));
                continue;
            }
            if time < self.newest {
                return Err(self.unsorted(path, self.read + row as u64 + 1, time));
            }
            self.newest = time;
            recent.advance(time);
            let base = recent.base_rate();
            for counts in recent.count(facts.keys(row), time, label) {
                new.push(counts, base, self.spec.smoothing);
            }
        }
        self.spec.check_memory(recent, 0)?;
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
             `{}` and name the files in the order of their times, or let them be sorted in memory \
             (`sort`)",
            path.display(),
            self.newest,
            self.spec.time
        );
        setting(problem, "time")
    }
}

/// The times, the labels and the ids of some rows.
#[derive(Default)]
struct Facts {
    times: Vec<Option<i64>>,
    labels: Vec<Option<bool>>,
    /// The ids of the rows, for each column in `by`.
    owners: Vec<Vec<Option<FeatureKey>>>,
}

impl Facts {
    fn read(
        spec: &CounterSpec,
        moments: &mut Moments<'_>,
        batch: &RecordBatch,
        path: &Path,
    ) -> Result<Self> {
        let owners = spec.by.iter().map(|column| read_owners(column, batch, path));
        let times = moments.read(batch, path)?;
        let column = find_column(batch, &spec.time, "time", path)?.data_type();
        if column.is_integer() || column.is_floating() {
            spec.check_times(&times, path)?;
        }
        Ok(Self {
            times,
            labels: spec.positive.evaluate(batch, "positive", path)?,
            owners: owners.collect::<Result<_>>()?,
        })
    }

    /// Returns the ids of a row, one for each column.
    fn keys(&self, row: usize) -> impl Iterator<Item = Option<FeatureKey>> {
        self.owners.iter().map(move |owners| owners[row])
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
        let columns =
            (0..counters).map(|_| (whole(), whole(), Float32Builder::with_capacity(rows)));
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
            let arrays: [ArrayRef; 3] =
                [Arc::new(rows.finish()), Arc::new(positives.finish()), Arc::new(rate.finish())];
            arrays
        });
        arrays.collect()
    }
}

#[cfg(test)]
mod tests;
