//! Windows of several lengths over event time.
//!
//! Rows go into windows of the shortest length. A closed one is added to the longer windows that
//! contain it. Of each longer length, at most one window is open.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::ValidationError;
use super::figures::{ClosedWindow, Counters};
use super::groups::{Groups, check_length, check_rows};
use super::histogram::Weight;
use super::segments::{Column, Known};
use super::settings::Settings;
use super::sum::Sum;
use crate::partition::EventTime;

/// The rows of a batch with their scores of before the batch was learned from.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The event time of each row.
    pub times: &'a [EventTime],
    /// The label of each row: 0 or 1.
    pub labels: &'a [f32],
    /// The weight of each row, or `None` if all rows have the weight 1. A weight above 2^20 counts
    /// as 2^20.
    pub weights: Option<&'a [f32]>,
    /// The score of each row by the live model, in log-odds.
    pub live: &'a [f32],
    /// The score of each row by the stable version, in log-odds.
    pub stable: Option<&'a [f32]>,
    /// The values of each declared column, in the order of `segments` in the settings.
    pub segments: &'a [&'a [u64]],
}

/// The sums of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    rows: u64,
    /// The sum of the weights of all rows, in units of 2^-20.
    weight: Sum,
    /// The sum of the weights of all positive rows, in units of 2^-20.
    positives: Sum,
    not_finite: u64,
    stable_not_finite: u64,
    groups: Groups,
    segments: Vec<Column>,
}

/// The part of [`Windows`] that a checkpoint stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    windows: Vec<u64>,
    segments: Vec<String>,
    /// The end of the last closed window of the shortest length.
    closed_to: Option<i64>,
    /// The open windows of the shortest length, by their beginning.
    open: BTreeMap<i64, Window>,
    /// The open window of each longer length, with its beginning.
    longer: Vec<Option<(i64, Window)>>,
    known: Vec<Known>,
    counters: Counters,
}

/// The windows of progressive validation.
#[derive(Clone, Debug)]
pub struct Windows {
    settings: Settings,
    state: State,
}

/// The windows of the shortest length that had a row or were closed at a moment. All rows of other
/// windows come later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// The end of the last closed window.
    closed_to: Option<i64>,
    /// The beginnings of the open windows.
    open: BTreeSet<i64>,
}

impl Begun {
    /// Returns whether a window of the shortest length is among these windows.
    pub fn contains(&self, window: &ClosedWindow) -> bool {
        let start = window.start.0;
        self.closed_to.is_some_and(|end| start < end) || self.open.contains(&start)
    }
}

impl Windows {
    /// Creates windows without rows.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used.
    pub fn new(settings: Settings) -> Result<Self, ValidationError> {
        settings.check()?;
        let state = State {
            windows: settings.windows.clone(),
            segments: settings.segments.clone(),
            closed_to: None,
            open: BTreeMap::new(),
            longer: vec![None; settings.windows.len() - 1],
            known: vec![Known::default(); settings.segments.len()],
            counters: Counters::default(),
        };
        Ok(Self { settings, state })
    }

    /// Creates windows that go on from a stored state.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used, or if the lengths or the segments are others
    /// than those of the state.
    pub fn restore(settings: Settings, state: State) -> Result<Self, ValidationError> {
        settings.check()?;
        if state.windows != settings.windows || state.longer.len() + 1 != settings.windows.len() {
            return Err(ValidationError::Changed { setting: "windows" });
        }
        if state.segments != settings.segments || state.known.len() != settings.segments.len() {
            return Err(ValidationError::Changed { setting: "segments" });
        }
        Ok(Self { settings, state })
    }

    /// Returns the state for a checkpoint.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the length of the shortest windows, in milliseconds.
    pub fn shortest_length(&self) -> u64 {
        self.length(0).unsigned_abs()
    }

    /// Returns the windows of the shortest length that have a row or are closed.
    pub fn begun(&self) -> Begun {
        let State { closed_to, open, .. } = &self.state;
        Begun { closed_to: *closed_to, open: open.keys().copied().collect() }
    }

    /// Returns the counters since the beginning.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Adds the rows of a batch. Returns the windows that were closed early, because there were
    /// more than `max_open`. A refused batch changes nothing.
    ///
    /// # Errors
    /// Returns an error if the lengths differ, or a label or a weight cannot be used.
    pub fn add(&mut self, batch: &Batch<'_>) -> Result<Vec<ClosedWindow>, ValidationError> {
        let rows = batch.labels.len();
        check_rows(batch.labels, batch.weights, batch.live, batch.stable)?;
        check_length("event times", batch.times.len(), rows)?;
        let declared = self.settings.segments.len();
        if batch.segments.len() != declared {
            let found = batch.segments.len();
            return Err(ValidationError::Segments { found, declared });
        }
        for (name, values) in self.settings.segments.iter().zip(batch.segments) {
            check_length(&format!("values of the segment `{name}`"), values.len(), rows)?;
        }
        let mut closed = Vec::new();
        for row in 0..rows {
            self.add_row(batch, row);
            while self.state.open.len() > self.settings.max_open {
                self.state.counters.closed_early += 1;
                self.close_oldest(&mut closed);
            }
        }
        Ok(closed)
    }

    /// Closes the windows whose end the watermark has passed. Returns those with rows, in the order
    /// of their ends, the shorter ones first.
    pub fn close(&mut self, watermark: EventTime) -> Vec<ClosedWindow> {
        let mut closed = Vec::new();
        let length = self.length(0);
        let end = watermark.0.div_euclid(length).saturating_mul(length);
        while self.state.open.first_key_value().is_some_and(|(start, _)| *start < end) {
            self.close_oldest(&mut closed);
        }
        self.state.closed_to = self.state.closed_to.max(Some(end));
        self.close_longer(watermark.0, &mut closed);
        closed
    }

    /// Returns a length in milliseconds.
    fn length(&self, at: usize) -> i64 {
        self.settings.windows[at] as i64 * 1000
    }

    fn add_row(&mut self, batch: &Batch<'_>, row: usize) {
        let length = self.length(0);
        let start = batch.times[row].0.div_euclid(length).saturating_mul(length);
        let state = &mut self.state;
        if state.closed_to.is_some_and(|end| start < end) {
            state.counters.late += 1;
            return;
        }
        let window = state.open.entry(start).or_insert_with(|| Window {
            segments: vec![Column::default(); state.known.len()],
            ..Window::default()
        });
        let is_positive = batch.labels[row] == 1.0;
        let weight = Weight::new(batch.weights.map_or(1.0, |weights| weights[row]));
        let at = window.rows;
        window.rows += 1;
        window.weight.0 += weight.units();
        window.positives.0 += if is_positive { weight.units() } else { 0 };
        state.counters.rows += 1;
        let live = batch.live[row];
        let stable = batch.stable.map(|scores| scores[row]);
        if stable.is_some_and(|stable| !stable.is_finite()) {
            window.stable_not_finite += 1;
        }
        if !live.is_finite() {
            window.not_finite += 1;
            state.counters.not_finite += 1;
            return;
        }
        let stable = stable.filter(|stable| stable.is_finite());
        // The first row of each window begins at another group. Otherwise the short windows of a
        // quiet stream would fill the first groups only.
        let turn = start.div_euclid(length).unsigned_abs().wrapping_mul(7);
        window.groups.add(turn, at, is_positive, weight, live, stable);
        for (column, (known, values)) in
            window.segments.iter_mut().zip(state.known.iter_mut().zip(batch.segments))
        {
            let value = known.admit(values[row], self.settings.max_segments);
            state.counters.other_segments += u64::from(value.is_none());
            column.add(value, is_positive, weight, live, stable);
        }
    }

    /// Closes the oldest window of the shortest length, and adds it to the longer ones.
    fn close_oldest(&mut self, closed: &mut Vec<ClosedWindow>) {
        let Some((start, window)) = self.state.open.pop_first() else { return };
        let length = self.length(0);
        self.close_longer(start, closed);
        let end = start.saturating_add(length);
        self.state.closed_to = self.state.closed_to.max(Some(end));
        for at in 1..self.settings.windows.len() {
            let longer = self.length(at);
            let beginning = start.div_euclid(longer).saturating_mul(longer);
            let (_, sum) = self.state.longer[at - 1].get_or_insert((beginning, Window::default()));
            sum.merge(&window);
        }
        closed.push(self.figures(0, start, &window));
        if self.settings.windows.len() == 1 {
            self.release_segments(&window);
        }
        self.close_longer(end, closed);
    }

    /// Closes the longer windows that end at `time` or before.
    fn close_longer(&mut self, time: i64, closed: &mut Vec<ClosedWindow>) {
        for at in 1..self.settings.windows.len() {
            let length = self.length(at);
            let slot = &mut self.state.longer[at - 1];
            let Some((start, window)) =
                slot.take_if(|(start, _)| start.saturating_add(length) <= time)
            else {
                continue;
            };
            closed.push(self.figures(at, start, &window));
            if at + 1 == self.settings.windows.len() {
                self.release_segments(&window);
            }
        }
    }

    /// Lets other values take the places of values that neither the last window of the longest
    /// length nor an open window contains.
    fn release_segments(&mut self, last: &Window) {
        let State { open, longer, known, .. } = &mut self.state;
        let longer = longer.iter().flatten().map(|(_, window)| window);
        let windows: Vec<&Window> = open.values().chain(longer).chain([last]).collect();
        for (at, known) in known.iter_mut().enumerate() {
            let columns = windows.iter().filter_map(|window| window.segments.get(at));
            let used: BTreeSet<u64> = columns.flat_map(Column::values).collect();
            known.retain(&used);
        }
    }

    fn figures(&self, at: usize, start: i64, window: &Window) -> ClosedWindow {
        let (live, scores) = window.groups.live();
        let mut segments = Vec::new();
        for (name, column) in self.settings.segments.iter().zip(&window.segments) {
            column.list_figures(name, &mut segments);
        }
        ClosedWindow {
            start: EventTime(start),
            length: self.length(at).unsigned_abs(),
            rows: window.rows,
            weight: Weight::sum(window.weight.0),
            positives: Weight::sum(window.positives.0),
            not_finite: window.not_finite,
            stable_not_finite: window.stable_not_finite,
            live,
            paired: window.groups.paired(),
            segments,
            scores,
        }
    }
}

impl Window {
    /// Adds all rows of another window.
    fn merge(&mut self, more: &Self) {
        self.rows += more.rows;
        self.weight.0 += more.weight.0;
        self.positives.0 += more.positives.0;
        self.not_finite += more.not_finite;
        self.stable_not_finite += more.stable_not_finite;
        self.groups.merge(&more.groups);
        self.segments.resize_with(more.segments.len(), Column::default);
        for (column, more) in self.segments.iter_mut().zip(&more.segments) {
            column.merge(more);
        }
    }
}
