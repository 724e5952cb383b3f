//! The anchor: rows whose labels are taken to be good, because versions were promoted after them.
//!
//! The gate keeps labels and weights. The caller keeps the encoded rows at the same places. A row
//! is first *staged*. It moves to the anchor when a version is promoted and the row is old enough.
//! So poisoned rows do not get there before the gate has had time to notice them.
//!
//! While versions are held, nothing is promoted. Rows then need a greater age, so that an operator
//! has had time to act. An anchor that never changed would favour the promoted version for ever if
//! that version happens to fit its rows better, for example because it had just learned from them.

use serde::{Deserialize, Serialize};

use super::settings::GateSettings;
use crate::partition::EventTime;

/// The anchor has room for this number of times as many rows as are staged.
const STAGED_PART: usize = 4;

/// The anchor rows and the staged rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorRows {
    rows: Vec<Row>,
    /// The place of the oldest anchor row, once all places are filled.
    next: usize,
    staged: Vec<Option<(EventTime, Row)>>,
    /// The number of rows that were offered.
    offered: u64,
}

/// A row without its features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    is_positive: bool,
    weight: f32,
}

/// A row of a batch that was staged. The caller stores the encoded row at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The index of the row in the batch.
    pub row: usize,
    /// The place among the staged rows.
    pub place: usize,
}

/// A staged row that became an anchor row. The caller moves the encoded row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The place among the staged rows, which is free now.
    pub from: usize,
    /// The place among the anchor rows. The row that was there before is removed.
    pub to: usize,
}

impl AnchorRows {
    /// Returns the number of anchor rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there is no anchor row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the label of each anchor row.
    pub fn labels(&self) -> Vec<f32> {
        self.rows.iter().map(|row| f32::from(u8::from(row.is_positive))).collect()
    }

    /// Returns the weight of each anchor row.
    pub fn weights(&self) -> Vec<f32> {
        self.rows.iter().map(|row| row.weight).collect()
    }

    /// Stages one out of `anchor_every` rows while there are free places.
    pub(super) fn offer(
        &mut self,
        settings: &GateSettings,
        times: &[EventTime],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Vec<Staged> {
        self.staged.resize(settings.anchor_rows.div_ceil(STAGED_PART), None);
        let mut staged = Vec::new();
        let mut place = 0;
        for row in 0..labels.len() {
            let ordinal = self.offered;
            self.offered += 1;
            if !mix(ordinal).is_multiple_of(settings.anchor_every) {
                continue;
            }
            while self.staged.get(place).is_some_and(Option::is_some) {
                place += 1;
            }
            let Some(free) = self.staged.get_mut(place) else { continue };
            let weight = weights.map_or(1.0, |weights| weights[row]);
            *free = Some((times[row], Row { is_positive: labels[row] == 1.0, weight }));
            staged.push(Staged { row, place });
        }
        staged
    }

    /// Moves the staged rows that are at least `age_seconds` older than the watermark into the
    /// anchor.
    pub(super) fn admit(
        &mut self,
        settings: &GateSettings,
        watermark: EventTime,
        age_seconds: u64,
    ) -> Vec<Admitted> {
        let newest = watermark.0.saturating_sub_unsigned(age_seconds.saturating_mul(1000));
        let mut admitted = Vec::new();
        for (from, staged) in self.staged.iter_mut().enumerate() {
            let Some((_, row)) = staged.take_if(|(time, _)| time.0 <= newest) else { continue };
            let to = if self.rows.len() < settings.anchor_rows {
                self.rows.push(row);
                self.rows.len() - 1
            } else {
                let to = self.next % settings.anchor_rows;
                self.rows[to] = row;
                self.next = to + 1;
                to
            };
            admitted.push(Admitted { from, to });
        }
        admitted
    }

    /// Removes all staged rows.
    pub(super) fn discard(&mut self) {
        self.staged.fill(None);
    }

    /// Returns whether all rows have a place under these settings.
    pub(super) fn fits(&self, settings: &GateSettings) -> bool {
        let staged = settings.anchor_rows.div_ceil(STAGED_PART);
        self.rows.len() <= settings.anchor_rows
            && (self.staged.is_empty() || self.staged.len() == staged)
    }
}

/// Mixes the bits of a number (splitmix64), so that chosen rows follow no pattern of the stream.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
