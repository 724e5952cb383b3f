//! The stream of the batches of an epoch. It can start at any position of the epoch.

use std::collections::VecDeque;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Batch, Cursor};

use crate::assembly::Assembly;
use crate::error::Result;
use crate::groups::count_whole;
use crate::order::Order;
use crate::reading::Reading;
use crate::windows::{Window, Windows};

/// The order of the rows, and their division into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOrder {
    /// The seed of the order.
    pub seed: u64,
    /// Whether rows are shuffled. If not, they keep the order of the files.
    pub shuffle: bool,
    /// The number of rows in a batch. Rows that are left out do not count. Only the last batch of
    /// an epoch may have fewer rows, and each batch of [whole
    /// groups](crate::Dataset::with_whole_groups).
    pub batch_rows: usize,
    /// Whether the last batch is left out if it has fewer rows than the others. It has no effect on
    /// batches of whole groups.
    pub drop_last: bool,
}

/// An iterator over the batches from a cursor to the end of the epoch. Each batch comes with the
/// cursor of the position after it.
///
/// The pool decodes the next window in advance. `next` waits for the current window if this window
/// is not decoded yet, and then returns a batch of its rows. The stream ends after an error. The
/// stream is [`Send`], so a task can prepare the next batch in advance too.
pub struct BatchStream {
    reading: Arc<Reading>,
    assembly: Assembly,
    windows: Windows,
    /// The windows from which batches take their rows. Only batches of whole groups look at the
    /// rows of more than one.
    ready: VecDeque<Window>,
    /// The index of the column of groups, if the batches have whole groups.
    groups: Option<usize>,
    /// The buffer of the keys of groups.
    keys: Vec<u64>,
    order: BatchOrder,
    cursor: Cursor,
    ended: bool,
    /// The number of bad rows in the epoch before the cursor.
    rejected: u64,
    /// The positions of the bad rows that have been decoded but lie after the cursor.
    ahead: VecDeque<u64>,
    passed: Vec<u64>,
}

impl std::fmt::Debug for BatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchStream")
            .field("order", &self.order)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl BatchStream {
    pub(crate) fn new(
        reading: Arc<Reading>,
        assembly: Assembly,
        order: BatchOrder,
        window_rows: usize,
        from: Cursor,
        groups: Option<usize>,
        workers: Arc<Workers>,
    ) -> Self {
        let row_order = Order { seed: order.seed, epoch: from.epoch, shuffle: order.shuffle };
        let windows =
            Windows::new(reading.clone(), workers, row_order, window_rows, from.row, groups);
        Self {
            reading,
            assembly,
            windows,
            ready: VecDeque::new(),
            groups,
            keys: Vec::new(),
            order,
            cursor: from,
            ended: false,
            rejected: 0,
            ahead: VecDeque::new(),
            passed: Vec::new(),
        }
    }

    /// Returns the stream as the continuation of an interrupted pass. `rows` is the number of bad
    /// rows in the epoch before the cursor; these rows count towards the limit of bad rows.
    #[must_use]
    pub fn with_rejected(mut self, rows: u64) -> Self {
        self.rejected = rows;
        self
    }

    /// Returns the positions of the bad rows that the cursor has passed since the last call,
    /// ascending. After the end of the epoch, the result contains all remaining bad rows.
    pub fn take_rejected(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.passed)
    }

    /// Returns the position after the last decoded row. It counts all rows of the data in the order
    /// of the epoch, including rows that were left out. At the end of an epoch, it is the number of
    /// rows of the data.
    pub fn rows_read(&self) -> u64 {
        self.windows.end()
    }

    /// Returns the position after the last row of the last batch. The position counts all rows of
    /// the data, including rows that were left out.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    fn assemble(&mut self) -> Result<Option<(Batch, Cursor)>> {
        let rows = self.order.batch_rows.max(1);
        let rows = match self.groups {
            Some(column) => self.count_rows_of_groups(column, rows)?,
            None => rows,
        };
        let mut pieces = Vec::new();
        let mut taken = 0;
        let mut position = self.cursor.row;
        while taken < rows {
            if self.ready.is_empty() {
                let next = self.next_window()?;
                self.ready.extend(next);
            }
            let Some(window) = self.ready.front_mut() else { break };
            let before = window.rows;
            window.take(rows - taken, &mut pieces);
            taken += before - window.rows;
            position = window.position().unwrap_or(position);
            if window.rows == 0 {
                self.ready.pop_front();
            }
        }
        if taken == 0 || (self.order.drop_last && taken < rows) {
            self.pass(u64::MAX);
            return Ok(None);
        }
        let batch = self.assembly.batch(&pieces, &self.reading.fields)?;
        // The pieces are dropped only here, so that the memory of a finished window can be used
        // again.
        drop(pieces);
        self.windows.read_ahead();
        self.cursor.row = position;
        self.pass(position);
        Ok(Some((batch, self.cursor)))
    }

    /// Returns the number of rows of the next batch of whole groups, at most `most`. It is 0 at the
    /// end of the epoch.
    fn count_rows_of_groups(&mut self, column: usize, most: usize) -> Result<usize> {
        self.keys.clear();
        let mut counted = 0;
        loop {
            for window in self.ready.iter().skip(counted) {
                window.copy_group_keys(column, most + 1 - self.keys.len(), &mut self.keys);
            }
            counted = self.ready.len();
            if self.keys.len() > most {
                return count_whole(&self.keys, most);
            }
            match self.next_window()? {
                Some(window) => self.ready.push_back(window),
                None => return Ok(self.keys.len()),
            }
        }
    }

    fn next_window(&mut self) -> Result<Option<Window>> {
        let window = self.windows.next_window()?;
        self.ahead.extend(window.iter().flat_map(Window::rejected));
        let bad = self.rejected + self.ahead.len() as u64;
        match bad > self.reading.max_bad() {
            true => Err(self.reading.too_many_bad_rows()),
            false => Ok(window),
        }
    }

    /// Records that the cursor has passed the bad rows before `position`.
    fn pass(&mut self, position: u64) {
        while let Some(row) = self.ahead.pop_front_if(|row| *row < position) {
            self.rejected += 1;
            self.passed.push(row);
        }
    }
}

impl Iterator for BatchStream {
    type Item = Result<(Batch, Cursor)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.assemble().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

impl std::iter::FusedIterator for BatchStream {}
