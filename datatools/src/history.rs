//! The computation of histories: the earlier events of the same user (or of another owner) for each
//! row.
//!
//! The new files have the rows of the source files and one more column. The column is a list of the
//! items of the user's earlier rows. The oldest item comes first, and only the most recent items
//! are kept. A history never contains the row itself, another row with the same time, or a later
//! row. Otherwise the model would see the answer. All files share one timeline, so the history of a
//! test row also contains items of training rows.
//!
//! The computation reads the Parquet files twice. The first pass stores the owner, the time and the
//! item of each row in memory. The second pass copies the rows and adds the column.

pub(crate) mod column;
mod timeline;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema};
use zillion_device::Files;
use zillion_feature::DateOrder;
use zillion_reader::{ArraySource, DataConfig, Paths, Result};

use crate::parquet_files::{
    create_folder, open_parquet, properties, refuse_existing, refuse_sources, setting,
    write_parquet,
};
use column::{Items, Moments, narrow, read_owners};
use timeline::Timeline;

/// The settings of a computation of histories.
#[derive(Clone, Debug)]
pub struct HistorySpec {
    /// The column of the owner. All items of a history belong to one owner.
    pub by: String,
    /// The column of the items in a history.
    pub of: String,
    /// The column by which rows are ordered in time: whole numbers or timestamps.
    pub time: String,
    /// The conditions that make a row an event. Each condition is a column and the value that the
    /// row must have in this column.
    pub when: Vec<(String, String)>,
    /// The maximum number of items in a history. Only the most recent items are kept.
    pub last: usize,
    /// The delay until an event may appear in a history, in units of the time column. With 0, an
    /// event appears in the histories of all later rows.
    pub lag: u64,
    /// The name of the new column.
    pub name: String,
    /// The order of day and month in texts with dates that need one.
    pub date_order: Option<DateOrder>,
    /// Whether existing files are replaced.
    pub overwrite: bool,
}

/// The report about a new file.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryFile {
    /// The path of the new file.
    pub path: PathBuf,
    /// The number of rows of the file.
    pub rows: u64,
    /// The number of rows with an empty history.
    pub empty: u64,
    /// The number of items in all histories of the file.
    pub items: u64,
}

/// Adds histories to Parquet files. The new files have the names of the source files and lie in the
/// folder `out`.
///
/// # Errors
/// Returns an error if a file is not Parquet, if a column is missing or its type does not fit, if
/// two files have the same name, if a new file would overwrite a source file, if a new file exists
/// and `overwrite` is false, or if no row of the files fulfils the conditions.
pub fn add_histories(
    spec: &HistorySpec,
    inputs: &[String],
    out: &Path,
    files: &Files,
) -> Result<Vec<HistoryFile>> {
    let data = DataConfig::default();
    let paths = data.files(&Paths(inputs.to_vec()))?;
    let targets = targets(&paths, out)?;
    refuse_existing(targets.iter().map(PathBuf::as_path), spec.overwrite)?;
    let sources = paths.iter().map(|path| open_parquet(path, &data.stores));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let mut moments = Moments::in_order(&spec.time, spec.date_order);
    let mut items = Items::new(&spec.of);
    let mut timeline = Timeline::default();
    let mut held = Held::new(&spec.when);
    for (source, path) in sources.iter().zip(&paths) {
        if source.schema().column_with_name(&spec.name).is_some() {
            return Err(setting(
                format!("file `{}` has a column of this name; choose another name", path.display()),
                &spec.name,
            ));
        }
        for batch in source.batches()? {
            let batch = batch?;
            let owner = read_owners(&spec.by, &batch, path)?;
            let moment = moments.read(&batch, path)?;
            let item = items.read(&batch, path)?;
            let mut counts = vec![true; batch.num_rows()];
            for (index, (column, value)) in spec.when.iter().enumerate() {
                let mut alone = vec![true; batch.num_rows()];
                narrow(column, value, &batch, path, &mut alone)?;
                held.each[index] |= alone.contains(&true);
                counts.iter_mut().zip(alone).for_each(|(counts, alone)| *counts &= alone);
            }
            held.rows += counts.len() as u64;
            held.together |= counts.contains(&true);
            for (row, counts) in counts.into_iter().enumerate() {
                timeline.push(owner[row], moment[row], item[row].filter(|_| counts));
            }
        }
    }
    held.check(&spec.when)?;
    let histories = timeline.histories(spec.last, spec.lag);
    create_folder(out, files)?;
    let mut first = 0;
    let mut written = Vec::new();
    for (source, target) in sources.iter().zip(targets) {
        let mut fields = source.schema().fields().to_vec();
        fields.push(Arc::new(Field::new(&spec.name, items.list_type(), false)));
        let schema = Arc::new(Schema::new(fields));
        let mut report = HistoryFile { path: target.clone(), rows: 0, empty: 0, items: 0 };
        let mut batches = source.batches()?;
        write_parquet(&target, schema.clone(), properties(), files, || {
            let Some(batch) = batches.next().transpose().map_err(io::Error::other)? else {
                return Ok(Vec::new());
            };
            let rows = first..first + batch.num_rows();
            first = rows.end;
            for row in rows.clone() {
                let len = histories.of_row(row).len() as u64;
                report.rows += 1;
                report.empty += u64::from(len == 0);
                report.items += len;
            }
            let list = items.lists(rows.map(|row| histories.of_row(row)));
            let mut columns = batch.columns().to_vec();
            columns.push(list);
            let batch = RecordBatch::try_new(schema.clone(), columns).map_err(io::Error::other)?;
            Ok(vec![batch])
        })?;
        written.push(report);
    }
    Ok(written)
}

/// The conditions that rows have fulfilled.
struct Held {
    rows: u64,
    /// Whether a row has fulfilled each condition.
    each: Vec<bool>,
    /// Whether a row has fulfilled all conditions.
    together: bool,
}

impl Held {
    fn new(conditions: &[(String, String)]) -> Self {
        Self { rows: 0, each: vec![false; conditions.len()], together: false }
    }

    /// Returns an error if there are rows and none of them fulfils the conditions, because every
    /// history would be empty.
    fn check(&self, conditions: &[(String, String)]) -> Result<()> {
        if self.rows == 0 || self.together {
            return Ok(());
        }
        let never = self.each.iter().position(|held| !held);
        let problem = match never.and_then(|index| conditions.get(index)) {
            Some((column, value)) => format!(
                "no row of the files has the value `{value}` in column `{column}`, so every history \
                 would be empty; correct the value"
            ),
            None => {
                let all: Vec<String> = conditions
                    .iter()
                    .map(|(column, value)| format!("`{column}={value}`"))
                    .collect();
                format!(
                    "no row of the files fulfils {} together, so every history would be empty; \
                     remove one of the conditions",
                    all.join(" and ")
                )
            }
        };
        Err(setting(problem, "when"))
    }
}

/// Returns the path of the new file for each source: the folder `out` with the name of the source.
/// Returns an error if a path is the path of a source or occurs twice.
fn targets(paths: &[PathBuf], out: &Path) -> Result<Vec<PathBuf>> {
    let mut targets: Vec<PathBuf> = Vec::with_capacity(paths.len());
    for path in paths {
        let target = out.join(path.file_name().unwrap_or_default());
        if targets.contains(&target) {
            let problem = "two new files would have this path; rename one of the sources";
            return Err(setting(problem, target.display()));
        }
        targets.push(target);
    }
    refuse_sources(paths, &targets)?;
    Ok(targets)
}

#[cfg(test)]
mod tests;
