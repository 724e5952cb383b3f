//! Counting and admitting the keys of a table that have no row yet.

use zillion_feature::FeatureKey;
use zillion_rows::Candidate;

use crate::admission::KeyAdmission;
use crate::table::Table;

impl Table {
    /// Adds a candidate as a checkpoint kept it; false where the table has none or the key has a
    /// row.
    pub(crate) fn restore_candidate(&mut self, key: FeatureKey, candidate: Candidate) -> bool {
        let has_row = self.has(key);
        match self.candidates.as_mut().and_then(KeyAdmission::counts_mut) {
            Some(candidates) if !has_row => candidates.restore(key, candidate),
            _ => return false,
        }
        true
    }

    /// Returns the admission of the table; `None` where every key gets a row at once.
    pub(crate) fn admission(&self) -> Option<&KeyAdmission> {
        self.candidates.as_ref()
    }

    pub(crate) fn admission_mut(&mut self) -> Option<&mut KeyAdmission> {
        self.candidates.as_mut()
    }

    /// Candidates of one of this shard's slots.
    pub(crate) fn slot_candidates(&self, slot: usize) -> usize {
        self.candidates.as_ref().map_or(0, |c| c.slot_len(slot))
    }

    /// The candidates of one slot, in key order.
    pub(crate) fn candidates_in(&self, slot: usize) -> Vec<(FeatureKey, Candidate)> {
        self.candidates.as_ref().map_or_else(Vec::new, |c| c.in_slot(slot))
    }

    /// The candidates that one slot had when the snapshot began, in key order.
    pub(crate) fn candidates_before(&self, slot: usize) -> Vec<(FeatureKey, Candidate)> {
        let counts = self.candidates.as_ref().and_then(KeyAdmission::counts);
        counts.map_or_else(Vec::new, |c| c.before_in_slot(slot))
    }

    /// Whether a key without a row gets one now; counted.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        key: FeatureKey,
        times: impl FnOnce() -> u32,
        step: u32,
    ) -> bool {
        let Some(candidates) = &mut self.candidates else { return true };
        let admitted = candidates.admit(key, times(), step);
        self.counters.lapsed += candidates.take_lapsed();
        self.counters.admitted += u64::from(admitted);
        self.counters.waiting += u64::from(!admitted);
        admitted
    }

    /// Whether a push would not yet make a row of a key that has none.
    pub(crate) fn waits(&self, key: FeatureKey, times: impl FnOnce() -> u32, step: u32) -> bool {
        self.candidates.as_ref().is_some_and(|c| !c.would_admit(key, times(), step))
    }
}
