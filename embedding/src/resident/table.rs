//! A table whose rows are on a device: its slab, and the places of its rows in it.

use std::ops::Range;

use zillion_device::gpu::kernels::TableRules;

use crate::error::Result;
use crate::resident::cache::ShardCache;
use crate::resident::device::{Owned, ResidentOptions};
use crate::resident::form::RowForm;
use crate::resident::layout::{NormPart, TableNeeds};
use crate::resident::places::{CHUNK_ROWS, ShardPlaces};
use crate::resident::slab::DeviceSlab;
use crate::set::TableSet;
use crate::shape::TableShape;
use crate::table::Table;

/// A table on a device.
#[derive(Debug)]
pub(super) struct ResidentTable {
    pub(super) form: RowForm,
    pub(super) slab: DeviceSlab,
    /// The places of the rows of each shard.
    pub(super) places: Vec<ShardPlaces>,
    /// The number of chunks of the slab that shards have taken.
    chunks: u32,
    /// The state of a sweep; `None` if steps change only the rows of a batch.
    pub(super) swept: Option<Swept>,
    pub(super) is_frozen: bool,
    /// Whether a step may create rows.
    pub(super) creates: bool,
    /// Whether keys may have no row after a step.
    pub(super) refuses: bool,
    /// The initial segments, then the segments of the norm.
    segments: Owned,
}

/// The state of a table whose sweep changes every row.
#[derive(Debug)]
pub(super) struct Swept {
    /// The unique row of each row in the present step.
    pub(super) unique_of: Owned,
    /// The key of each row, for the rounding of weights of 16 bits; `None` for other weights.
    pub(super) keys: Option<Owned>,
    /// The rows of each slot that has rows.
    pub(super) slots: Vec<(usize, Range<u32>)>,
    pub(super) rows: usize,
    /// The dirty epoch that all rows have; `None` before the first sweep.
    pub(super) epoch: Option<u32>,
}

/// The places of rows on a device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Places<'a> {
    /// Every row has a place, and a part of `1 / room` of the rows more as further room.
    All(Option<usize>),
    /// The rows of each table share this number of slots. Tables with whole-table rules have a
    /// place for each row.
    Cache(&'a [usize]),
}

impl ResidentTable {
    /// Makes all tables of a set with memory for their present rows and for `more` more rows of
    /// each table in each shard, or with caches. Only tables that create rows have free places. The
    /// rows are not copied.
    pub(super) fn all(
        options: &ResidentOptions,
        tables: &TableSet,
        places: Places<'_>,
        more: impl Fn(usize, usize) -> usize,
    ) -> Result<Vec<Self>> {
        let of = |index| match places {
            Places::Cache(slots) if Self::can_be_cached(tables, index) => {
                Self::with_cache(options, tables, index, slots[index])
            }
            Places::Cache(_) => Self::new(options, tables, index, (&|_| 0, None)),
            Places::All(room) => {
                Self::new(options, tables, index, (&|shard| more(shard, index), room))
            }
        };
        (0..tables.shapes.len()).map(of).collect()
    }

    /// Returns whether a part of a table's rows is enough for a step.
    pub(super) fn can_be_cached(tables: &TableSet, index: usize) -> bool {
        tables.frozen[index] || !tables.shapes[index].swept
    }

    /// Makes a table whose rows share `slots` slots. Each shard has its part of them.
    fn with_cache(
        options: &ResidentOptions,
        tables: &TableSet,
        index: usize,
        slots: usize,
    ) -> Result<Self> {
        let (shape, shards) = (&tables.shapes[index], tables.shards.len());
        let form = RowForm::new(shape);
        let slab = DeviceSlab::new(options, shape.name(), form.row_bytes(), slots)?;
        let places = tables.shards.iter().enumerate().map(|(shard, of_shard)| {
            let [first, end] = [shard, shard + 1].map(|at| (at * slots / shards) as u32);
            let mut cache = ShardCache::new(first, end - first);
            cache.reserve(end_of_rows(&of_shard.tables[index]));
            ShardPlaces::in_a_cache(cache)
        });
        let is_frozen = tables.frozen[index];
        Ok(Self {
            places: places.collect(),
            chunks: 0,
            swept: None,
            is_frozen,
            creates: !shape.spec.dense && !is_frozen,
            refuses: may_refuse(tables, shape, is_frozen),
            segments: segments(options, &form)?,
            form,
            slab,
        })
    }

    /// Makes a table with all rows. `more` returns the number of free places of a shard.
    fn new(
        options: &ResidentOptions,
        tables: &TableSet,
        index: usize,
        (more, room): (&dyn Fn(usize) -> usize, Option<usize>),
    ) -> Result<Self> {
        let shape = &tables.shapes[index];
        let form = RowForm::new(shape);
        let is_frozen = tables.frozen[index];
        let parts: Vec<&Table> = tables.shards.iter().map(|shard| &shard.tables[index]).collect();
        let (mut places, mut chunks, mut rows) = (Vec::new(), 0, 0);
        for (shard, part) in parts.iter().enumerate() {
            let end = end_of_rows(part);
            if shape.spec.dense {
                places.push(ShardPlaces::in_a_run(rows as u32, end));
                rows += end;
            } else {
                let mut place = ShardPlaces::in_chunks();
                let more = if is_frozen { 0 } else { more(shard) };
                place.reserve(end + more, &mut chunks);
                places.push(place);
                rows = chunks as usize * CHUNK_ROWS;
            }
        }
        let creates = !shape.spec.dense && !is_frozen;
        let with_room = rows + room.filter(|_| creates).map_or(0, |room| rows / room);
        let slab = DeviceSlab::new(options, shape.name(), form.row_bytes(), with_room)?;
        let swept = match shape.swept && !is_frozen {
            true => Some(Swept::new(options, shape, &parts, rows)?),
            false => None,
        };
        let segments = segments(options, &form)?;
        let refuses = may_refuse(tables, shape, is_frozen);
        Ok(Self { form, slab, places, chunks, swept, is_frozen, creates, refuses, segments })
    }

    /// Makes places for the rows of each shard, of which `rows` has the numbers. Returns whether
    /// the slab has no memory for them yet.
    pub(super) fn reserve(&mut self, rows: impl Iterator<Item = usize>) -> bool {
        for (places, rows) in self.places.iter_mut().zip(rows) {
            places.reserve(rows, &mut self.chunks);
        }
        !self.slab.holds(self.placed())
    }

    /// Makes memory for all places, of which there is too little. At least `kept` bytes of the
    /// device stay free. The rows move.
    pub(super) fn grow(&mut self, options: &ResidentOptions, name: &str, kept: u64) -> Result<()> {
        self.slab.grow(options, name, self.placed(), kept)
    }

    /// Returns the number of places in chunks.
    fn placed(&self) -> usize {
        self.chunks as usize * CHUNK_ROWS
    }

    /// Returns the bytes of the device's memory that the table takes.
    pub(super) fn bytes(&self) -> usize {
        let swept = self.swept.as_ref();
        let of_swept = swept.map_or(0, |swept| {
            swept.unique_of.bytes() + swept.keys.as_ref().map_or(0, Owned::bytes)
        });
        self.slab.bytes() + of_swept + self.segments.bytes()
    }

    pub(super) fn initial_segments(&self) -> u64 {
        self.segments.address()
    }

    pub(super) fn square_segments(&self) -> u64 {
        self.segments.address() + size_of_val(self.form.initial.as_slice()) as u64
    }

    /// Returns what the table needs in the block of a step with `keys` keys.
    pub(super) fn needs(&self, keys: usize, clips: bool) -> TableNeeds {
        let norm = match &self.swept {
            _ if self.is_frozen || !clips => NormPart::Nothing,
            None => NormPart::Keys,
            Some(swept) => NormPart::Everything { rows: swept.rows, slots: swept.slots.len() },
        };
        TableNeeds {
            keys,
            rules: self.form.initial.len(),
            reads_keys: self.refuses || self.form.dtype != TableRules::F32,
            creates: self.creates,
            norm,
        }
    }
}

/// Returns whether keys may have no row after a step.
fn may_refuse(tables: &TableSet, shape: &TableShape, is_frozen: bool) -> bool {
    let is_limited = shape.most_rows.is_some() || tables.shared.rows.is_some();
    shape.spec.dense || is_frozen || is_limited || !shape.spec.admission.is_all()
}

/// Returns the number behind the largest number of a row.
fn end_of_rows(part: &Table) -> usize {
    let entries = part.index.slots().flat_map(|slot| part.index.slot_entries(slot));
    let in_memory = entries.filter(|(_, entry)| part.spill.is_none() || !entry.is_cold());
    in_memory.map(|(_, entry)| entry.row() as usize + 1).max().unwrap_or(0)
}

/// Copies the initial segments and the segments of the norm to the device.
fn segments(options: &ResidentOptions, form: &RowForm) -> Result<Owned> {
    let mut segments: Vec<u8> = bytemuck::cast_slice(&form.initial).to_vec();
    segments.extend_from_slice(bytemuck::cast_slice(&form.squares));
    Ok(Owned::with(options, &segments)?)
}

impl Swept {
    fn new(
        options: &ResidentOptions,
        shape: &TableShape,
        parts: &[&Table],
        rows: usize,
    ) -> Result<Self> {
        let mut slots = Vec::new();
        let mut first = 0;
        let mut keys = vec![0u64; rows];
        for part in parts {
            let Some(dense) = &part.dense else { continue };
            for slot in dense.slots() {
                let run = dense.slot_rows(slot);
                if !run.is_empty() {
                    slots.push((slot, first + run.start..first + run.end));
                }
                for (key, entry) in part.index.slot_entries(slot) {
                    keys[(first + entry.row()) as usize] = key.0;
                }
            }
            first += dense.rows();
        }
        let is_rounded = !shape.spec.dtype.is_f32();
        Ok(Self {
            unique_of: Owned::new(options, rows * size_of::<u32>())?,
            keys: is_rounded.then(|| Owned::with(options, &keys)).transpose()?,
            slots,
            rows,
            epoch: None,
        })
    }
}
