//! The feed, which decodes units on the pool ahead of their use and returns the rows in order.
//!
//! # Invariants
//! * The feed returns the rows of the units in the order of the units. Neither the number of
//!   threads nor the division into tasks changes them.
//! * The feed reports the first error in the order of the rows.
//! * Memory is bounded: the decoded rows are at most one window and [`Feed::in_flight`] chunks of
//!   text.
//!
//! # Concurrency
//! A feed belongs to one thread at a time. The feed spawns tasks that own their data, and joins
//! them in the order of their rows. A join runs tasks that have not started, so one thread is
//! enough.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_device::{Task, Workers};

use crate::arrays::{Decoded, Part, Start};
use crate::block::{Block, Piece};
use crate::error::{Near, Place, ReaderError, Result};
use crate::reading::Reading;
use crate::source::{FilePlan, Unit};
use crate::text::{BadRow, Chunk, Chunks, Problem, TextBlock, TextPlan};

/// The minimum number of rows of a row group that several parts decode in parallel.
const LARGE_GROUP: u64 = 32_768;

/// The minimum number of fields that a part decodes.
const FIELDS_OF_A_PART: usize = 4;

/// The number of row groups that are read ahead from a bucket. The limit on the bytes in memory is
/// usually reached first.
const UNITS_AHEAD: usize = 4;

/// A reader of the rows of the units in a given order.
pub(crate) struct Feed {
    reading: Arc<Reading>,
    workers: Arc<Workers>,
    /// Whether the reading was cancelled because the caller needs no more rows.
    cancelled: Arc<AtomicBool>,
    order: Vec<u32>,
    /// The position in `order` of the next unit to open.
    next_unit: usize,
    open: Option<Open>,
    /// Whether a task decodes a piece of a row group that is not the last piece of the group. The
    /// task holds the decoders of the group until it ends, so the next piece must wait for it.
    awaiting: bool,
    flight: VecDeque<Flight>,
    /// The decoded rows that come after the last returned window.
    spill: VecDeque<Piece>,
    /// An error that is reported after all tasks that were spawned before it have been joined.
    /// `None` if there was no error.
    failed: Option<ReaderError>,
    /// The number of rows that have been joined of the oldest text file in flight.
    rows_of_file: u64,
    /// The number of rows of the open text file for which decoding tasks have been spawned. It is
    /// counted only if the sampling needs the number of each row.
    launched: u64,
    /// The number of rows to skip before the first window.
    skip: u64,
}

/// A unit that is open and has been read in part.
enum Open {
    RowGroup { unit: usize, row: u64, parts: Vec<Part> },
    Text { unit: usize, plan: Arc<TextPlan>, chunks: Chunks },
}

/// The tasks that decode one piece of a unit.
enum Flight {
    RowGroup {
        unit: usize,
        end: u64,
        rows: usize,
        tasks: Vec<PartTask>,
    },
    Text {
        unit: usize,
        starts_file: bool,
        skipped: usize,
        task: Task<std::result::Result<TextBlock, BadRow>>,
    },
}

type PartTask = Task<(Result<Decoded>, Option<Part>)>;

impl Feed {
    /// Returns a feed of the units in `order` that skips the first `skip` rows.
    pub(crate) fn new(
        reading: Arc<Reading>,
        workers: Arc<Workers>,
        cancelled: Arc<AtomicBool>,
        order: Vec<u32>,
        skip: u64,
    ) -> Self {
        Self {
            reading,
            workers,
            cancelled,
            order,
            next_unit: 0,
            open: None,
            awaiting: false,
            flight: VecDeque::new(),
            spill: VecDeque::new(),
            failed: None,
            rows_of_file: 0,
            launched: 0,
            skip,
        }
    }

    /// Decodes and returns the next `rows` rows of the data, or fewer at the end of the data. The
    /// number includes rows that are left out.
    pub(crate) fn fill(&mut self, rows: usize) -> Result<Vec<Piece>> {
        let skip = std::mem::take(&mut self.skip);
        if skip > 0 {
            self.pass_over(skip)?;
        }
        let mut pieces = Vec::new();
        let mut have = 0;
        while have < rows && !self.cancelled.load(Ordering::Relaxed) {
            let piece = match self.spill.pop_front() {
                Some(piece) => piece,
                None => {
                    self.launch(rows - have);
                    match self.flight.pop_front() {
                        Some(flight) => self.land(flight)?,
                        None => match self.failed.take() {
                            Some(error) => return Err(error),
                            None => break,
                        },
                    }
                }
            };
            let taken = piece.span.min(rows - have);
            let piece = if taken < piece.span {
                let (piece, rest) = piece.split(taken);
                self.spill.push_front(rest);
                piece
            } else {
                piece
            };
            if taken > 0 {
                pieces.push(piece);
            }
            have += taken;
        }
        Ok(pieces)
    }

    /// Returns the maximum number of flights at a time.
    fn in_flight(&self) -> usize {
        2 * self.workers.threads()
    }

    /// Spawns tasks until about `wanted` rows are in flight, or until the limit of flights is
    /// reached. Rows of text are not counted here, because their number is not known yet.
    fn launch(&mut self, wanted: usize) {
        let planned = self.flight.iter().map(|flight| match flight {
            Flight::RowGroup { rows, .. } => *rows,
            Flight::Text { .. } => 0,
        });
        let mut wanted = wanted.saturating_sub(planned.sum());
        while wanted > 0
            && !self.awaiting
            && self.failed.is_none()
            && self.flight.len() < self.in_flight()
        {
            match self.launch_one(wanted) {
                Ok(Some(rows)) => wanted = wanted.saturating_sub(rows),
                Ok(None) => break,
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Spawns the tasks of one more flight of at most `wanted` rows. Returns the number of its
    /// rows, 0 if this number is not known yet, or `None` if there are no more rows.
    fn launch_one(&mut self, wanted: usize) -> Result<Option<usize>> {
        loop {
            match self.open.take() {
                Some(Open::RowGroup { unit, row, parts }) => {
                    return Ok(Some(self.launch_parts(unit, row, parts, wanted)));
                }
                Some(Open::Text { unit, plan, mut chunks }) => {
                    let starts_file = chunks.is_at_first_row();
                    let Some(chunk) = chunks.next_chunk()? else { continue };
                    self.launch_chunk(unit, &plan, chunk, starts_file, 0);
                    self.open = Some(Open::Text { unit, plan, chunks });
                    return Ok(Some(0));
                }
                None => {
                    let Some(&unit) = self.order.get(self.next_unit) else { return Ok(None) };
                    self.next_unit += 1;
                    self.open = Some(self.open_unit(unit as usize, 0)?);
                    self.read_ahead();
                }
            }
        }
    }

    /// Begins to read the row groups after the current unit, if they lie in a bucket.
    fn read_ahead(&self) {
        let next = self.order.iter().skip(self.next_unit).take(UNITS_AHEAD);
        for &unit in next {
            let Unit { file, group, .. } = self.reading.units[unit as usize];
            if let FilePlan::Groups(plan) = &self.reading.plans[file] {
                plan.source.read_ahead(group, &plan.columns);
            }
        }
    }

    /// Opens a unit at row `row`. A text file is always opened at its beginning.
    fn open_unit(&self, unit: usize, row: u64) -> Result<Open> {
        let reading = &self.reading;
        let Unit { file, group, rows_before, rows } = reading.units[unit];
        match &reading.plans[file] {
            FilePlan::Groups(plan) => {
                let count = self.parts(rows);
                reading.counts.add_bytes(plan.source.bytes(group, &plan.columns));
                let bound = |part: usize| part * reading.fields.len() / count;
                let start = Start { group, rows_before, row };
                let path = reading.files[file].path();
                let parts = (0..count)
                    .map(|p| {
                        let fields = bound(p)..bound(p + 1);
                        let fields = (reading.fields.as_slice(), fields);
                        let picker = reading.pickers[file];
                        Part::open(path, plan, fields, start, reading.rules.clone(), picker)
                    })
                    .collect::<Result<_>>()?;
                Ok(Open::RowGroup { unit, row, parts })
            }
            FilePlan::Text(plan) => {
                Ok(Open::Text { unit, plan: plan.clone(), chunks: plan.file.chunks()? })
            }
        }
    }

    /// Returns the number of parts that decode a row group of `rows` rows in parallel.
    fn parts(&self, rows: u64) -> usize {
        let most = self.reading.fields.len() / FIELDS_OF_A_PART;
        if rows < LARGE_GROUP { 1 } else { self.workers.threads().min(most).max(1) }
    }

    fn launch_parts(&mut self, unit: usize, row: u64, parts: Vec<Part>, wanted: usize) -> usize {
        let all = self.reading.units[unit].rows;
        let rows = usize::try_from(all - row).unwrap_or(usize::MAX).min(wanted);
        let end = row + rows as u64;
        let more = end < all;
        let spawn = |mut part: Part| {
            let reading = self.reading.clone();
            self.workers.spawn(move || {
                let decoded = part.decode(rows, &reading.fields);
                (decoded, more.then_some(part))
            })
        };
        let tasks = parts.into_iter().map(spawn).collect();
        self.flight.push_back(Flight::RowGroup { unit, end, rows, tasks });
        self.awaiting = more;
        rows
    }

    fn launch_chunk(
        &mut self,
        unit: usize,
        plan: &Arc<TextPlan>,
        chunk: Chunk,
        starts_file: bool,
        skip: usize,
    ) {
        let reading = self.reading.clone();
        let file = reading.units[unit].file;
        reading.counts.add_bytes(chunk.bytes.len() as u64);
        if starts_file {
            self.launched = 0;
        }
        let first = self.launched;
        if reading.pickers[file].thins() {
            self.launched += plan.count_rows(&chunk) as u64;
        }
        let plan = plan.clone();
        let task = self.workers.spawn(move || {
            plan.decode(&chunk, &reading.fields, skip, first, &reading.pickers[file])
        });
        self.flight.push_back(Flight::Text { unit, starts_file, skipped: skip, task });
    }

    fn land(&mut self, flight: Flight) -> Result<Piece> {
        let block = match flight {
            Flight::RowGroup { unit, end, rows, tasks } => {
                let mut decoded = Decoded::default();
                let mut parts = Vec::with_capacity(tasks.len());
                let mut errors = Vec::new();
                for task in tasks {
                    let (columns, part) = task.join();
                    parts.extend(part);
                    match columns {
                        Ok(columns) => decoded.append_columns(columns),
                        Err(error) => errors.push(error),
                    }
                }
                if let Some(error) = errors.into_iter().min_by_key(row_of_error) {
                    return Err(error);
                }
                if !parts.is_empty() {
                    self.open = Some(Open::RowGroup { unit, row: end, parts });
                    self.awaiting = false;
                }
                debug_assert_eq!(decoded.kept.span, rows, "parts decode what was asked for");
                self.without_bad(self.reading.units[unit].file, decoded)?
            }
            Flight::Text { unit, starts_file, skipped, task } => {
                if starts_file {
                    self.rows_of_file = 0;
                }
                let TextBlock { block, bad } =
                    task.join().map_err(|bad| self.explain(unit, &bad))?;
                let file = self.reading.units[unit].file;
                for bad in &bad {
                    self.reading.reject(file, &self.explain(unit, bad), Some(&bad.line));
                }
                self.refuse_many(bad.len())?;
                self.rows_of_file += (skipped + block.span) as u64;
                block
            }
        };
        Ok(Piece::whole(block))
    }

    /// Returns a decoded piece of a row group after removing the rows that have a bad value in any
    /// column.
    fn without_bad(&self, file: usize, decoded: Decoded) -> Result<Block> {
        let Decoded { mut columns, mut kept, mut bad } = decoded;
        // If a row has several bad values, the reported value is that of the first column, as in a
        // pass without a limit of bad rows.
        bad.sort_by_key(|bad| bad.row);
        bad.dedup_by_key(|bad| bad.row);
        for bad in &bad {
            self.reading.reject(file, &bad.error, None);
        }
        self.refuse_many(bad.len())?;
        let gone: Vec<u32> = bad.iter().map(|bad| bad.row).collect();
        let rejected = gone.iter().map(|&row| kept.place(row as usize) as u32).collect();
        if !gone.is_empty() {
            columns.iter_mut().for_each(|column| column.as_rows().drop_rows(&gone));
            kept.remove(&gone);
        }
        Ok(Block { rows: kept.rows, columns, span: kept.span, kept: kept.places, rejected })
    }

    /// Returns an error if one block alone has more bad rows than the whole pass may leave out. The
    /// stream that takes the windows counts the bad rows of the whole pass.
    fn refuse_many(&self, bad: usize) -> Result<()> {
        match bad as u64 > self.reading.max_bad() {
            true => Err(self.reading.too_many_bad_rows()),
            false => Ok(()),
        }
    }

    fn explain(&self, unit: usize, bad: &BadRow) -> ReaderError {
        let path = self.reading.files[self.reading.units[unit].file].path().to_owned();
        let place = Place { row: self.rows_of_file + bad.row + 1, near: Near::Byte(bad.byte) };
        match &bad.problem {
            &Problem::CellCount { found, expected } => {
                ReaderError::CellCount { place, found, expected, path }
            }
            Problem::OpenQuote => ReaderError::OpenQuote { place, path },
            Problem::Record(problem) => {
                ReaderError::Record { place, problem: problem.clone(), path }
            }
            Problem::Value { field, explanation, .. } => {
                let column = self.reading.fields[*field].column.clone();
                ReaderError::Value { column, place, problem: explanation.clone(), path }
            }
        }
    }

    /// Skips `rows` rows. Row groups are skipped by their metadata; in text files, records are
    /// counted.
    fn pass_over(&mut self, rows: u64) -> Result<()> {
        let mut left = rows;
        while left > 0 {
            if self.cancelled.load(Ordering::Relaxed) {
                return Ok(());
            }
            let Some(&unit) = self.order.get(self.next_unit) else {
                return Err(ReaderError::BeyondEnd { row: rows, rows: rows - left });
            };
            self.next_unit += 1;
            let unit = unit as usize;
            let Unit { file, rows, .. } = self.reading.units[unit];
            match &self.reading.plans[file] {
                FilePlan::Groups(_) if rows <= left => left -= rows,
                FilePlan::Groups(_) => {
                    self.open = Some(self.open_unit(unit, left)?);
                    left = 0;
                }
                FilePlan::Text(plan) => left = self.pass_over_text(unit, plan.clone(), left)?,
            }
        }
        Ok(())
    }

    /// Skips up to `rows` rows of a text file. Returns the number of rows that must still be
    /// skipped in the units after this file.
    fn pass_over_text(&mut self, unit: usize, plan: Arc<TextPlan>, rows: u64) -> Result<u64> {
        let mut chunks = plan.file.chunks()?;
        let mut left = rows;
        self.rows_of_file = 0;
        self.launched = 0;
        while left > 0 && !self.cancelled.load(Ordering::Relaxed) {
            let Some(chunk) = chunks.next_chunk()? else { return Ok(left) };
            let count = plan.count_rows(&chunk) as u64;
            if count > left {
                self.launch_chunk(unit, &plan, chunk, false, left as usize);
                left = 0;
            } else {
                left -= count;
                self.rows_of_file += count;
                self.launched += count;
            }
        }
        self.open = Some(Open::Text { unit, plan, chunks });
        Ok(0)
    }
}

/// Returns the number of the row, counted from 1, that an error of a row group names, or 0 if the
/// error concerns the whole group.
fn row_of_error(error: &ReaderError) -> u64 {
    match error {
        ReaderError::Value { place, .. } => place.row,
        _ => 0,
    }
}
