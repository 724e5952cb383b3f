//! The timeline of all events. The history of a row is a range of the timeline.
//!
//! # Invariants
//! The events of one owner are contiguous and sorted by time. Events with the same time keep the
//! order of their rows. Therefore a history of any length is one range of events, which is stored
//! as two numbers.

use std::ops::Range;

use zillion_feature::FeatureKey;

/// The owner, the time and the item of each row, in the order in which the rows were read.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    owner: Option<FeatureKey>,
    time: Option<i64>,
    /// The item of the event, or `None` if the row is not an event.
    item: Option<u32>,
}

/// The histories of all rows.
#[derive(Debug)]
pub(super) struct Histories {
    items: Vec<u32>,
    of_rows: Vec<Range<usize>>,
}

impl Timeline {
    pub(super) fn push(&mut self, owner: Option<FeatureKey>, time: Option<i64>, item: Option<u32>) {
        self.rows.push(Row { owner, time, item });
    }

    /// Computes the history of each row: the last `last` events of its owner that are older than
    /// the row by more than `lag`. A row without an owner or a time has an empty history, and is
    /// not an event for other rows.
    pub(super) fn histories(&self, last: usize, lag: u64) -> Histories {
        let mut order: Vec<(FeatureKey, i64, usize)> = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter().enumerate() {
            if let (Some(owner), Some(time)) = (row.owner, row.time) {
                order.push((owner, time, index));
            }
        }
        order.sort_unstable();
        let mut items = Vec::new();
        let mut times = Vec::new();
        let mut of_rows = vec![0..0; self.rows.len()];
        for rows in order.chunk_by(|a, b| a.0 == b.0) {
            let first = items.len();
            for &(_, time, index) in rows {
                if let Some(item) = self.rows[index].item {
                    items.push(item);
                    times.push(time);
                }
            }
            let mut known = first;
            for &(_, time, index) in rows {
                // The subtraction is done in i128, so that no lag and no time overflows.
                let bound = i128::from(time) - i128::from(lag);
                while known < items.len() && i128::from(times[known]) < bound {
                    known += 1;
                }
                of_rows[index] = known.saturating_sub(last).max(first)..known;
            }
        }
        Histories { items, of_rows }
    }
}

impl Histories {
    /// Returns the items in the history of a row, with the most recent item last.
    pub(super) fn of_row(&self, row: usize) -> &[u32] {
        &self.items[self.of_rows[row].clone()]
    }
}
