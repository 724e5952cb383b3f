//! Writing a layer: rows come in key order, files go out part by part.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::{
    FORMAT, LayerFile, LayerManifest, LayerPart, LayerTable, PART_BYTES, Pace, entry_bits,
    entry_of, part_of, row_bytes,
};
use crate::error::{Error, Result};
use crate::spec::TableLayout;

/// Bytes that are written and hashed between two calls of [`Pace::piece`]: about 0.1 ms.
const PIECE_BYTES: usize = 64 << 10;

/// Rows between two calls of [`Pace::piece`].
pub(super) const PIECE_ROWS: usize = 512;

/// Writes a layer's files into a folder.
///
/// The caller must begin the tables in the order of the schema and add each table's rows in ascending order
/// of their keys. A part is held in memory until it is whole, and no more than one.
pub struct LayerWriter<'a> {
    files: &'a Files,
    folder: &'a Path,
    pace: &'a mut dyn Pace,
    starts: Vec<u32>,
    tables: Vec<LayerTable>,
    open: Option<OpenTable>,
}

/// The table that rows are added to.
struct OpenTable {
    parts: usize,
    width: usize,
    last: Option<u64>,
    rows: Rows,
    /// Rows that a part can have.
    room: usize,
    /// The part that `rows` belong to.
    part: usize,
    done: LayerTable,
}

/// Rows of a part in columns.
#[derive(Default)]
struct Rows {
    keys: Vec<u64>,
    weights: Vec<f32>,
    counts: Vec<u32>,
    tombstones: Vec<u8>,
}

impl<'a> LayerWriter<'a> {
    /// A layer without tables yet. `folder` exists; its name is not synced here.
    pub fn new(files: &'a Files, folder: &'a Path, pace: &'a mut dyn Pace) -> Self {
        Self { files, folder, pace, starts: Vec::new(), tables: Vec::new(), open: None }
    }

    /// Ends the table before and begins the next one, in `parts` parts: what
    /// [`part_count`](super::part_count) says, 0 for a table without rows.
    ///
    /// # Errors
    /// Where the disk refuses the last part of the table before.
    pub fn table(&mut self, layout: &TableLayout, parts: usize) -> Result<()> {
        self.end_table()?;
        let segments = layout.segments.iter().map(|s| (s.name.clone(), s.dim)).collect();
        let done = LayerTable {
            table: layout.name.clone(),
            segments,
            rows: 0,
            tombstones: 0,
            parts: Vec::with_capacity(parts),
        };
        let width = layout.width();
        let room = usize::try_from(PART_BYTES / row_bytes(width)).unwrap_or(usize::MAX);
        let rows = Rows::default();
        self.open = Some(OpenTable { parts, width, last: None, rows, room, part: 0, done });
        Ok(())
    }

    /// Adds a row, or a tombstone where `weights` is `None`.
    ///
    /// # Errors
    /// A key that is not above the one before it, a row of another width, a row of a table that was begun
    /// without parts, or a disk that refuses.
    pub fn push(&mut self, key: FeatureKey, weights: Option<&[f32]>, count: u32) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(Error::mismatch("*", "a row is added before its table is begun"));
        };
        let refuse = |open: &OpenTable, reason: String| Error::mismatch(&open.done.table, reason);
        if open.last.is_some_and(|last| last >= key.0) {
            return Err(refuse(
                open,
                format!("key {:#018x} is not above the one before it", key.0),
            ));
        }
        if open.parts == 0 {
            return Err(refuse(open, "a row is added to a table that was begun as empty".into()));
        }
        if let Some(row) = weights
            && row.len() != open.width
        {
            return Err(refuse(
                open,
                format!("a row has {} floats, not {}", row.len(), open.width),
            ));
        }
        let part = part_of(key.0, open.parts);
        while self.open.as_ref().is_some_and(|open| open.part < part) {
            self.end_part()?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.rows.keys.is_empty() {
            open.rows.reserve(open.room, open.width);
        }
        open.last = Some(key.0);
        open.rows.push(key.0, weights, open.width, count);
        open.done.tombstones += u64::from(weights.is_none());
        if open.rows.keys.len().is_multiple_of(PIECE_ROWS) {
            self.pace.piece();
        }
        Ok(())
    }

    /// Lets the pace have its turn, where rows were looked at and none was added.
    pub(super) fn pause(&mut self) {
        self.pace.piece();
    }

    /// Writes the last part and the directory.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn finish(mut self) -> Result<LayerManifest> {
        self.end_table()?;
        let starts = std::mem::take(&mut self.starts);
        let directory = self.write(&schema("directory", directory_fields()), move || {
            Ok(vec![Arc::new(UInt32Array::from(starts)) as ArrayRef])
        })?;
        Ok(LayerManifest { tables: self.tables, directory })
    }

    fn end_table(&mut self) -> Result<()> {
        while self.open.as_ref().is_some_and(|open| open.part < open.parts) {
            self.end_part()?;
        }
        self.tables.extend(self.open.take().map(|open| open.done));
        Ok(())
    }

    /// Writes the rows at hand as the current part and moves to the next.
    fn end_part(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let rows = std::mem::take(&mut open.rows);
        let count = rows.keys.len();
        let bits = entry_bits(count);
        let first_entry = self.starts.len() as u64;
        list_entries(&rows.keys, open.parts, bits, &mut self.starts, self.pace);
        let schema = part_schema(&open);
        let width = open.width;
        let file = self.write(&schema, || rows.columns(width))?;
        open.done.rows += count as u64;
        open.done.parts.push(LayerPart { file, rows: count as u64, first_entry, bits });
        open.part += 1;
        self.open = Some(open);
        Ok(())
    }

    /// Writes one file and names it by its hash.
    fn write(
        &mut self,
        schema: &Arc<Schema>,
        columns: impl FnOnce() -> Result<Vec<ArrayRef>, ArrowError>,
    ) -> Result<LayerFile> {
        let mut hasher = blake3::Hasher::new();
        let pace = &mut *self.pace;
        let (name, bytes) = self.files.write_named_by_content(self.folder, |out| {
            let paced = Paced { out, hasher: &mut hasher, pace: &mut *pace };
            let mut writer = FileWriter::try_new(paced, schema).map_err(io_error)?;
            let columns = columns().map_err(io_error)?;
            let batch = RecordBatch::try_new(schema.clone(), columns).map_err(io_error)?;
            writer.write(&batch).map_err(io_error)?;
            writer.finish().map_err(io_error)?;
            drop(writer);
            pace.piece();
            let blake3 = hasher.finalize().to_hex().to_string();
            Ok(format!("{blake3}.arrow"))
        })?;
        // For the disk, until the file is durable.
        pace.waited();
        let blake3 = name.trim_end_matches(".arrow").to_owned();
        Ok(LayerFile { blake3, bytes })
    }
}

impl Rows {
    /// Takes room for a whole part at once: growing copies megabytes between two pauses. What is not used of it
    /// is no memory yet.
    fn reserve(&mut self, rows: usize, width: usize) {
        self.keys.reserve_exact(rows);
        self.weights.reserve_exact(rows.saturating_mul(width));
        self.counts.reserve_exact(rows);
        self.tombstones.reserve_exact(rows);
    }

    fn push(&mut self, key: u64, weights: Option<&[f32]>, width: usize, count: u32) {
        self.keys.push(key);
        match weights {
            Some(row) => self.weights.extend_from_slice(row),
            None => self.weights.resize(self.weights.len() + width, 0.0),
        }
        self.counts.push(count);
        self.tombstones.push(u8::from(weights.is_none()));
    }

    fn columns(self, width: usize) -> Result<Vec<ArrayRef>, ArrowError> {
        let rows = self.keys.len();
        let values = Arc::new(Float32Array::from(self.weights));
        let weights =
            FixedSizeListArray::try_new_with_length(item(), width as i32, values, None, rows)?;
        Ok(vec![
            Arc::new(UInt64Array::from(self.keys)),
            Arc::new(weights),
            Arc::new(UInt32Array::from(self.counts)),
            Arc::new(UInt8Array::from(self.tombstones)),
        ])
    }
}

/// Appends the entries of a part's directory: where the keys of each entry begin.
fn list_entries(keys: &[u64], parts: usize, bits: u32, starts: &mut Vec<u32>, pace: &mut dyn Pace) {
    let entries = 1usize << bits;
    starts.reserve(entries + 1);
    let mut row = 0;
    for entry in 0..=entries {
        while row < keys.len() && entry_of(keys[row], parts, bits) < entry {
            row += 1;
        }
        // A writer holds a part in memory: its rows are far below 2^32.
        starts.push(row as u32);
        if entry.is_multiple_of(PIECE_ROWS) {
            pace.piece();
        }
    }
}

/// The columns of a part whose rows have this many floats.
pub(super) fn part_fields(width: usize) -> Vec<Field> {
    vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("weights", DataType::FixedSizeList(item(), width as i32), false),
        Field::new("count", DataType::UInt32, false),
        Field::new("tombstone", DataType::UInt8, false),
    ]
}

/// The columns of a directory.
pub(super) fn directory_fields() -> Vec<Field> {
    vec![Field::new("start", DataType::UInt32, false)]
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float32, false))
}

fn part_schema(open: &OpenTable) -> Arc<Schema> {
    let segments = open.done.segments.iter().map(|(name, dim)| format!("{name}:{dim}"));
    let mut schema = Schema::clone(&schema("part", part_fields(open.width)));
    let said = [
        ("zillion.part", format!("{} of {}", open.part, open.parts)),
        ("zillion.segments", segments.collect::<Vec<_>>().join(",")),
        ("zillion.table", open.done.table.clone()),
    ];
    schema.metadata.extend(said.map(|(key, value)| (key.to_owned(), value)));
    Arc::new(schema)
}

fn schema(what: &str, fields: Vec<Field>) -> Arc<Schema> {
    let said = [("zillion.format", FORMAT), ("zillion.layer", what)];
    let metadata = said.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Arc::new(Schema::new(fields).with_metadata(std::collections::HashMap::from(metadata)))
}

/// Keeps the kind of an error of the disk, so that a full one is told from others.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// Hashes what it passes on, in small pieces.
struct Paced<'a> {
    out: &'a mut dyn Write,
    hasher: &'a mut blake3::Hasher,
    pace: &'a mut dyn Pace,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        let written = self.out.write(piece)?;
        self.hasher.update(&piece[..written]);
        if written == PIECE_BYTES {
            self.pace.piece();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
