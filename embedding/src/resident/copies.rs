//! The copies of rows between the slabs of the host and those of a device.

use zillion_device::gpu::kernels::{Count, PULL_ROWS, PullRows, StoredRows, TableRules};
use zillion_device::gpu::{GpuError, Pinned};
use zillion_rows::row::floats;

use crate::error::Result;
use crate::index::Entry;
use crate::resident::device::{Owned, ResidentOptions, launch};
use crate::resident::form::RowForm;
use crate::resident::table::ResidentTable;
use crate::set::TableSet;
use crate::table::slabs::RowSlabs;

/// The bytes of rows that are copied together.
const PIECE_BYTES: usize = 4 << 20;

/// The buffers of copies.
#[derive(Debug)]
pub(super) struct Copies {
    pinned: Pinned,
    device: Owned,
    pinned_slots: Pinned,
    device_slots: Owned,
    words: Vec<u32>,
}

/// A row of the host and its place on the device.
#[derive(Clone, Copy)]
struct Moved {
    shard: u32,
    row: u32,
    slot: u32,
}

impl Copies {
    /// Allocates buffers that hold at least one row of `row_bytes` bytes.
    pub(super) fn new(options: &ResidentOptions, row_bytes: usize) -> Result<Self, GpuError> {
        let bytes = PIECE_BYTES.max(row_bytes);
        let slots = bytes / 4;
        Ok(Self {
            pinned: options.gpu.allocate_pinned(bytes)?,
            device: Owned::new(options, bytes)?,
            pinned_slots: options.gpu.allocate_pinned(slots)?,
            device_slots: Owned::new(options, slots)?,
            words: Vec::new(),
        })
    }

    /// Returns the bytes of the device's memory that the buffers take.
    pub(super) fn bytes(&self) -> usize {
        self.device.bytes() + self.device_slots.bytes()
    }

    /// Copies all rows of a table to the device.
    pub(super) fn load(
        &mut self,
        options: &ResidentOptions,
        tables: &TableSet,
        resident: &ResidentTable,
        index: usize,
    ) -> Result<()> {
        let mut moved = Vec::new();
        for (shard, places) in resident.places.iter().enumerate() {
            let part = &tables.shards[shard].tables[index];
            let entries = part.index.slots().flat_map(|slot| part.index.slot_entries(slot));
            moved.extend(entries.map(|(_, entry): (_, Entry)| {
                let row = entry.row();
                Moved { shard: shard as u32, row, slot: places.slot(row) }
            }));
        }
        moved.sort_unstable_by_key(|moved| moved.slot);
        let form = &resident.form;
        let most = self.rows_of_a_piece(form);
        let mut left = moved.as_slice();
        while let Some(first) = left.first() {
            // Rows whose places follow each other are one copy.
            let end = (1..left.len().min(most)).find(|&at| left[at].slot != first.slot + at as u32);
            let (piece, after) = left.split_at(end.unwrap_or(left.len().min(most)));
            left = after;
            self.words.clear();
            for &Moved { shard, row, .. } in piece {
                let slabs = &tables.shards[shard as usize].tables[index].slabs;
                gather(slabs, row, form, &mut self.words);
            }
            self.pinned.write(0, &self.words)?;
            let to = resident.slab.part(first.slot as usize, piece.len())?;
            options.gpu.copy_in(options.stream, to, &self.pinned, 0)?;
            options.gpu.synchronize(options.stream)?;
        }
        Ok(())
    }

    /// Copies the rows of a table that have changed to the host.
    pub(super) fn settle(
        &mut self,
        options: &ResidentOptions,
        tables: &mut TableSet,
        resident: &mut ResidentTable,
        index: usize,
    ) -> Result<()> {
        let mut moved = Vec::new();
        for (shard, places) in resident.places.iter_mut().enumerate() {
            if let Some(cache) = places.cache() {
                let shard = shard as u32;
                cache.take_dirty(|row, slot| moved.push(Moved { shard, row, slot }));
                continue;
            }
            let mut rows = Vec::new();
            places.take_marked(|row| rows.push(row));
            moved.extend(rows.into_iter().map(|row| Moved {
                shard: shard as u32,
                row,
                slot: places.slot(row),
            }));
        }
        let form = &resident.form;
        for piece in moved.chunks(self.rows_of_a_piece(form)) {
            self.fetch(options, resident, piece)?;
            for (&Moved { shard, row, .. }, words) in
                piece.iter().zip(self.words.chunks_exact(form.stride))
            {
                write(&mut tables.shards[shard as usize].tables[index].slabs, row, form, words);
            }
        }
        Ok(())
    }

    /// Copies some rows to `words`.
    fn fetch(
        &mut self,
        options: &ResidentOptions,
        resident: &ResidentTable,
        piece: &[Moved],
    ) -> Result<(), GpuError> {
        let ResidentOptions { gpu, stream, .. } = options;
        let (form, rows) = (&resident.form, piece.len());
        let slots: Vec<u32> = piece.iter().map(|moved| moved.slot).collect();
        self.pinned_slots.write(0, &slots)?;
        let to = self.device_slots.memory().part(0, 4 * rows)?;
        gpu.copy_in(*stream, to, &self.pinned_slots, 0)?;
        // A row is copied as if all of its words were weights of single precision.
        let stored = StoredRows {
            slab: resident.slab.address(),
            stride: form.stride as u32,
            width: form.stride as u32,
            ..StoredRows::default()
        };
        let parameters = PullRows {
            rows: [stored; 2],
            slots: self.device_slots.address(),
            out: self.device.address(),
            count: Count::fixed(rows as u32),
            out_stride: form.stride as u32,
            dtype: TableRules::F32,
            ..PullRows::default()
        };
        let launched = (parameters.geometry(), &parameters);
        launch(&**gpu, *stream, &PULL_ROWS, launched, rows as u32)?;
        let from = self.device.memory().part(0, rows * form.row_bytes())?;
        gpu.copy_out(*stream, &self.pinned, 0, from)?;
        gpu.synchronize(*stream)?;
        self.words.resize(rows * form.stride, 0);
        self.pinned.read(0, &mut self.words)
    }

    fn rows_of_a_piece(&self, form: &RowForm) -> usize {
        let rows = self.pinned.bytes() / form.row_bytes();
        rows.min(self.pinned_slots.bytes() / size_of::<u32>()).max(1)
    }
}

/// Adds the words of a row of the host to `words`, as they are on a device.
pub(super) fn gather(slabs: &RowSlabs, row: u32, form: &RowForm, words: &mut Vec<u32>) {
    words.extend_from_slice(&slabs.weights.words(row)[..form.state]);
    words.extend_from_slice(&slabs.companion.row(row)[..form.state_width]);
    words.resize(words.len().next_multiple_of(form.stride), 0);
}

/// Writes the weights and the optimizer state of a row of the host.
pub(super) fn write(slabs: &mut RowSlabs, row: u32, form: &RowForm, words: &[u32]) {
    let RowSlabs { weights, companion, .. } = slabs;
    let (own, state) = words.split_at(form.state);
    let to = weights.words_mut(row);
    to[..form.state].copy_from_slice(own);
    if form.dtype != TableRules::F32 && form.width % 2 == 1 {
        // The second half of the last word is padding.
        to[form.state - 1] &= 0xffff;
    }
    let state = floats(&state[..form.state_width]);
    zillion_rows::row::floats_mut(&mut companion.row_mut(row)[..form.state_width])
        .copy_from_slice(state);
}
