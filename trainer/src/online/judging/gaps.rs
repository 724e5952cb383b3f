//! The batches that a log leaves out, and those that it keeps although a rewind should have left
//! them out.

use serde::{Deserialize, Serialize};
use zillion_stream::gate::Gate;
use zillion_stream::validation::Begun;

use super::{HELD_WINDOWS, Judging, Trip};

/// A gap of the log that the run has passed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PassedGap {
    /// The number of the first batch behind the gap.
    batch: u64,
    /// The windows that may have rows from before the gap.
    begun: Begun,
}

impl Judging {
    /// Takes the numbers of the batches behind the gaps of the log.
    pub(crate) fn set_gaps(&mut self, mut gaps: Vec<u64>) {
        gaps.sort_unstable();
        self.gaps = gaps;
    }

    /// Takes the batches that stay in the model although a rewind should have left them out: the
    /// number of each decision about them, the first batch, and the first one behind them. No
    /// version follows them until a window was judged, as behind a gap. `next` is the number of the
    /// first decision behind the present state. A state from before such a decision takes the
    /// batches for good ones, so that it forgets what it has of them.
    pub(crate) fn set_kept(&mut self, kept: &[(u64, u64, u64)], next: u64) {
        self.gaps.extend(kept.iter().map(|(_, _, to)| *to));
        self.gaps.sort_unstable();
        self.kept = kept.iter().map(|(_, from, to)| *from..*to).collect();
        for &(decision, from, _) in kept {
            if decision >= next && from <= self.history.batch {
                self.forget_bad(from);
                self.history.good.retain(|batch| *batch < from);
            }
        }
    }

    /// Returns whether a rewind would leave out batches that stay in the model, because the way
    /// back to a state before them was lost.
    pub(crate) fn must_keep(&self, trip: &Trip) -> bool {
        self.kept.iter().any(|kept| trip.from < kept.end)
    }

    /// Forgets the versions with a bad batch, which is one of those from `from` on, and the rows
    /// that wait to enter the anchor. The model goes on with the batches.
    pub(crate) fn forget_bad(&mut self, from: u64) {
        self.history.versions.retain(|(batch, _)| *batch < from);
        self.gate.iter_mut().for_each(Gate::discard_staged);
    }

    /// Returns the number of batches that are known to be good, if there are any.
    pub(crate) fn known_good(&self) -> Option<u64> {
        self.history.good.front().copied()
    }

    /// Returns whether versions wait, because no window was judged since the batches that the log
    /// leaves out. The labels may still be wrong. If windows have too few rows to be judged, the
    /// wait ends after [`HELD_WINDOWS`] of them. Windows that may have rows from before the gap say
    /// nothing about the labels behind it.
    pub(crate) fn is_held(&self) -> bool {
        let Some(gap) = self.last_gap().filter(|_| self.has_gate()) else { return false };
        if self.history.good.back().is_some_and(|&batch| batch >= gap) {
            return false;
        }
        let passed = self.history.gap.as_ref().filter(|passed| passed.batch == gap);
        let Some(passed) = passed else { return true };
        let behind = self.recent.iter().filter(|window| !passed.begun.contains(window));
        let behind: Vec<u64> = behind.map(|window| window.rows).collect();
        behind.iter().all(|&rows| rows < self.min_rows) && behind.len() < HELD_WINDOWS
    }

    /// Takes note of the windows that may have rows from before a gap, if batch `number` is the
    /// first one behind it.
    pub(super) fn note_gap(&mut self, number: u64) {
        let Some(batch) = self.last_gap_before(number) else { return };
        if self.history.gap.as_ref().is_none_or(|passed| passed.batch != batch) {
            self.history.gap = Some(PassedGap { batch, begun: self.windows.begun() });
        }
    }

    /// Returns the number of the first batch behind the last gap that the run has passed.
    pub(super) fn last_gap(&self) -> Option<u64> {
        self.last_gap_before(self.history.batch)
    }

    fn last_gap_before(&self, batch: u64) -> Option<u64> {
        self.gaps.iter().rev().copied().find(|&gap| gap <= batch)
    }
}
