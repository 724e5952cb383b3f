//! The windows of an epoch. The pool decodes the next window while the current one is used.
//!
//! # Concurrency
//! At most one task decodes in advance. The task owns the feed and returns it together with its
//! window. The task also spawns decoding tasks on the pool, so it must not outlive [`Windows`]:
//! when `Windows` is dropped, it tells the task to stop and waits for it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_device::{Task, Workers};

use crate::block::Piece;
use crate::error::{ReaderError, Result};
use crate::feed::Feed;
use crate::groups::{find_groups, group_keys};
use crate::order::Order;
use crate::permute::permute;
use crate::reading::Reading;

/// The rows of one window, in the order in which batches take them.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) pieces: VecDeque<Piece>,
    /// The number of rows that batches have not taken yet.
    pub(crate) rows: usize,
    /// The position of the window's first row in the order of the epoch.
    start: u64,
    /// The number of positions that the window covers, including rows that were left out.
    span: usize,
    /// The position in the window of each row, or `None` if no row was left out.
    places: Option<Vec<u32>>,
    /// The positions in the window of the rows that were left out as bad, ascending.
    rejected: Vec<u32>,
    /// The number of rows that batches have taken.
    taken: usize,
}

/// The windows of one epoch.
pub(crate) struct Windows {
    workers: Arc<Workers>,
    order: Order,
    window_rows: usize,
    /// The index of the next window. `start` is the position of its first row in the order of the
    /// epoch.
    next: u64,
    start: u64,
    /// The number of positions at the beginning of the first window that an earlier run has already
    /// used.
    taken_before: usize,
    feed: Option<Feed>,
    ahead: Option<Task<(Feed, Result<Window>)>>,
    reads_ahead: bool,
    cancelled: Arc<AtomicBool>,
    /// The index of the column of groups, if groups stay whole.
    groups: Option<usize>,
}

impl Windows {
    /// Returns the windows from position `row` of the order on. `groups` is the index of the column
    /// of groups, if groups stay whole.
    pub(crate) fn new(
        reading: Arc<Reading>,
        workers: Arc<Workers>,
        order: Order,
        window_rows: usize,
        row: u64,
        groups: Option<usize>,
    ) -> Self {
        let cancelled = Arc::new(AtomicBool::new(false));
        // If rows are not permuted, a window can start at any row.
        let taken_before = if order.shuffle { (row % window_rows as u64) as usize } else { 0 };
        // A group may go over the end of a unit.
        let of_units = Order { shuffle: order.shuffle && groups.is_none(), ..order };
        let units = of_units.units(reading.units.len());
        // A thread of the pool must not wait for a stream that may return no bytes for a long time.
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
            start: row - taken_before as u64,
            taken_before,
            feed,
            ahead: None,
            reads_ahead,
            cancelled,
            groups,
        };
        windows.read_ahead();
        windows
    }

    /// Returns the next window when it is decoded. Returns `None` at the end and after an error.
    pub(crate) fn next_window(&mut self) -> Result<Option<Window>> {
        let (feed, window) = match (self.ahead.take(), self.feed.take()) {
            (Some(task), _) => task.join(),
            (None, Some(feed)) => self.filler()(feed),
            (None, None) => return Ok(None),
        };
        let mut window = window?;
        if window.span == self.window_rows {
            self.feed = Some(feed);
        }
        self.next += 1;
        self.start += window.span as u64;
        let taken_before = std::mem::take(&mut self.taken_before);
        if taken_before > window.span {
            return Err(ReaderError::BeyondEnd {
                row: window.start + taken_before as u64,
                rows: self.start,
            });
        }
        window.pass_over(taken_before);
        Ok((window.span > 0).then_some(window))
    }

    /// Returns the position after the last returned window, in the order of the epoch.
    pub(crate) fn end(&self) -> u64 {
        self.start
    }

    /// Starts to decode the next window in the background. Does nothing if there is no next window
    /// or if its decoding has already started.
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
        let (start, groups) = (self.start, self.groups);
        let workers = self.workers.clone();
        move |mut feed| {
            let window = feed.fill(rows).and_then(|pieces| {
                let span = pieces.iter().map(|piece| piece.span).sum();
                let rows = pieces.iter().map(|piece| piece.rows).sum();
                let (mut places, mut rejected) = left_out(&pieces, rows, span);
                let order = match groups {
                    None => order.window(number, span),
                    Some(column) => {
                        let begins = find_groups(&pieces, column, places.as_deref(), start)?;
                        order.window_of_groups(number, &begins, span)
                    }
                };
                let pieces = match order {
                    Some(mut order) => {
                        if places.is_some() {
                            (places, rejected) = reorder(places, rejected, &mut order);
                        }
                        vec![permute(pieces, &order, &workers)?]
                    }
                    None => pieces,
                };
                let pieces = pieces.into();
                Ok(Window { pieces, rows, start, span, places, rejected, taken: 0 })
            });
            (feed, window)
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(task) = self.ahead.take() {
            // A panic of the task cannot be reported here any more.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task.join())));
        }
    }
}

/// Returns the positions in the window of the rows that the pieces hold, and those of the rows that
/// were left out as bad. The positions follow the file order. The first result is `None` if no row
/// was left out.
fn left_out(pieces: &[Piece], rows: usize, span: usize) -> (Option<Vec<u32>>, Vec<u32>) {
    if rows == span {
        return (None, Vec::new());
    }
    let (mut places, mut rejected) = (Vec::with_capacity(rows), Vec::new());
    let mut start = 0;
    for piece in pieces {
        match piece.kept() {
            Some(kept) => places.extend(kept.map(|at| (start + at) as u32)),
            None => places.extend((start..start + piece.span).map(|at| at as u32)),
        }
        rejected.extend(piece.rejected().map(|at| (start + at) as u32));
        start += piece.span;
    }
    (Some(places), rejected)
}

/// Translates the result of [`left_out`] from file order to `order`. Each row keeps the position
/// that it has in `order`, even if other rows are left out. Afterwards, `order` lists only the rows
/// that the pieces hold, by their indices in the pieces.
fn reorder(
    places: Option<Vec<u32>>,
    rejected: Vec<u32>,
    order: &mut Vec<u32>,
) -> (Option<Vec<u32>>, Vec<u32>) {
    const NOT_DRAWN: u32 = u32::MAX;
    const BAD: u32 = u32::MAX - 1;
    let mut numbers = vec![NOT_DRAWN; order.len()];
    for (number, place) in (0..).zip(places.into_iter().flatten()) {
        numbers[place as usize] = number;
    }
    for place in rejected {
        numbers[place as usize] = BAD;
    }
    let (mut places, mut rejected, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for (place, &row) in (0..).zip(order.iter()) {
        match numbers[row as usize] {
            NOT_DRAWN => {}
            BAD => rejected.push(place),
            number => {
                places.push(place);
                kept.push(number);
            }
        }
    }
    *order = kept;
    (Some(places), rejected)
}

impl Window {
    /// Appends the keys of the groups of the next rows, at most `rows`, to `keys`.
    pub(crate) fn copy_group_keys(&self, column: usize, rows: usize, keys: &mut Vec<u64>) {
        let all = self.pieces.iter().flat_map(|piece| group_keys(piece, column));
        keys.extend(all.take(rows));
    }

    /// Skips the first `span` positions of the window, including rows that are left out.
    fn pass_over(&mut self, span: usize) {
        let rows = match &self.places {
            Some(places) => places.partition_point(|&at| (at as usize) < span),
            None => span,
        };
        self.take(rows, &mut Vec::new());
        self.rejected.retain(|&at| at as usize >= span);
    }

    /// Returns the position after the last row that was taken, in the order of the epoch. Returns
    /// `None` if no row was taken.
    pub(crate) fn position(&self) -> Option<u64> {
        let last = self.taken.checked_sub(1)?;
        let place = self.places.as_ref().map_or(last, |places| places[last] as usize);
        Some(self.start + place as u64 + 1)
    }

    /// Returns the positions of the bad rows that were left out, in the order of the epoch and
    /// ascending. Skipped rows are not included.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = u64> {
        self.rejected.iter().map(|&at| self.start + u64::from(at))
    }

    /// Moves the next rows of the window, at most `rows`, to `taken`.
    pub(crate) fn take(&mut self, rows: usize, taken: &mut Vec<Piece>) {
        let mut left = rows.min(self.rows);
        self.rows -= left;
        self.taken += left;
        while left > 0 {
            // `rows` is the sum of the rows of the pieces, so there is a piece.
            let Some(piece) = self.pieces.front_mut() else { break };
            if piece.rows <= left {
                left -= piece.rows;
                taken.extend(self.pieces.pop_front());
            } else {
                taken.push(Piece { rows: left, ..piece.clone() });
                piece.start += left;
                piece.rows -= left;
                left = 0;
            }
        }
    }
}
