//! Batches of one epoch, from a position on.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Batch, Cursor};

use crate::assembly::Assembly;
use crate::error::Result;
use crate::order::Order;
use crate::reading::Reading;
use crate::windows::{Window, Windows};

/// How rows are ordered and grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOrder {
    /// Seed of the order.
    pub seed: u64,
    /// Whether rows are shuffled; otherwise they come as the files have them.
    pub shuffle: bool,
    /// Rows of a batch; only the last of an epoch may have fewer.
    pub batch_rows: usize,
    /// Whether a last batch with fewer rows is left out.
    pub drop_last: bool,
}

/// The batches from a cursor to the end of its epoch, each with the cursor behind it.
///
/// The stream decodes one window ahead on the pool; `next` waits for it, gathers and returns. After an
/// error the stream has ended. It is [`Send`], so that a task can take the next batch ahead as well.
pub struct BatchStream {
    reading: Arc<Reading>,
    assembly: Assembly,
    windows: Windows,
    window: Option<Window>,
    order: BatchOrder,
    cursor: Cursor,
    ended: bool,
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
        workers: Arc<Workers>,
    ) -> Self {
        let row_order = Order { seed: order.seed, epoch: from.epoch, shuffle: order.shuffle };
        let windows = Windows::new(reading.clone(), workers, row_order, window_rows, from.row);
        Self { reading, assembly, windows, window: None, order, cursor: from, ended: false }
    }

    /// The position behind the last batch.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    fn assemble(&mut self) -> Result<Option<(Batch, Cursor)>> {
        let rows = self.order.batch_rows.max(1);
        let mut pieces = Vec::new();
        let mut taken = 0;
        while taken < rows {
            if self.window.is_none() {
                self.window = self.windows.next_window()?;
            }
            let Some(window) = &mut self.window else { break };
            let before = window.rows;
            window.take(rows - taken, &mut pieces);
            taken += before - window.rows;
            if window.rows == 0 {
                self.window = None;
            }
        }
        if taken == 0 || (self.order.drop_last && taken < rows) {
            return Ok(None);
        }
        let batch = self.assembly.batch(&pieces, &self.reading.fields)?;
        // Only now, so that the memory of a window that this batch finished can be used again.
        drop(pieces);
        self.windows.read_ahead();
        self.cursor.row += taken as u64;
        Ok(Some((batch, self.cursor)))
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
