//! The conversion of sequences to rows for next-item prediction, with a leave-one-out split.
//!
//! A source file has one row for each user, with all items that the user chose, in order. For the
//! sequence `a b c d e`, the target of the test row is `e`, with the history `a b c d`. The target
//! of the validation row is `d`, with the history `a b c`. The targets of the training rows are `c`
//! and `b`, with the histories `a b` and `a`. Training therefore never sees the target of a
//! validation or test row. This is the usual split for next-item prediction (Kang & McAuley,
//! SASRec, 2018), with one row for each prefix.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, UInt32Array};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use arrow_select::{concat::concat, take::take};
use zillion_device::Files;
use zillion_reader::{ArraySource, DataConfig, Paths, ReaderError, Result, Stores};

use crate::parquet_files::{
    create_folder, find_column, open_parquet, properties, refuse_existing, refuse_sources, setting,
    write_parquet, wrong_type,
};

/// The number of rows in a batch of the written files.
const ROWS: usize = 16_384;
/// The name of the column of histories in the written files.
const HISTORY: &str = "history";
const ITEM: &str = "item";

/// The settings of a conversion of sequences to rows.
#[derive(Clone, Debug)]
pub struct NextItemSpec {
    /// The column of the owner of a sequence. The new files have this column too.
    pub by: String,
    /// The column of the sequences, which are lists of items.
    pub items: String,
    /// The maximum number of items in a history. Only the last items are kept.
    pub last: usize,
    /// Whether existing files are replaced.
    pub overwrite: bool,
}

/// The report about the new files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextItemFiles {
    /// The number of sequences that were read.
    pub sequences: u64,
    /// The number of sequences with fewer than three items, which result only in training rows.
    pub short: u64,
    /// The paths of `train.parquet`, `valid.parquet` and `test.parquet`, each with its number of
    /// rows.
    pub files: [(PathBuf, u64); 3],
}

/// One of the three parts of the data. Each part becomes one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Train,
    Valid,
    Test,
}

impl Part {
    const ALL: [Self; 3] = [Self::Train, Self::Valid, Self::Test];

    fn file(self) -> &'static str {
        match self {
            Self::Train => "train.parquet",
            Self::Valid => "valid.parquet",
            Self::Test => "test.parquet",
        }
    }

    /// Returns the indices of the target items of this part, in a sequence of `len` items. The
    /// first item is never a target, because its history would be empty.
    fn places(self, len: usize) -> Range<usize> {
        match (self, len) {
            (_, 0) => 0..0,
            (Self::Train, 1 | 2) => 1..len,
            (Self::Train, _) => 1..len - 2,
            (_, 1 | 2) => 0..0,
            (Self::Valid, _) => len - 2..len - 1,
            (Self::Test, _) => len - 1..len,
        }
    }
}

/// Converts sequences and writes the three files to the folder `out`.
///
/// # Errors
/// Returns an error if a file is not Parquet, if a column is missing or its type does not fit, or
/// if a new file would overwrite a source file.
pub fn next_items(
    spec: &NextItemSpec,
    inputs: &[String],
    out: &Path,
    files: &Files,
) -> Result<NextItemFiles> {
    let data = DataConfig::default();
    let paths = data.files(&Paths(inputs.to_vec()))?;
    if [HISTORY, ITEM].contains(&spec.by.as_str()) {
        let problem = "the new files need this name for another column; rename the column first";
        return Err(setting(problem, &spec.by));
    }
    let mut targets = Part::ALL.map(|part| (out.join(part.file()), 0));
    refuse_sources(&paths, &targets.clone().map(|(path, _)| path))?;
    refuse_existing(targets.iter().map(|(path, _)| path.as_path()), spec.overwrite)?;
    let sequences = Sequences::read(spec, &paths, &data.stores)?;
    create_folder(out, files)?;
    for (part, (path, rows)) in Part::ALL.into_iter().zip(&mut targets) {
        *rows = sequences.write(spec, part, path, files)?;
    }
    Ok(NextItemFiles {
        sequences: sequences.places.len() as u64,
        short: sequences.places.iter().filter(|places| places.len() < 3).count() as u64,
        files: targets,
    })
}

/// The sequences of all source files, with their items in one array.
struct Sequences {
    owners: ArrayRef,
    items: ArrayRef,
    /// The range of each sequence in the array of items.
    places: Vec<Range<usize>>,
}

impl Sequences {
    fn read(spec: &NextItemSpec, paths: &[PathBuf], stores: &Stores) -> Result<Self> {
        let (mut owners, mut items, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut total = 0;
        for path in paths {
            for batch in open_parquet(path, stores)?.batches()? {
                let batch = batch?;
                let (owner, lists) = columns(spec, &batch, path)?;
                let (mut kept, values) = (Vec::new(), lists.values());
                for row in 0..lists.len() {
                    let (from, to) = (lists.value_offsets()[row], lists.value_offsets()[row + 1]);
                    let start = total + kept.len();
                    if !lists.is_null(row) {
                        let items = from as u32..to as u32;
                        kept.extend(items.filter(|&i| values.is_valid(i as usize)));
                    }
                    places.push(start..total + kept.len());
                }
                total += kept.len();
                items.push(gather(values, kept, path)?);
                owners.push(owner);
                same_types(spec, &owners, &items, path)?;
            }
        }
        if places.is_empty() {
            return Err(setting("the files hold no sequence; name files with rows", "in"));
        }
        if u32::try_from(total).is_err() {
            return Err(setting(
                format!("the files hold {total} items, more than 2^32; split them"),
                "in",
            ));
        }
        let joined = |arrays: &[ArrayRef]| {
            let all: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            concat(&all).map_err(|error| damaged(&error, &paths[0]))
        };
        Ok(Self { owners: joined(&owners)?, items: joined(&items)?, places })
    }

    /// Writes the file of one part and returns its number of rows.
    fn write(&self, spec: &NextItemSpec, part: Part, path: &Path, files: &Files) -> Result<u64> {
        let element = Arc::new(Field::new("element", self.items.data_type().clone(), false));
        let schema = Arc::new(Schema::new(vec![
            Field::new(&spec.by, self.owners.data_type().clone(), true),
            Field::new(HISTORY, DataType::List(element.clone()), false),
            Field::new(ITEM, self.items.data_type().clone(), false),
        ]));
        let mut rows = self.places.iter().enumerate().flat_map(|(owner, places)| {
            let start = places.start;
            part.places(places.len()).map(move |place| (owner as u32, start, start + place))
        });
        let mut written = 0;
        write_parquet(path, schema.clone(), properties(), files, || {
            let (mut owners, mut before, mut offsets, mut asked) =
                (Vec::new(), Vec::new(), vec![0i32], Vec::new());
            for (owner, start, place) in rows.by_ref().take(ROWS) {
                owners.push(owner);
                let from = start.max(place.saturating_sub(spec.last));
                before.extend((from as u32)..place as u32);
                offsets.push(i32::try_from(before.len()).map_err(io::Error::other)?);
                asked.push(place as u32);
            }
            if owners.is_empty() {
                return Ok(Vec::new());
            }
            written += owners.len() as u64;
            let taken = |from: &ArrayRef, at: Vec<u32>| {
                take(from, &UInt32Array::from(at), None).map_err(io::Error::other)
            };
            let history = ListArray::try_new(
                element.clone(),
                OffsetBuffer::new(ScalarBuffer::from(offsets)),
                taken(&self.items, before)?,
                None,
            );
            let columns: Vec<ArrayRef> = vec![
                taken(&self.owners, owners)?,
                Arc::new(history.map_err(io::Error::other)?),
                taken(&self.items, asked)?,
            ];
            let batch = RecordBatch::try_new(schema.clone(), columns).map_err(io::Error::other)?;
            Ok(vec![batch])
        })?;
        Ok(written)
    }
}

fn columns<'a>(
    spec: &NextItemSpec,
    batch: &'a RecordBatch,
    path: &Path,
) -> Result<(ArrayRef, &'a ListArray)> {
    let owner = find_column(batch, &spec.by, "by", path)?;
    let items = find_column(batch, &spec.items, "items", path)?;
    let is_id = |found: &DataType| found.is_integer() || *found == DataType::Utf8;
    let lists = items.as_list_opt::<i32>().filter(|lists| is_id(lists.values().data_type()));
    let lists = lists.ok_or_else(|| {
        let needed = "a sequence must be a list of whole numbers or strings";
        wrong_type(&spec.items, items.data_type(), needed, path)
    })?;
    Ok((owner.clone(), lists))
}

fn gather(values: &ArrayRef, at: Vec<u32>, path: &Path) -> Result<ArrayRef> {
    take(values, &UInt32Array::from(at), None).map_err(|error| damaged(&error, path))
}

/// Checks that the columns of the last file have the same types as the columns of the first file.
fn same_types(
    spec: &NextItemSpec,
    owners: &[ArrayRef],
    items: &[ArrayRef],
    path: &Path,
) -> Result<()> {
    for (name, arrays) in [(&spec.by, owners), (&spec.items, items)] {
        let [first, .., last] = arrays else { continue };
        if first.data_type() != last.data_type() {
            let needed = format!("another file has {}", first.data_type());
            return Err(wrong_type(name, last.data_type(), &needed, path));
        }
    }
    Ok(())
}

fn damaged(error: &ArrowError, path: &Path) -> ReaderError {
    ReaderError::Damaged {
        what: "its sequences cannot be joined".to_owned(),
        reason: error.to_string(),
        path: path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_asks_for_each_item_after_the_first() {
        for len in 0..8 {
            let mut asked: Vec<usize> =
                Part::ALL.into_iter().flat_map(|part| part.places(len)).collect();
            asked.sort_unstable();
            assert_eq!(asked, (1..len).collect::<Vec<_>>(), "{len}");
            assert_eq!(Part::Test.places(len).len(), usize::from(len >= 3), "{len}");
            assert_eq!(Part::Valid.places(len).len(), usize::from(len >= 3), "{len}");
        }
    }
}
