//! The computation of histories: for each row, the earlier events of the same user (or other
//! owner).
//!
//! Files of rows become the same files with one more column, a list: the items of the user's
//! earlier rows, oldest first, cut to the most recent ones. Earlier means strictly before: a row
//! never sees itself, another row of the same moment, or anything later, so that the input holds
//! nothing of what is to be predicted. All files are one timeline; the history of a test row holds
//! training rows.
//!
//! The work takes two passes over Parquet files: the first keeps a few words for each row in memory
//! (owner, time, item), the second copies the rows and adds the column.

pub(crate) mod column;
mod timeline;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use zillion_device::Files;
use zillion_reader::{
    ArraySource, DataConfig, FileFormat, Format, ParquetFile, Paths, ReaderError, Result, format_of,
};

use crate::write_parquet::write_parquet;
use column::{Condition, Items, Moments, Owners};
use timeline::Timeline;

/// The settings by which histories are made.
#[derive(Clone, Debug)]
pub struct HistorySpec {
    /// The column of the owner, whose rows belong together.
    pub by: String,
    /// The column of the items, which the history lists.
    pub of: String,
    /// The column of whole numbers or timestamps that orders the rows.
    pub time: String,
    /// The columns and values that a row must have, all of them, to be an event.
    pub when: Vec<(String, String)>,
    /// The maximum number of events in a history; the last ones are kept.
    pub last: usize,
    /// The time, in units of the time column, after which an event is known; with 0 it is known at
    /// once.
    pub lag: u64,
    /// The name of the new column.
    pub name: String,
}

/// The report on one file that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryFile {
    /// The path of the new file.
    pub path: PathBuf,
    /// The number of its rows.
    pub rows: u64,
    /// The number of rows with an empty history.
    pub empty: u64,
    /// The number of items over all rows.
    pub items: u64,
}

/// Adds histories to Parquet files and writes the files under their own names to a folder.
///
/// # Errors
/// A file is not Parquet, lacks a column or has a column of a type that does not fit; two files
/// have the same name; the folder is that of a source file.
pub fn add_histories(
    spec: &HistorySpec,
    inputs: &[String],
    out: &Path,
    files: &Files,
) -> Result<Vec<HistoryFile>> {
    let paths = DataConfig::default().files(&Paths(inputs.to_vec()))?;
    let targets = targets(&paths, out)?;
    let sources = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
    let owners = Owners::new(&spec.by);
    let mut moments = Moments::new(&spec.time);
    let mut items = Items::new(&spec.of);
    let mut conditions: Vec<Condition> =
        spec.when.iter().map(|(column, value)| Condition::new(column, value)).collect();
    let mut timeline = Timeline::default();
    for (source, path) in sources.iter().zip(&paths) {
        if source.schema().column_with_name(&spec.name).is_some() {
            return Err(setting(
                format!("{} has a column of this name; choose another name", path.display()),
                &spec.name,
            ));
        }
        for batch in source.batches()? {
            let batch = batch?;
            let owner = owners.read(&batch, path)?;
            let moment = moments.read(&batch, path)?;
            let item = items.read(&batch, path)?;
            let mut counts = vec![true; batch.num_rows()];
            for condition in &mut conditions {
                condition.narrow(&batch, path, &mut counts)?;
            }
            for (row, counts) in counts.into_iter().enumerate() {
                timeline.push(owner[row], moment[row], item[row].filter(|_| counts));
            }
        }
    }
    let histories = timeline.histories(spec.last, spec.lag);
    files.create_dir(out).map_err(|source| ReaderError::Io {
        what: "make the folder",
        source: io::Error::other(source),
        path: out.to_owned(),
    })?;
    let mut first = 0;
    let mut written = Vec::new();
    for (source, target) in sources.iter().zip(targets) {
        let schema = with_column(&source.schema(), &spec.name, &items);
        let mut report = HistoryFile { path: target.clone(), rows: 0, empty: 0, items: 0 };
        let mut batches = source.batches()?;
        write_parquet(&target, schema.clone(), files, || {
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

fn open(path: &Path) -> Result<ParquetFile> {
    if format_of(path, Format::Auto)? == FileFormat::Parquet {
        return ParquetFile::open(path);
    }
    Err(setting(
        "the file is not Parquet, which keeps the types of the other columns; convert it to Parquet first",
        path.display(),
    ))
}

/// Returns the path to which each file is written: its own name in the folder, and never the path
/// of a source.
fn targets(paths: &[PathBuf], out: &Path) -> Result<Vec<PathBuf>> {
    let mut targets: Vec<PathBuf> = Vec::with_capacity(paths.len());
    for path in paths {
        let target = out.join(path.file_name().unwrap_or_default());
        if targets.contains(&target) {
            let problem = "two files would be written here; give them different names";
            return Err(setting(problem, target.display()));
        }
        targets.push(target);
    }
    let place = |path: &Path| fs::canonicalize(path).ok();
    let read: Vec<Option<PathBuf>> = paths.iter().map(|path| place(path)).collect();
    for target in &targets {
        let same = place(target);
        if same.is_some() && read.contains(&same) {
            let problem = "the file would be written over while it is read; name another folder";
            return Err(setting(problem, target.display()));
        }
    }
    Ok(targets)
}

fn with_column(schema: &Schema, name: &str, items: &Items) -> SchemaRef {
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(name, items.list_type(), false)));
    Arc::new(Schema::new(fields))
}

fn setting(problem: impl Into<String>, key: impl Display) -> ReaderError {
    ReaderError::Setting { problem: problem.into(), key: key.to_string() }
}

#[cfg(test)]
mod tests;
