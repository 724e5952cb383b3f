//! The state of the counters: the rows of the longest window, and the counts of each id.
//!
//! # Invariants
//! * Rows are held in the order of their times. A row enters the counts of all windows when it is
//!   older than the lag, and leaves the counts of each window when it is older than the window.
//!   `left[w] <= entered` for each window `w`.
//! * A row that has left every window with a beginning, or has entered if there is no such window,
//!   is no longer held.

use std::collections::{HashMap, VecDeque};

use zillion_feature::{FeatureKey, MixedHasher};

use super::Counts;
use crate::filter::ID_BYTES;

/// The number of a row that has no id in a column.
const NO_ID: u32 = u32::MAX;

/// The lengths of the windows and of the lag, in units of the times.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    /// The length of each window, or `None` for a window without a beginning.
    pub(super) windows: Vec<Option<u64>>,
    pub(super) lag: u64,
}

/// The rows of the longest window, and the counts of each id at the present time.
pub(super) struct Recent {
    spans: Spans,
    columns: Vec<Column>,
    times: VecDeque<i64>,
    positives: VecDeque<bool>,
    /// The numbers of the ids of each held row, one for each column.
    ids: VecDeque<u32>,
    /// The index of the first held row, counted over all rows that were ever held.
    first: u64,
    /// The index of the next row that enters the counts.
    entered: u64,
    /// The index of the next row that leaves the counts of each window.
    left: Vec<u64>,
    /// The counts of all rows that have entered.
    total_rows: u64,
    total_positives: u64,
}

/// The ids of a column with their counts.
#[derive(Default)]
struct Column {
    numbers: HashMap<FeatureKey, u32, MixedHasher>,
    /// The counts of each id in each window.
    counts: Vec<Counts>,
}

impl Recent {
    pub(super) fn new(columns: usize, spans: Spans) -> Self {
        let left = vec![0; spans.windows.len()];
        Self {
            spans,
            columns: (0..columns).map(|_| Column::default()).collect(),
            times: VecDeque::new(),
            positives: VecDeque::new(),
            ids: VecDeque::new(),
            first: 0,
            entered: 0,
            left,
            total_rows: 0,
            total_positives: 0,
        }
    }

    /// Brings the counts to the time `now`, which is not before the time of an earlier call.
    pub(super) fn advance(&mut self, now: i64) {
        // The bounds are computed in i128, so that no span and no time overflows.
        let newest = i128::from(now) - i128::from(self.spans.lag);
        while self.time_of(self.entered).is_some_and(|time| i128::from(time) < newest) {
            self.total_rows += 1;
            self.total_positives += u64::from(self.positives[(self.entered - self.first) as usize]);
            for window in 0..self.left.len() {
                self.change(self.entered, window, true);
            }
            self.entered += 1;
        }
        let mut needed = self.entered;
        for window in 0..self.left.len() {
            let Some(length) = self.spans.windows[window] else { continue };
            let oldest = newest - i128::from(length);
            while self.left[window] < self.entered
                && self.time_of(self.left[window]).is_some_and(|t| i128::from(t) < oldest)
            {
                self.change(self.left[window], window, false);
                self.left[window] += 1;
            }
            needed = needed.min(self.left[window]);
        }
        while self.first < needed {
            self.times.pop_front();
            self.positives.pop_front();
            self.ids.drain(..self.columns.len());
            self.first += 1;
        }
    }

    fn time_of(&self, index: u64) -> Option<i64> {
        self.times.get((index - self.first) as usize).copied()
    }

    /// Adds a held row to the counts of a window, or removes it from them.
    fn change(&mut self, index: u64, window: usize, enters: bool) {
        let at = (index - self.first) as usize;
        let positive = u32::from(self.positives[at]);
        let first = at * self.columns.len();
        for (column, state) in self.columns.iter_mut().enumerate() {
            let id = self.ids[first + column];
            if id == NO_ID {
                continue;
            }
            let counts = &mut state.counts[id as usize * self.left.len() + window];
            if enters {
                counts.rows = counts.rows.saturating_add(1);
                counts.positives = counts.positives.saturating_add(positive);
            } else {
                counts.rows = counts.rows.saturating_sub(1);
                counts.positives = counts.positives.saturating_sub(positive);
            }
        }
    }

    /// Returns the rate of positive rows among all rows that have entered. It is never 0 or 1.
    pub(super) fn base_rate(&self) -> f64 {
        (self.total_positives as f64 + 0.5) / (self.total_rows as f64 + 1.0)
    }

    /// Returns the counts of a row's ids in each window of each column, and holds the row for later
    /// rows if its label is known. [`Recent::advance`] was called with the time of the row.
    pub(super) fn count(
        &mut self,
        keys: impl Iterator<Item = Option<FeatureKey>>,
        time: i64,
        label: Option<bool>,
    ) -> Vec<Option<Counts>> {
        let windows = self.left.len();
        let mut found = Vec::with_capacity(self.columns.len() * windows);
        for (column, key) in self.columns.iter_mut().zip(keys) {
            let Some(key) = key else {
                found.extend(std::iter::repeat_n(None, windows));
                self.ids.extend(label.map(|_| NO_ID));
                continue;
            };
            let Column { numbers, counts } = column;
            let next = numbers.len() as u32;
            let number = *numbers.entry(key).or_insert(next);
            if number == next {
                counts.resize(counts.len() + windows, Counts::default());
            }
            let start = number as usize * windows;
            found.extend(counts[start..start + windows].iter().copied().map(Some));
            self.ids.extend(label.map(|_| number));
        }
        if let Some(label) = label {
            self.times.push_back(time);
            self.positives.push_back(label);
        }
        found
    }

    /// Returns the number of distinct ids of each column.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.columns.iter().map(|column| column.numbers.len() as u64).collect()
    }

    /// Returns the number of rows that are held for windows and for the lag.
    pub(super) fn held_rows(&self) -> u64 {
        self.times.len() as u64
    }

    /// Returns the most bytes that the state takes while its vectors grow: each of them is then at
    /// most twice as long as its elements need, beside one of the present length.
    pub(super) fn bytes(&self) -> u64 {
        let counts = 3 * (self.left.len() * size_of::<Counts>()) as u64;
        let row = 3 * (size_of::<i64>() + 1 + self.columns.len() * size_of::<u32>()) as u64;
        let ids: u64 = self.ids().iter().sum();
        ids.saturating_mul(ID_BYTES + counts).saturating_add(self.held_rows().saturating_mul(row))
    }
}
