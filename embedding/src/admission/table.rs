//! The functions of a table that count and admit the keys without a row.

use zillion_feature::FeatureKey;
use zillion_rows::Candidate;

use crate::admission::KeyAdmission;
use crate::admission::candidates::Candidates;
use crate::admission::filter::Filter;
use crate::error::{Error, Result};
use crate::eviction::clock::Moment;
use crate::table::Table;

impl Table {
    /// Adds a candidate from a checkpoint, in a table that counts candidates exactly.
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
                "key {:#018x} waits for a row, but it has a row already; restore another \
                 checkpoint",
                key.0
            );
            return Err(Error::mismatch(self.name(), reason));
        }
        if let Some(counts) = self.candidates.as_mut().and_then(KeyAdmission::counts_mut) {
            counts.restore(key, candidate);
        }
        Ok(())
    }

    /// Returns the exact counts of the table's candidates, or `None` if its admission does not
    /// count exactly.
    pub(crate) fn counts(&self) -> Option<&Candidates> {
        self.candidates.as_ref().and_then(KeyAdmission::counts)
    }

    /// Returns the filter in which keys are counted, or `None` if the admission does not use one.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        self.candidates.as_ref().and_then(KeyAdmission::filter)
    }

    /// Counts the occurrences of a key without a row. Returns whether the key gets a row now.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        key: FeatureKey,
        times: impl FnOnce() -> u32,
        at: Moment,
    ) -> bool {
        let Some(candidates) = &mut self.candidates else { return true };
        let admitted = candidates.admit(key, times(), at);
        self.counters.lapsed += candidates.take_lapsed();
        self.counters.admitted += u64::from(admitted);
        self.counters.waiting += u64::from(!admitted);
        admitted
    }

    /// Returns whether a key without a row would still wait for admission after a push of this
    /// step.
    pub(crate) fn waits(&self, key: FeatureKey, times: impl FnOnce() -> u32, step: u32) -> bool {
        self.candidates.as_ref().is_some_and(|c| !c.would_admit(key, times(), step))
    }
}
