//! The profile of data: a summary of the columns of files, which needs no schema.
//!
//! One thread reads the rows. The pool summarises the columns in parallel. The summary of each
//! column has a bounded size. Training does not use this module.

mod arrow;
mod column;
mod drift;
mod lines;
mod shape;
mod tally;
mod times;
mod values;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, MixedHasher};
use zillion_reader::{
    ArraySource, DataConfig, DataFile, Decimal, Near, Place, ReaderError, Result,
};

use crate::parquet_files::setting;
pub use column::{ColumnProfile, Count, Numbers};
pub use drift::{Drift, drift};
pub(crate) use lines::{SVM_LABEL, SVM_QUERY, SVM_VECTOR};
use tally::Tally;
pub use tally::{Cells, Separated};
pub(crate) use tally::{Kept, text_key};
pub use times::Times;
pub(crate) use times::is_certain;
use zillion_reader::text::{Dialect, Grammar, Records, Step, TextFile};

/// The settings of a profile.
#[derive(Clone, Debug, Default)]
pub struct ProfileSpec {
    /// The maximum number of rows to read, or `None` to read all rows.
    pub rows: Option<u64>,
    /// The texts that may mean a missing value. Cells with such a text are counted separately. They
    /// count neither as missing nor as values.
    pub markers: Vec<String>,
    /// The maximum number of cells whose values are kept for the tests of the relation to a label.
    /// The same number of first rows of each column is kept.
    pub kept_cells: usize,
    /// The keys whose texts the profile searches for. It compares whole cells and the pieces of
    /// cells between `|`, `;` and `,`.
    pub wanted: HashSet<FeatureKey, MixedHasher>,
}

/// The summary of the columns of some files.
#[derive(Debug)]
pub struct Profile {
    /// The number of rows in the profile.
    pub rows: u64,
    /// Whether all rows of the files were read.
    pub complete: bool,
    /// The columns, in the order of the first file.
    pub columns: Vec<ColumnProfile>,
    /// The texts that were found for the wanted keys.
    pub texts: BTreeMap<FeatureKey, String>,
}

/// Profiles files. `config` contains the settings for reading them.
///
/// # Errors
/// Returns an error if a file cannot be read, if a record has more or fewer cells than the header,
/// or if files have different columns.
pub fn profile(
    config: &DataConfig,
    files: &[PathBuf],
    look: &ProfileSpec,
    workers: &Workers,
) -> Result<Profile> {
    let markers: Vec<Vec<u8>> = look.markers.iter().map(|m| m.clone().into_bytes()).collect();
    let mut reading = Reading {
        limit: look.rows.unwrap_or(u64::MAX),
        rows: 0,
        complete: true,
        names: Vec::new(),
        types: Vec::new(),
        tallies: Vec::new(),
        wanted: Arc::new(look.wanted.clone()),
        kept_cells: look.kept_cells,
        markers,
        workers,
    };
    for path in files {
        let source = DataFile::open(config, path)?;
        reading.set_columns(&source)?;
        if let Some(arrays) = source.arrays() {
            reading.arrays(config, source.rows().unwrap_or_default(), arrays)?;
        } else if let Some(file) = source.text() {
            match file.grammar() {
                Grammar::Cells(dialect) => reading.text(config.decimal, file, dialect, path)?,
                Grammar::Json | Grammar::Svm => reading.lines(file, path)?,
            }
        }
        if reading.rows >= reading.limit {
            reading.complete = reading.complete && path == files.last().unwrap_or(path);
            break;
        }
    }
    let rows = reading.rows;
    let found = reading.tallies.iter_mut().flat_map(|tally| std::mem::take(&mut tally.found));
    let texts = found.collect();
    let columns = reading.names.into_iter().zip(reading.types).zip(reading.tallies);
    Ok(Profile {
        rows,
        complete: reading.complete,
        texts,
        columns: columns
            .map(|((name, data_type), tally)| ColumnProfile::new(name, data_type, rows, tally))
            .collect(),
    })
}

impl Profile {
    /// Returns the column with this name, or `None` if there is no such column.
    pub fn column(&self, name: &str) -> Option<&ColumnProfile> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// The state of a profile while files are read.
struct Reading<'a> {
    limit: u64,
    rows: u64,
    complete: bool,
    names: Vec<String>,
    types: Vec<String>,
    tallies: Vec<Tally>,
    wanted: Arc<HashSet<FeatureKey, MixedHasher>>,
    kept_cells: usize,
    markers: Vec<Vec<u8>>,
    workers: &'a Workers,
}

impl Reading<'_> {
    fn set_columns(&mut self, source: &DataFile) -> Result<()> {
        let names: Vec<String> = source.columns().into_iter().map(str::to_owned).collect();
        let types: Vec<String> = match (source.arrays(), source.text()) {
            (Some(arrays), _) => {
                let schema = arrays.schema();
                schema.fields().iter().map(|f| arrow::type_name(f.data_type())).collect()
            }
            (None, Some(text)) => {
                names.iter().map(|name| lines::type_name(text.grammar(), name)).collect()
            }
            (None, None) => Vec::new(),
        };
        if self.tallies.is_empty() {
            let most_kept = self.kept_cells / names.len().max(1);
            let tally = |_: &String| Tally::new(self.markers.len(), self.wanted.clone(), most_kept);
            self.tallies = names.iter().map(tally).collect();
            (self.names, self.types) = (names, types);
        } else if self.names != names {
            let problem = "the file does not have the same columns as the first file; profile the \
                           two files separately";
            return Err(setting(problem, source.path().display()));
        }
        Ok(())
    }

    /// Adds the rows of a file that is read as Arrow arrays. `all` is the number of rows in the
    /// file.
    fn arrays(&mut self, config: &DataConfig, all: u64, arrays: &dyn ArraySource) -> Result<()> {
        let null = &config.null;
        let is_missing =
            |text: &[u8]| text.is_empty() || null.iter().any(|marker| marker.as_bytes() == text);
        for batch in arrays.batches()? {
            let batch = batch?;
            let rows = batch.num_rows().min(self.left());
            self.complete &= rows == batch.num_rows();
            let batch = batch.slice(0, rows);
            self.workers.for_each_mut(&mut self.tallies, |at, tally| {
                arrow::add(tally, batch.column(at), &is_missing);
            });
            self.rows += rows as u64;
            if self.rows >= self.limit {
                break;
            }
        }
        self.complete &= self.rows < self.limit || all <= self.limit;
        Ok(())
    }

    fn text(
        &mut self,
        decimal: Decimal,
        file: &TextFile,
        dialect: Dialect,
        path: &Path,
    ) -> Result<()> {
        let decimal = if decimal == Decimal::Comma { b',' } else { b'.' };
        let width = self.tallies.len();
        let mut chunks = file.chunks()?;
        let mut rows_of_file = 0;
        while let Some(chunk) = chunks.next_chunk()? {
            let mut records = Records::new(dialect, &chunk.bytes);
            let mut text = Vec::with_capacity(chunk.bytes.len());
            // The position in the text of the end of each cell, row by row.
            let mut ends = Vec::new();
            let (mut rows, left) = (0usize, self.left());
            loop {
                let place = Place {
                    row: rows_of_file + rows as u64 + 1,
                    near: Near::Byte(chunk.offset + records.consumed() as u64),
                };
                match records.advance() {
                    Step::Record | Step::LastRecord => {}
                    Step::End => break,
                    Step::OpenQuote => {
                        return Err(ReaderError::OpenQuote { place, path: path.to_owned() });
                    }
                }
                if rows == left {
                    self.complete = false;
                    break;
                }
                if records.cells() != width {
                    return Err(ReaderError::CellCount {
                        place,
                        found: records.cells(),
                        expected: width,
                        path: path.to_owned(),
                    });
                }
                for cell in 0..width {
                    text.extend_from_slice(records.cell(cell));
                    ends.push(text.len());
                }
                rows += 1;
            }
            let markers = &self.markers;
            self.workers.for_each_mut(&mut self.tallies, |at, tally| {
                for row in 0..rows {
                    let index = row * width + at;
                    let start = if index == 0 { 0 } else { ends[index - 1] };
                    let cell = &text[start..ends[index]];
                    if file.is_missing(cell) {
                        tally.missing();
                    } else {
                        tally.cell(cell, decimal, markers);
                    }
                }
            });
            self.rows += rows as u64;
            rows_of_file += rows as u64;
            if self.rows >= self.limit {
                self.complete = self.complete && !chunks.has_more()?;
                break;
            }
        }
        Ok(())
    }

    fn left(&self) -> usize {
        usize::try_from(self.limit - self.rows).unwrap_or(usize::MAX)
    }
}
