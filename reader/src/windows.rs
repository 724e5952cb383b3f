//! Windows of rows, one decoded ahead.
//!
//! # Concurrency
//! At most one task runs ahead. It owns the feed and gives it back with its window. The task holds the
//! pool (it spawns decoding tasks), so it must not outlive this struct: dropping waits for it, after
//! telling it to stop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_device::{Task, Workers};

use crate::block::{PickedRows, Picks};
use crate::error::Result;
use crate::feed::{Feed, Piece};
use crate::order::Order;
use crate::reading::Reading;

/// Rows that have been decoded together, in the order in which they are to be taken.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) pieces: Vec<Piece>,
    /// Row of the window at which each piece starts.
    starts: Vec<usize>,
    rows: usize,
    /// Which row comes at which position; `None`: as they stand.
    order: Option<Vec<u32>>,
    taken: usize,
}

/// The windows of one epoch.
pub(crate) struct Windows {
    workers: Arc<Workers>,
    order: Order,
    window_rows: usize,
    /// Number of the next window.
    next: u64,
    /// Rows of the first window that have been taken before.
    taken_before: usize,
    feed: Option<Feed>,
    ahead: Option<Task<(Feed, Result<Window>)>>,
    reads_ahead: bool,
    cancelled: Arc<AtomicBool>,
}

impl Windows {
    /// The windows of `reading` from row `row` of the order on.
    pub(crate) fn new(
        reading: Arc<Reading>,
        workers: Arc<Workers>,
        order: Order,
        window_rows: usize,
        row: u64,
    ) -> Self {
        let cancelled = Arc::new(AtomicBool::new(false));
        // Without a permutation a window can start anywhere.
        let taken_before = if order.shuffle { (row % window_rows as u64) as usize } else { 0 };
        let units = order.units(reading.units.len());
        // A pool thread must not hang on a stream that gives nothing.
        let reads_ahead = !reading.is_stream();
        let skip = row - taken_before as u64;
        let feed = Feed::new(reading, workers.clone(), cancelled.clone(), units, skip);
        let next = row / window_rows as u64;
        let feed = Some(feed);
        let mut windows = Self {
            workers,
            order,
            window_rows,
            next,
            taken_before,
            feed,
            ahead: None,
            reads_ahead,
            cancelled,
        };
        windows.read_ahead();
        windows
    }

    /// The next window, or `None` at the end. After an error there are no more.
    pub(crate) fn next_window(&mut self) -> Result<Option<Window>> {
        let (feed, window) = match (self.ahead.take(), self.feed.take()) {
            (Some(task), _) => task.join(),
            (None, Some(feed)) => self.filler()(feed),
            (None, None) => return Ok(None),
        };
        let mut window = window?;
        if window.rows == self.window_rows {
            self.feed = Some(feed);
        }
        self.next += 1;
        window.taken = std::mem::take(&mut self.taken_before);
        if window.taken > window.rows {
            let start = (self.next - 1) * self.window_rows as u64;
            return Err(crate::ReaderError::BeyondEnd {
                row: start + window.taken as u64,
                rows: start + window.rows as u64,
            });
        }
        Ok((window.rows > 0).then_some(window))
    }

    /// Begins to decode the next window in the background, if there is one and it is not begun.
    pub(crate) fn read_ahead(&mut self) {
        if !self.reads_ahead || self.ahead.is_some() {
            return;
        }
        if let Some(feed) = self.feed.take() {
            let fill = self.filler();
            self.ahead = Some(self.workers.spawn(move || fill(feed)));
        }
    }

    fn filler(&self) -> impl FnOnce(Feed) -> (Feed, Result<Window>) + Send + 'static {
        let (order, number, rows) = (self.order, self.next, self.window_rows);
        move |mut feed| {
            let window = feed.fill(rows).map(|pieces| Window::new(pieces, order, number));
            (feed, window)
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(task) = self.ahead.take() {
            // A panic of the task has nobody to go to any more.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task.join())));
        }
    }
}

impl Window {
    fn new(pieces: Vec<Piece>, order: Order, number: u64) -> Self {
        let mut rows = 0;
        let starts = pieces
            .iter()
            .map(|piece| {
                rows += piece.rows;
                rows - piece.rows
            })
            .collect();
        Self { pieces, starts, rows, order: order.window(number, rows), taken: 0 }
    }

    /// Whether every row has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.rows
    }

    /// Takes up to `rows` rows.
    pub(crate) fn take(&mut self, rows: usize, picks: &mut Picks) {
        let range = self.taken..self.rows.min(self.taken + rows);
        self.taken = range.end;
        let first_block = picks.blocks.len();
        picks.blocks.extend(self.pieces.iter().map(|piece| piece.block.clone()));
        match (&self.order, &mut picks.rows) {
            (Some(order), PickedRows::Single(picked)) => {
                picked.extend(order[range].iter().map(|&row| {
                    let row = row as usize;
                    let piece = self.starts.partition_point(|&start| start <= row) - 1;
                    let in_block = row - self.starts[piece] + self.pieces[piece].start;
                    ((first_block + piece) as u32, in_block as u32)
                }));
            }
            (_, PickedRows::Runs(runs)) => {
                for (i, piece) in self.pieces.iter().enumerate() {
                    let start = self.starts[i].max(range.start);
                    let end = (self.starts[i] + piece.rows).min(range.end);
                    if start < end {
                        let shift = piece.start;
                        let run = start - self.starts[i] + shift..end - self.starts[i] + shift;
                        runs.push(((first_block + i) as u32, run));
                    }
                }
            }
            (None, PickedRows::Single(_)) => {
                unreachable!("picks follow the order of their windows")
            }
        }
    }
}
