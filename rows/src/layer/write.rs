//! The writer of a layer of a version. Rows arrive in key order, and each part is written when it
//! is complete.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, Schema};
use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::hot::{self, HotKey, HotPicker};
use super::schemas::{directory_fields, part_fields, part_label, schema};
use super::sparse::{SparseRows, Zeros};
use super::throttled::Throttled;
use super::weights::{WeightFormat, WeightRows};
use super::{
    FORMAT, LayerCut, LayerFile, LayerManifest, LayerPart, LayerTable, NarrowRows, PART_BYTES,
    Throttle, entry_bits, entry_of, part_count, part_format, part_of, row_bytes,
};
use crate::arrow_writer::{Hashed, write_batch};
use crate::error::{Error, Result};
use crate::layout::{HotRule, SegmentLayout, TableLayout};
use crate::row_type::RowType;

/// The number of rows between two calls of [`Throttle::piece`].
pub(super) const PIECE_ROWS: usize = 512;

/// A writer of the files of a layer into a folder.
///
/// The caller must begin the tables in the order of the schema, and add the rows of each table in
/// ascending order of their keys. Full and narrow rows are added in one sequence. A part stays in
/// memory until it is complete; at most one part of each width is in memory.
pub struct LayerWriter<'a> {
    files: &'a Files,
    folder: &'a Path,
    throttle: &'a mut dyn Throttle,
    starts: Vec<u32>,
    tables: Vec<LayerTable>,
    open: Option<OpenTable>,
    /// The hot keys of the tables that are complete.
    hot: Vec<Vec<HotKey>>,
    /// The rules by which the keys were chosen.
    rules: Vec<Option<HotRule>>,
}

/// The table to which rows are being added.
struct OpenTable {
    last: Option<u64>,
    full: OpenRows,
    /// The narrow rows; `None` if the rows of the table cannot be narrow.
    narrow: Option<OpenRows>,
    name: String,
    tombstones: u64,
    /// The number of finite weights that the number type cannot hold.
    clamped: u64,
    hot: Option<HotPicker>,
}

/// The parts of one width of a table.
struct Span {
    parts: usize,
    /// The indices of the parts that the writer writes.
    own: Range<usize>,
    /// The largest number of rows that the writer will add.
    most: u64,
}

impl Span {
    fn all(parts: usize, most: u64) -> Self {
        Self { parts, own: 0..parts, most }
    }
}

/// The rows of one width of the table to which rows are being added.
struct OpenRows {
    is_narrow: bool,
    segments: Vec<(String, usize)>,
    format: WeightFormat,
    parts: usize,
    rows: Rows,
    /// The largest number of rows in a part.
    room: usize,
    /// The index of the part that `rows` belongs to.
    part: usize,
    /// The indices of the parts that the writer writes.
    own: Range<usize>,
    done: Vec<LayerPart>,
}

/// The rows of a part in columns.
struct Rows {
    keys: Vec<u64>,
    weights: WeightRows,
    counts: Vec<u32>,
    tombstones: Vec<u8>,
    zeros: Zeros,
}

impl<'a> LayerWriter<'a> {
    /// Creates a writer of a layer that has no table yet. `folder` must exist, and the caller must
    /// sync the folder above it.
    pub fn new(files: &'a Files, folder: &'a Path, throttle: &'a mut dyn Throttle) -> Self {
        let (starts, tables, hot, rules) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { files, folder, throttle, starts, tables, open: None, hot, rules }
    }

    /// Ends the current table and begins the next one. `parts` is the number of parts that
    /// [`part_count`] returns, or 0 for a table without rows. All rows of the table are full.
    ///
    /// # Errors
    /// Returns an error if the last part of the current table cannot be written.
    pub fn table(&mut self, layout: &TableLayout, parts: usize) -> Result<()> {
        self.begin(layout, Span::all(parts, u64::MAX), Span::all(0, 0))
    }

    /// Ends the current table and begins the next one, as [`LayerWriter::table`] does. The table
    /// will have at most `full` full rows and tombstones, and at most `narrow` narrow rows.
    ///
    /// # Errors
    /// Returns an error if the last part of the current table cannot be written.
    pub fn table_of_rows(&mut self, layout: &TableLayout, full: u64, narrow: u64) -> Result<()> {
        let narrow = Span::all(part_count(narrow, layout.narrow_width()), narrow);
        self.begin(layout, Span::all(part_count(full, layout.width()), full), narrow)
    }

    /// Ends the current table and begins the next one, of which the writer writes only the parts
    /// with the keys of `slots`. Other writers write the other parts of the same cut.
    ///
    /// # Errors
    /// Returns an error if a bound of `slots` lies inside a part, or if the last part of the
    /// current table cannot be written.
    pub fn owned_table(
        &mut self,
        layout: &TableLayout,
        cut: LayerCut,
        slots: &Range<usize>,
    ) -> Result<()> {
        let span = |parts: usize| -> Result<Span> {
            Ok(Span { parts, own: cut.own(&layout.name, parts, slots)?, most: u64::MAX })
        };
        self.begin(layout, span(cut.full)?, span(cut.narrow)?)
    }

    fn begin(&mut self, layout: &TableLayout, full: Span, narrow_parts: Span) -> Result<()> {
        self.end_table()?;
        self.rules.push(layout.hot);
        let narrow = layout.narrow.as_ref().filter(|_| narrow_parts.parts > 0);
        self.open = Some(OpenTable {
            last: None,
            full: OpenRows::new(layout.published, &layout.segments, full, false),
            narrow: narrow
                .map(|segments| OpenRows::new(layout.published, segments, narrow_parts, true)),
            name: layout.name.clone(),
            tombstones: 0,
            clamped: 0,
            hot: layout.hot.map(HotPicker::new),
        });
        Ok(())
    }

    /// Adds a row, or a tombstone if `weights` is `None`. The number of weights says whether the
    /// row is narrow.
    ///
    /// # Errors
    /// Returns an error if the key is not greater than the previous key, if the row has a wrong
    /// width, if the table was begun without parts, or if a file cannot be written.
    pub fn push(&mut self, key: FeatureKey, weights: Option<&[f32]>, count: u32) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(Error::misuse("a row was added before its table; begin the table first"));
        };
        let refuse = |open: &OpenTable, reason: String| Error::mismatch(&open.name, reason);
        if open.last.is_some_and(|last| last >= key.0) {
            return Err(refuse(
                open,
                format!(
                    "key {:#018x} is not greater than the key before it; add rows in key order",
                    key.0
                ),
            ));
        }
        let is_narrow = |rows: &OpenRows| weights.is_some_and(|row| row.len() == rows.format.width);
        let is_narrow = open.narrow.as_ref().is_some_and(is_narrow);
        let rows = open.rows_of(is_narrow);
        if rows.parts == 0 {
            return Err(refuse(open, "a row was added to a table that was begun as empty; begin it with at least one part".into()));
        }
        if let Some(row) = weights
            && row.len() != rows.format.width
        {
            let reason = format!(
                "a row has {} floats instead of {}; use the table's layout",
                row.len(),
                rows.format.width
            );
            return Err(refuse(open, reason));
        }
        let part = part_of(key.0, rows.parts);
        if !rows.own.contains(&part) {
            let reason = format!(
                "key {:#018x} belongs to part {part} of another writer; add only own keys",
                key.0
            );
            return Err(refuse(open, reason));
        }
        while self.open.as_mut().is_some_and(|open| open.rows_of(is_narrow).part < part) {
            self.end_part(is_narrow)?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.last = Some(key.0);
        open.tombstones += u64::from(weights.is_none());
        let row_type = open.full.format.row_type;
        open.clamped += weights.map_or(0, |row| row_type.count_clamped(row));
        let OpenRows { rows, room, format, .. } = open.rows_of(is_narrow);
        if rows.keys.is_empty() {
            rows.reserve(*room, format);
        }
        let pushed = rows.push(key.0, weights, format, count);
        let is_piece = rows.keys.len().is_multiple_of(PIECE_ROWS);
        if let Err(reason) = pushed {
            return Err(refuse(open, format!("key {:#018x}: {reason}", key.0)));
        }
        if is_piece {
            self.throttle.piece();
        }
        Ok(())
    }

    /// Adds a row like [`LayerWriter::push`], whose last push was at the time `last`: a step, or an
    /// event time in seconds. The key may then be one of the hot keys of the layer.
    ///
    /// # Errors
    /// Returns the errors of [`LayerWriter::push`].
    pub fn push_used(
        &mut self,
        key: FeatureKey,
        weights: &[f32],
        count: u32,
        last: u32,
    ) -> Result<()> {
        self.push(key, Some(weights), count)?;
        if let Some(hot) = self.open.as_mut().and_then(|open| open.hot.as_mut()) {
            hot.add(HotKey { key, count, last });
        }
        Ok(())
    }

    /// Calls the throttle after some rows that the caller has read but not added.
    pub(super) fn pause(&mut self) {
        self.throttle.piece();
    }

    /// Returns whether the throttle has ended the work.
    pub(super) fn is_stopped(&self) -> bool {
        self.throttle.is_stopped()
    }

    /// Writes the last part and the directory, and returns the manifest of the layer.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn finish(mut self) -> Result<LayerManifest> {
        self.end_table()?;
        let starts = std::mem::take(&mut self.starts);
        let directory = self
            .write(&schema("directory", FORMAT, directory_fields()), move || {
                Ok(vec![Arc::new(UInt32Array::from(starts)) as ArrayRef])
            })?;
        let hot = self.write_hot()?.into_iter().collect();
        Ok(LayerManifest { tables: self.tables, directory, more_directories: Vec::new(), hot })
    }

    /// Writes the file with the hot keys of all tables, if there is any.
    fn write_hot(&mut self) -> Result<Option<LayerFile>> {
        let lists = std::mem::take(&mut self.hot);
        if lists.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let mut schema = Schema::clone(&schema(hot::LABEL, FORMAT, hot::hot_fields()));
        let lives = hot::half_lives_text(&self.rules);
        schema.metadata.insert(hot::HALF_LIVES.to_owned(), lives);
        self.write(&Arc::new(schema), || Ok(hot::columns(&lists))).map(Some)
    }

    fn end_table(&mut self) -> Result<()> {
        for is_narrow in [false, true] {
            let has_more = |open: &mut OpenTable| {
                let rows = open.rows_of(is_narrow);
                rows.part < rows.own.end
            };
            while self.open.as_mut().is_some_and(has_more) {
                self.end_part(is_narrow)?;
            }
        }
        if let Some(mut open) = self.open.take() {
            self.hot.push(open.hot.take().map_or(Vec::new(), HotPicker::finish));
            self.tables.push(open.into_entry());
        }
        Ok(())
    }

    /// Writes the current part of full or narrow rows and begins the next part.
    fn end_part(&mut self, is_narrow: bool) -> Result<()> {
        let Some(mut table) = self.open.take() else { return Ok(()) };
        let name = table.name.clone();
        let open = table.rows_of(is_narrow);
        let rows = std::mem::replace(&mut open.rows, Rows::new(open.format.row_type));
        let count = rows.keys.len();
        let is_sparse = rows.zeros.is_sparse(count, &open.format);
        let stored = is_sparse.then_some(rows.zeros.stored);
        let schema = part_schema(&name, open, is_sparse);
        let bits = entry_bits(count);
        let first_entry = self.starts.len() as u64;
        list_entries(&rows.keys, open.parts, bits, &mut self.starts, self.throttle);
        let format = open.format.clone();
        let sparse = is_sparse
            .then(|| SparseRows::compress(&rows.weights, &format, count, &mut *self.throttle));
        let file = self.write(&schema, || rows.columns(&format, sparse))?;
        let rows = count as u64;
        open.done.push(LayerPart { file, rows, first_entry, bits, directory: 0, stored });
        open.part += 1;
        self.open = Some(table);
        Ok(())
    }

    /// Writes one file. The name of the file is the hash of its bytes.
    fn write(
        &mut self,
        schema: &Arc<Schema>,
        columns: impl FnOnce() -> Result<Vec<ArrayRef>, ArrowError>,
    ) -> Result<LayerFile> {
        let mut hasher = blake3::Hasher::new();
        let throttle = &mut *self.throttle;
        let (name, bytes) = self.files.write_named_by_content(self.folder, |out| {
            let hashed = Hashed { out, hasher: &mut hasher };
            let throttled = Throttled { hashed, throttle: &mut *throttle };
            let batch = || RecordBatch::try_new(schema.clone(), columns()?);
            write_batch(throttled, schema, batch)?;
            throttle.piece();
            let blake3 = hasher.finalize().to_hex().to_string();
            Ok(format!("{blake3}.arrow"))
        })?;
        // The thread waits for the disk until the file is durable.
        throttle.waited();
        let blake3 = name.trim_end_matches(".arrow").to_owned();
        Ok(LayerFile { blake3, bytes })
    }
}

impl OpenTable {
    /// Returns the open rows of one width, or the full rows if the table has no narrow rows.
    fn rows_of(&mut self, is_narrow: bool) -> &mut OpenRows {
        match &mut self.narrow {
            Some(narrow) if is_narrow => narrow,
            _ => &mut self.full,
        }
    }

    fn into_entry(self) -> LayerTable {
        let rows = |parts: &[LayerPart]| parts.iter().map(|part| part.rows).sum::<u64>();
        let narrow = self.narrow.map(|narrow| NarrowRows {
            segments: narrow.segments,
            rows: rows(&narrow.done),
            parts: narrow.done,
        });
        LayerTable {
            table: self.name,
            segments: self.full.segments,
            row_type: self.full.format.row_type,
            rows: rows(&self.full.done) + narrow.as_ref().map_or(0, |narrow| narrow.rows),
            tombstones: self.tombstones,
            clamped: self.clamped,
            parts: self.full.done,
            narrow,
        }
    }
}

impl OpenRows {
    fn new(row_type: RowType, segments: &[SegmentLayout], span: Span, is_narrow: bool) -> Self {
        let Span { parts, own, most } = span;
        let segments: Vec<_> = segments.iter().map(|s| (s.name.clone(), s.dim)).collect();
        let format = WeightFormat::new(row_type, &segments);
        let most = (PART_BYTES / row_bytes(format.width)).min(most);
        let room = usize::try_from(most).unwrap_or(usize::MAX);
        let (part, done) = (own.start, Vec::with_capacity(own.len()));
        let rows = Rows::new(row_type);
        Self { is_narrow, segments, format, parts, rows, room, part, own, done }
    }
}

impl Rows {
    fn new(row_type: RowType) -> Self {
        let weights = WeightRows::new(row_type);
        let (counts, tombstones, zeros) = (Vec::new(), Vec::new(), Zeros::default());
        Self { keys: Vec::new(), weights, counts, tombstones, zeros }
    }

    /// Reserves the memory of a whole part at once, because growing would copy megabytes between
    /// two pauses. Reserved memory takes no physical memory until it is written.
    fn reserve(&mut self, rows: usize, format: &WeightFormat) {
        self.keys.reserve_exact(rows);
        self.weights.reserve(rows, format);
        self.counts.reserve_exact(rows);
        self.tombstones.reserve_exact(rows);
    }

    fn push(
        &mut self,
        key: u64,
        weights: Option<&[f32]>,
        format: &WeightFormat,
        count: u32,
    ) -> Result<(), String> {
        self.weights.push(weights, format)?;
        if weights.is_some() {
            self.zeros.living += 1;
            self.zeros.stored += self.weights.stored_of_last(format.width) as u64;
        }
        self.keys.push(key);
        self.counts.push(count);
        self.tombstones.push(u8::from(weights.is_none()));
        Ok(())
    }

    /// Returns the columns of the file. `sparse` has the weights if the file leaves out zeros.
    fn columns(
        self,
        format: &WeightFormat,
        sparse: Option<SparseRows>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let rows = self.keys.len();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(self.keys))];
        columns.extend(match sparse {
            Some(sparse) => sparse.columns(format, rows)?,
            None => self.weights.columns(format, rows)?,
        });
        columns.push(Arc::new(UInt32Array::from(self.counts)));
        columns.push(Arc::new(UInt8Array::from(self.tombstones)));
        Ok(columns)
    }
}

/// Appends the entries of a part to the directory. An entry is the index of the first row in the
/// part that belongs to the entry.
fn list_entries(
    keys: &[u64],
    parts: usize,
    bits: u32,
    starts: &mut Vec<u32>,
    throttle: &mut dyn Throttle,
) {
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
            throttle.piece();
        }
    }
}

fn part_schema(table: &str, open: &OpenRows, is_sparse: bool) -> Arc<Schema> {
    let segments = open.segments.iter().map(|(name, dim)| format!("{name}:{dim}"));
    let format = part_format(open.format.row_type, is_sparse);
    let mut schema = Schema::clone(&schema("part", format, part_fields(&open.format, is_sparse)));
    let metadata = [
        ("zillion.part", part_label(open.part, open.parts, open.is_narrow)),
        ("zillion.segments", segments.collect::<Vec<_>>().join(",")),
        ("zillion.table", table.to_owned()),
    ];
    schema.metadata.extend(metadata.map(|(key, value)| (key.to_owned(), value)));
    Arc::new(schema)
}
