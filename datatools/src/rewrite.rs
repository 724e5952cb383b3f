//! The rewriting of files in one pass. The rows of each source go through a transform, and the rows
//! that it returns are written to a Parquet file of the same name.
//!
//! Sources have any format that training reads. Memory contains one batch of a source, one row
//! group of a new file, and the state of the transform. A new file appears only when it is
//! complete.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use zillion_device::{Files, Workers};
use zillion_reader::{ArrowRows, ColumnType, DataConfig, ReaderError, Result};

use crate::parquet_files::{
    create_folder, properties, refuse_existing, refuse_sources, setting, write_parquet,
};
use crate::weight::weigh;

/// The maximum number of rows of a batch that a transform takes.
const ROWS: usize = 8192;
/// The number of rows of the first batch of a source, whose rows may be heavy.
const FIRST_ROWS: usize = 256;
/// The number of bytes of a batch that a transform takes, as far as the rows before it tell.
const BYTES: usize = 32 << 20;
/// The endings of compressed files, which stand behind the ending of the format.
const COMPRESSIONS: [&str; 4] = ["gz", "zst", "bz2", "xz"];

/// The files that a tool reads row by row, and the folder of the new files.
#[derive(Clone, Debug)]
pub struct RowFiles {
    /// The settings by which the sources are read.
    pub config: DataConfig,
    /// The source files, in the order of their rows.
    pub sources: Vec<PathBuf>,
    /// The columns of text files and their types. Empty for Parquet and Arrow files, which declare
    /// their types.
    pub columns: Vec<(String, ColumnType)>,
    /// The number of bad rows of all sources that may be left out.
    pub max_bad_rows: u64,
    /// The folder of the new files. A new file has the name of its source and the ending `parquet`.
    pub out: PathBuf,
    /// Whether existing files are replaced.
    pub overwrite: bool,
}

/// The report about a rewritten file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewrittenFile {
    /// The path of the new file.
    pub path: PathBuf,
    /// The number of rows that were read from the source.
    pub read: u64,
    /// The number of rows of the new file.
    pub rows: u64,
    /// The number of bad rows of the source that were left out.
    pub bad_rows: u64,
}

/// A change of rows.
pub(crate) trait Transform {
    /// Returns the columns of the new file. It is called once for each source, before its rows.
    fn start(&mut self, source: &SchemaRef, path: &Path) -> Result<SchemaRef>;

    /// Takes the next rows of the source.
    fn push(&mut self, batch: RecordBatch, path: &Path) -> Result<()>;

    /// Returns the next rows of the new file, or `None` if the transform needs more rows of the
    /// source.
    fn pull(&mut self, path: &Path) -> Result<Option<RecordBatch>>;
}

impl RowFiles {
    /// Returns the path of the new file for each source.
    ///
    /// # Errors
    /// Returns an error if two new files would have one path, if a new file would replace a source,
    /// or if a new file exists and `overwrite` is false.
    pub fn targets(&self) -> Result<Vec<PathBuf>> {
        let mut targets: Vec<PathBuf> = Vec::with_capacity(self.sources.len());
        for source in &self.sources {
            let target = self.out.join(format!("{}.parquet", stem(source)));
            if targets.contains(&target) {
                let problem = "two new files would have this path; rename one of the sources";
                return Err(setting(problem, target.display()));
            }
            targets.push(target);
        }
        if targets.is_empty() {
            return Err(setting("no files are given; name at least one", "input"));
        }
        refuse_sources(&self.sources, &targets)?;
        refuse_existing(targets.iter().map(PathBuf::as_path), self.overwrite)?;
        Ok(targets)
    }

    /// Calls `visit` with each batch of every source. `seen` is called with the number of rows that
    /// were read so far.
    pub(crate) fn each_batch(
        &self,
        workers: &Arc<Workers>,
        seen: &mut dyn FnMut(u64),
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<()>,
    ) -> Result<()> {
        let (mut before, mut bad) = (0, 0);
        for source in &self.sources {
            let mut rows = SourceRows::open(self, source, bad, workers)?;
            while let Some(batch) = rows.next()? {
                seen(before + rows.rows.position());
                visit(&batch, source)?;
            }
            before += rows.rows.position();
            bad += rows.bad;
        }
        Ok(())
    }

    /// Writes the new file of each source. `seen` is called with the number of rows that were read
    /// so far.
    pub(crate) fn rewrite(
        &self,
        transform: &mut dyn Transform,
        workers: &Arc<Workers>,
        files: &Files,
        seen: &mut dyn FnMut(u64),
    ) -> Result<Vec<RewrittenFile>> {
        let targets = self.targets()?;
        create_folder(&self.out, files)?;
        let mut reports: Vec<RewrittenFile> = Vec::with_capacity(targets.len());
        for (source, target) in self.sources.iter().zip(targets) {
            let bad: u64 = reports.iter().map(|report| report.bad_rows).sum();
            let before: u64 = reports.iter().map(|report| report.read).sum();
            let mut rows = SourceRows::open(self, source, bad, workers)?;
            let schema = transform.start(rows.rows.schema(), source)?;
            let mut written = 0;
            let mut next = || -> Result<Vec<RecordBatch>> {
                loop {
                    match transform.pull(source)? {
                        Some(batch) if batch.num_rows() > 0 => {
                            written += batch.num_rows() as u64;
                            return Ok(vec![batch]);
                        }
                        Some(_) => {}
                        None => match rows.next()? {
                            Some(batch) => transform.push(batch, source)?,
                            None => return Ok(Vec::new()),
                        },
                    }
                    seen(before + rows.rows.position());
                }
            };
            let mut failure = None;
            let outcome = write_parquet(&target, schema, properties(), files, || {
                next().map_err(|error| {
                    let text = io::Error::other(error.to_string());
                    failure = Some(error);
                    text
                })
            });
            // The cause of a failure is the source, and not the file that is written.
            failure.map_or(outcome, Err)?;
            reports.push(RewrittenFile {
                path: target,
                read: rows.rows.position(),
                rows: written,
                bad_rows: rows.bad,
            });
        }
        Ok(reports)
    }
}

/// The rows of one source, with the count of its bad rows.
struct SourceRows {
    rows: ArrowRows,
    bad: u64,
    /// The number of bad rows of this source that may be left out.
    limit: u64,
    /// The number of bad rows of all sources that may be left out.
    max_bad_rows: u64,
    /// The number of rows of the next batch.
    next_rows: usize,
}

impl SourceRows {
    /// Opens a source. `bad` is the number of bad rows of the sources before it.
    fn open(files: &RowFiles, source: &Path, bad: u64, workers: &Arc<Workers>) -> Result<Self> {
        let RowFiles { config, columns, max_bad_rows, .. } = files;
        let limit = max_bad_rows.saturating_sub(bad);
        let sources = [source.to_owned()];
        let rows = ArrowRows::open(config, &sources, columns, limit, workers, 0)?;
        Ok(Self { rows, bad: 0, limit, max_bad_rows: *max_bad_rows, next_rows: FIRST_ROWS })
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(span) = self.rows.next(self.next_rows)? else { return Ok(None) };
        self.bad += span.bad;
        if self.bad > self.limit {
            let examples = self.rows.examples();
            return Err(ReaderError::TooManyBadRows { limit: self.max_bad_rows, examples });
        }
        let batch = span.batch(self.rows.schema())?;
        self.next_rows = rows_after(&batch, self.next_rows);
        Ok(Some(batch))
    }
}

/// Returns the number of rows of the batch after `batch`, for which `wanted` rows were asked.
fn rows_after(batch: &RecordBatch, wanted: usize) -> usize {
    let rows = batch.num_rows();
    let bytes: usize = batch.columns().iter().map(|column| weigh(column, 0..rows)).sum();
    let fit = BYTES.saturating_mul(rows).checked_div(bytes).unwrap_or(ROWS);
    fit.clamp(1, ROWS.min(4 * wanted))
}

/// Returns the name of a file without the endings of its compression and its format.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = match name.rsplit_once('.') {
        Some((plain, ending)) if COMPRESSIONS.contains(&ending.to_lowercase().as_str()) => plain,
        _ => &name,
    };
    match plain.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
        _ => plain.to_owned(),
    }
}

/// Reads all rows of a Parquet file that has rows. Tests use it.
#[cfg(test)]
pub(crate) fn read_back(path: &Path) -> RecordBatch {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    let file = std::fs::File::open(path).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = reader.map(std::result::Result::unwrap).collect();
    arrow_select::concat::concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Returns a pool with one thread. Tests use it.
#[cfg(test)]
pub(crate) fn one_worker() -> Arc<Workers> {
    Arc::new(Workers::new(std::num::NonZero::<usize>::MIN).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_rows_are_taken_in_small_batches() {
        use arrow_array::{ArrayRef, StringArray};
        let batch = |bytes: usize, rows: usize| {
            let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(bytes); rows]));
            RecordBatch::try_from_iter([("text", texts)]).unwrap()
        };
        assert_eq!(rows_after(&batch(4, 256), 256), 1024);
        assert_eq!(rows_after(&batch(4, 8192), 8192), ROWS);
        assert_eq!(rows_after(&batch(1 << 20, 4), 256), 31);
        assert_eq!(rows_after(&batch(0, 0), 256), 1024);
    }

    #[test]
    fn new_files_keep_the_names_of_their_sources() {
        for (name, wanted) in [
            ("logs/day_0.csv", "day_0"),
            ("logs/day.0.tsv.gz", "day.0"),
            ("clicks.parquet", "clicks"),
            ("clicks", "clicks"),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(stem(Path::new(name)), wanted, "{name}");
        }
    }
}
