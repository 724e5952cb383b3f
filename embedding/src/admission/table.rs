//! The admission of one shard's part of a table: counting and admitting the keys that have no row
//! yet.

use zillion_feature::FeatureKey;
use zillion_rows::Candidate;

use crate::admission::KeyAdmission;
use crate::admission::candidates::Candidates;
use crate::admission::filter::Filter;
use crate::error::{Error, Result};
use crate::table::Table;

impl Table {
    /// Adds a candidate from a checkpoint to a table that counts candidates exactly.
    ///
    /// # Errors
    /// Returns an error if the key has a row.
    pub(crate) fn restore_candidate(
        &mut self,
        key: FeatureKey,
        candidate: Candidate,
    ) -> Result<()> {
        if self.has(key) {
            let reason = format!(
                "key {:#018x} waits for a row and has one; restore another checkpoint",
                key.0
            );
            return Err(Error::mismatch(self.name(), reason));
        }
        if let Some(counts) = self.candidates.as_mut().and_then(KeyAdmission::counts_mut) {
            counts.restore(key, candidate);
        }
        Ok(())
    }

    /// Returns the exact counts of the table's candidates, if its admission has them.
    pub(crate) fn counts(&self) -> Option<&Candidates> {
        self.candidates.as_ref().and_then(KeyAdmission::counts)
    }

    /// Returns the filter in which keys are counted, if the admission has one.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        self.candidates.as_ref().and_then(KeyAdmission::filter)
    }

    /// Counts the occurrences of a key without a row, and returns whether the key gets a row now.
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

    /// Returns whether a key without a row would still wait for admission after a push.
    pub(crate) fn waits(&self, key: FeatureKey, times: impl FnOnce() -> u32, step: u32) -> bool {
        self.candidates.as_ref().is_some_and(|c| !c.would_admit(key, times(), step))
    }
}
