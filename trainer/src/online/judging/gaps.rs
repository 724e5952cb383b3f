//! The batches that a log leaves out, and those that it keeps although a rewind should have left
//! them out.

use zillion_stream::gate::Gate;

use super::{HELD_WINDOWS, Judging, Trip};

impl Judging {
    /// Takes the numbers of the batches behind the gaps of the log.
    pub(crate) fn set_gaps(&mut self, mut gaps: Vec<u64>) {
        gaps.sort_unstable();
        self.gaps = gaps;
    }

    /// Takes the batches that stay in the model although a rewind should have left them out. No
    /// version follows them until a window was judged, as behind a gap.
    pub(crate) fn set_kept(&mut self, kept: Vec<(u64, u64)>) {
        self.gaps.extend(kept.iter().map(|(_, to)| *to));
        self.gaps.sort_unstable();
        self.kept = kept.into_iter().map(|(from, to)| from..to).collect();
    }

    /// Returns whether a rewind would leave out batches that stay in the model, because the way
    /// back to a state before them was lost.
    pub(crate) fn must_keep(&self, trip: &Trip) -> bool {
        self.kept.iter().any(|kept| trip.from < kept.end)
    }

    /// Forgets the versions with a bad batch, and the rows that wait to enter the anchor. The model
    /// goes on with the batches.
    pub(crate) fn forget_bad(&mut self, trip: &Trip) {
        self.history.versions.retain(|(batch, _)| *batch < trip.from);
        self.gate.iter_mut().for_each(Gate::discard_staged);
    }

    /// Returns the number of batches that are known to be good, if there are any.
    pub(crate) fn known_good(&self) -> Option<u64> {
        self.history.good.front().copied()
    }

    /// Returns whether versions wait, because no window was judged since the batches that the log
    /// leaves out. The labels may still be wrong. If windows have too few rows to be judged, the
    /// wait ends after [`HELD_WINDOWS`] of them.
    pub(crate) fn is_held(&self) -> bool {
        let Some(gap) = self.last_gap().filter(|_| self.has_gate()) else { return false };
        let needed = self.min_rows;
        // A checkpoint may have windows that were closed before the gap.
        let behind = self.recent_batches.partition_point(|&batch| batch < gap);
        let behind = &self.recent[behind..];
        let is_judged = self.history.good.back().is_some_and(|&batch| batch >= gap)
            || behind.iter().any(|window| window.rows >= needed)
            || behind.len() >= HELD_WINDOWS;
        !is_judged
    }

    /// Returns the number of the first batch behind the last gap that the run has passed.
    pub(super) fn last_gap(&self) -> Option<u64> {
        self.gaps.iter().rev().copied().find(|&gap| gap <= self.history.batch)
    }
}
