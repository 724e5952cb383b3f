//! The moves of rows between the host and a cache on a device, on a stream of their own.
//!
//! A move takes dirty rows to the host and brings others to the device. Both go through memory in
//! which rows lie side by side: the host gathers rows in pinned memory, one copy takes them to the
//! device, and a launch puts them in their slots. Dirty rows go the opposite way.
//!
//! # Concurrency
//! A move waits for the steps before the present one, and runs beside the present one. The cache
//! gives it only slots that the present step does not use. A step waits on the device for the moves
//! of its rows. All moves are on one stream, so the memory on the device is that of one move;
//! pinned memory is used in turn.

use std::collections::VecDeque;

use zillion_device::gpu::kernels::{
    Count, GROW_ROWS, GrowRows, NarrowPart, StoredRows, TableRules,
};
use zillion_device::gpu::{GpuError, Pinned, Stream};

use crate::error::Result;
use crate::resident::cache::Cleaned;
use crate::resident::copies::write;
use crate::resident::device::{Owned, OwnedEvent, OwnedStream, ResidentOptions, launch};
use crate::resident::table::ResidentTable;
use crate::set::TableSet;

/// The number of pieces of moves that may be on their way.
const AHEAD: usize = 16;
/// The largest number of bytes of rows of a piece. A larger move is cut.
const MOST_BYTES: usize = 16 << 20;
/// The smallest number of bytes for which a piece has memory.
const LEAST_BYTES: usize = 1 << 12;
/// The smallest number of bytes of a row on a device.
const LEAST_ROW: usize = 16;

/// The rows of one table that a move takes.
#[derive(Debug, Default)]
pub(super) struct TableMove {
    /// The places of the rows that come to the device.
    pub(super) places: Vec<u32>,
    /// The words of these rows.
    pub(super) words: Vec<u32>,
    /// The dirty rows that are copied to the host: their shard and their place.
    pub(super) cleaned: Vec<(usize, u32, Cleaned)>,
}

impl TableMove {
    /// Removes all rows, and keeps the memory of the lists.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.words.clear();
        self.cleaned.clear();
    }
}

/// The memory of moves, and the moves that are on their way.
#[derive(Debug)]
pub(super) struct Moves {
    device_in: Owned,
    device_out: Owned,
    /// The numbers from zero on, as the places of rows that lie side by side.
    counting: Owned,
    /// The part that is a whole row, for each table.
    whole: Owned,
    ring: Vec<Piece>,
    next: usize,
    flights: VecDeque<Flight>,
    /// The largest number of bytes of rows of a piece, in each direction.
    bytes: usize,
    /// The number of the newest move.
    sent: u32,
    /// The number of the newest move that has run, as far as the host knows.
    pub(super) landed: u32,
    /// The event behind the steps before the present one.
    before: OwnedEvent,
    options: ResidentOptions,
    /// The stream of the moves, which is freed last.
    _stream: OwnedStream,
}

/// The pinned memory of a piece, and the event behind its copies.
#[derive(Debug)]
struct Piece {
    rows_in: Pinned,
    rows_out: Pinned,
    done: OwnedEvent,
}

/// A piece on its way.
#[derive(Debug)]
struct Flight {
    piece: usize,
    number: u32,
    /// Whether the piece is the last one of its move.
    is_last: bool,
    /// The dirty rows: their table, their shard, and the offset of their bytes.
    cleaned: Vec<(usize, usize, usize, Cleaned)>,
}

/// The rows of one table in a piece.
#[derive(Debug)]
struct Part {
    table: usize,
    /// The rows of the table's move that come to the device: the first one and their number.
    ins: (usize, usize),
    /// The dirty rows, likewise.
    outs: (usize, usize),
}

impl Moves {
    /// Allocates memory for pieces of at most `bytes` bytes of rows of these tables.
    pub(super) fn new(
        options: &ResidentOptions,
        tables: &[ResidentTable],
        bytes: usize,
    ) -> Result<Self, GpuError> {
        let stream = OwnedStream::new(options)?;
        let own = ResidentOptions { stream: stream.handle(), ..options.clone() };
        let longest = tables.iter().map(|table| table.form.row_bytes()).max().unwrap_or(0);
        let bytes = bytes.clamp(LEAST_BYTES, MOST_BYTES).max(longest).next_multiple_of(LEAST_ROW);
        let most_rows = bytes / LEAST_ROW;
        let with_lists = bytes + 2 * most_rows * size_of::<u32>() + LEAST_ROW;
        let piece = |_| {
            Ok(Piece {
                rows_in: own.gpu.allocate_pinned(with_lists)?,
                rows_out: own.gpu.allocate_pinned(bytes)?,
                done: OwnedEvent::new(&own)?,
            })
        };
        let counting: Vec<u32> = (0..most_rows as u32).collect();
        let whole = tables.iter().map(|table| NarrowPart {
            from: 0,
            to: 0,
            n: table.form.stride as u32,
            unused: 0,
        });
        Ok(Self {
            before: OwnedEvent::new(options)?,
            device_in: Owned::new(&own, with_lists)?,
            device_out: Owned::new(&own, bytes)?,
            counting: Owned::with(&own, &counting)?,
            whole: Owned::with(&own, &whole.collect::<Vec<_>>())?,
            ring: (0..AHEAD).map(piece).collect::<Result<_, GpuError>>()?,
            next: 0,
            flights: VecDeque::new(),
            bytes,
            sent: 0,
            landed: 0,
            options: own,
            _stream: stream,
        })
    }

    /// Returns the bytes of the device's memory that moves take.
    pub(super) fn device_bytes(&self) -> usize {
        let lists = self.counting.bytes() + self.whole.bytes();
        self.device_in.bytes() + self.device_out.bytes() + lists
    }

    /// Returns the number of the next move.
    pub(super) fn next_number(&self) -> u32 {
        self.sent + 1
    }

    /// Notes that all steps before the present one are on their stream.
    pub(super) fn begin_step(&self, steps: Stream) -> Result<(), GpuError> {
        self.options.gpu.record(self.before.handle(), steps)
    }

    /// Lets a stream wait on the device for a move.
    pub(super) fn let_wait(&self, steps: Stream, number: u32) -> Result<(), GpuError> {
        match self.flights.iter().rfind(|flight| flight.number <= number) {
            Some(flight) if number > self.landed => {
                self.options.gpu.wait(steps, self.ring[flight.piece].done.handle())
            }
            _ => Ok(()),
        }
    }

    /// Enqueues a move, which has one entry for each table. Returns its number and whether the host
    /// has waited for an earlier move.
    pub(super) fn send(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        work: &[TableMove],
    ) -> Result<(u32, bool)> {
        let pieces = self.cut(resident, work);
        let number = self.next_number();
        if pieces.is_empty() {
            return Ok((self.sent, false));
        }
        self.sent = number;
        let mut waited = false;
        self.options.gpu.wait(self.options.stream, self.before.handle())?;
        for (at, parts) in pieces.iter().enumerate() {
            if self.flights.len() == AHEAD {
                waited = true;
                self.land_oldest(tables, resident)?;
            }
            self.send_piece(resident, work, parts, (number, at + 1 == pieces.len()))?;
        }
        Ok((number, waited))
    }

    /// Cuts a move into pieces.
    fn cut(&self, resident: &[ResidentTable], work: &[TableMove]) -> Vec<Vec<Part>> {
        let (mut pieces, mut parts) = (Vec::new(), Vec::new());
        let (mut left_in, mut left_out) = (self.bytes, self.bytes);
        for (table, work) in work.iter().enumerate() {
            let row = resident[table].form.row_bytes();
            let (mut ins, mut outs) = (0, 0);
            while ins < work.places.len() || outs < work.cleaned.len() {
                let count_in = (work.places.len() - ins).min(left_in / row);
                let count_out = (work.cleaned.len() - outs).min(left_out / row);
                if count_in + count_out == 0 {
                    pieces.push(std::mem::take(&mut parts));
                    (left_in, left_out) = (self.bytes, self.bytes);
                    continue;
                }
                parts.push(Part { table, ins: (ins, count_in), outs: (outs, count_out) });
                left_in -= count_in * row;
                left_out -= count_out * row;
                ins += count_in;
                outs += count_out;
            }
        }
        if !parts.is_empty() {
            pieces.push(parts);
        }
        pieces
    }

    fn send_piece(
        &mut self,
        resident: &[ResidentTable],
        work: &[TableMove],
        parts: &[Part],
        (number, is_last): (u32, bool),
    ) -> Result<(), GpuError> {
        let at = self.next;
        self.next = (at + 1) % AHEAD;
        let (gpu, stream) = (&*self.options.gpu, self.options.stream);
        let piece = &mut self.ring[at];
        // The lists come first: the places of the rows that come, then those of dirty rows.
        let count_in: usize = parts.iter().map(|part| part.ins.1).sum();
        let count_out: usize = parts.iter().map(|part| part.outs.1).sum();
        let rows_at = ((count_in + count_out) * size_of::<u32>()).next_multiple_of(LEAST_ROW);
        let (mut in_list, mut out_list) = (0, count_in * size_of::<u32>());
        let (mut in_bytes, mut out_bytes) = (rows_at, 0);
        let mut cleaned = Vec::with_capacity(count_out);
        let mut launches = Vec::new();
        for &Part { table, ins: (first, ins), outs: (first_out, outs) } in parts {
            let (form, work) = (&resident[table].form, &work[table]);
            let stride = form.stride;
            let places = &work.places[first..first + ins];
            piece.rows_in.write(in_list, places)?;
            piece.rows_in.write(in_bytes, &work.words[first * stride..(first + ins) * stride])?;
            let dirty = &work.cleaned[first_out..first_out + outs];
            let of_dirty: Vec<u32> = dirty.iter().map(|(_, place, _)| *place).collect();
            piece.rows_in.write(out_list, &of_dirty)?;
            launches.push((table, (ins, in_list, in_bytes), (outs, out_list, out_bytes)));
            let offset = |i: usize| out_bytes + i * form.row_bytes();
            let listed = dirty.iter().enumerate();
            cleaned.extend(listed.map(|(i, (shard, _, row))| (table, *shard, offset(i), *row)));
            in_list += ins * size_of::<u32>();
            out_list += outs * size_of::<u32>();
            in_bytes += ins * form.row_bytes();
            out_bytes += outs * form.row_bytes();
        }
        gpu.copy_in(stream, self.device_in.memory().part(0, in_bytes)?, &piece.rows_in, 0)?;
        let [device_in, device_out] = [&self.device_in, &self.device_out].map(Owned::address);
        for &(table, _, (rows, list, bytes)) in &launches {
            let slab = resident[table].slab.address();
            let to = (device_out + bytes as u64, self.counting.address());
            self.copy_rows(&resident[table], table, rows, (slab, device_in + list as u64), to)?;
        }
        if out_bytes > 0 {
            let from = self.device_out.memory().part(0, out_bytes)?;
            gpu.copy_out(stream, &self.ring[at].rows_out, 0, from)?;
        }
        for &(table, (rows, list, bytes), _) in &launches {
            let slab = resident[table].slab.address();
            let from = (device_in + bytes as u64, self.counting.address());
            self.copy_rows(&resident[table], table, rows, from, (slab, device_in + list as u64))?;
        }
        gpu.record(self.ring[at].done.handle(), stream)?;
        self.flights.push_back(Flight { piece: at, number, is_last, cleaned });
        Ok(())
    }

    /// Enqueues the copies of whole rows. `from` and `to` are the address of the rows and that of
    /// the list of their places.
    fn copy_rows(
        &self,
        resident: &ResidentTable,
        table: usize,
        rows: usize,
        from: (u64, u64),
        to: (u64, u64),
    ) -> Result<(), GpuError> {
        if rows == 0 {
            return Ok(());
        }
        let stride = resident.form.stride as u32;
        let stored = |slab| StoredRows { slab, stride, width: stride, ..StoredRows::default() };
        // The kernel of rows that grow copies parts of rows; here, the part is the whole row.
        let parameters = GrowRows {
            rows: [stored(to.0), stored(from.0)],
            from: from.1,
            to: to.1,
            weights: self.whole.address() + (table * size_of::<NarrowPart>()) as u64,
            states: 0,
            count: Count::fixed(rows as u32),
            weight_parts: 1,
            state_parts: 0,
            dtype: TableRules::F32,
            unused: 0,
        };
        let launched = (parameters.geometry(), &parameters);
        launch(&*self.options.gpu, self.options.stream, &GROW_ROWS, launched, rows as u32)
    }

    /// Writes the dirty rows of the moves that have run to the host. Waits for the moves up to
    /// number `until`, if it is given. Returns whether the host has waited.
    pub(super) fn land(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        until: Option<u32>,
    ) -> Result<bool> {
        let mut waited = false;
        while let Some(flight) = self.flights.front() {
            if !self.options.gpu.is_done(self.ring[flight.piece].done.handle())? {
                if until.is_none_or(|until| self.landed >= until) {
                    break;
                }
                waited = true;
            }
            self.land_oldest(tables, resident)?;
        }
        Ok(waited)
    }

    /// Waits for all moves.
    pub(super) fn land_all(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
    ) -> Result<()> {
        self.land(tables, resident, Some(self.sent)).map(|_| ())
    }

    fn land_oldest(&mut self, tables: &mut TableSet, resident: &mut [ResidentTable]) -> Result<()> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let piece = &self.ring[flight.piece];
        if !self.options.gpu.is_done(piece.done.handle())? {
            self.options.gpu.synchronize_event(piece.done.handle())?;
        }
        let mut words = Vec::new();
        for (table, shard, offset, row) in flight.cleaned {
            let ResidentTable { form, places, .. } = &mut resident[table];
            let Some(cache) = places[shard].cache() else { continue };
            if cache.land(row) {
                words.resize(form.stride, 0);
                piece.rows_out.read(offset, &mut words)?;
                let slabs = &mut tables.shards[shard].tables[table].slabs;
                write(slabs, row.row, form, &words);
            }
        }
        if flight.is_last {
            self.landed = flight.number;
        }
        Ok(())
    }
}
