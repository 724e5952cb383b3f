//! The versions that could not be loaded, each with the time of the next attempt.
//!
//! An attempt reads and hashes all files, and a damaged file is seldom repaired at once. So the
//! wait doubles with each attempt.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zillion_registry::VersionId;

/// The longest time between two attempts to load the same version.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A version that could not be loaded.
#[derive(Clone, Debug)]
struct Refusal {
    problem: String,
    /// The time of the next attempt.
    due: Instant,
    wait: Duration,
}

/// The versions that could not be loaded.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(BTreeMap<VersionId, Refusal>);

impl Refusals {
    /// Records a failed attempt. The first wait is `wait`, and each further one is twice as long.
    pub(super) fn record(&mut self, version: VersionId, problem: String, wait: Duration) {
        let before = self.0.get(&version).map(|refusal| refusal.wait);
        let wait = before.map_or(wait, |before| before * 2).min(LONGEST_WAIT);
        self.0.insert(version, Refusal { problem, due: Instant::now() + wait, wait });
    }

    /// Returns the problem of a version whose next attempt is not due.
    pub(super) fn waiting(&self, version: VersionId) -> Option<&str> {
        let refusal = self.0.get(&version).filter(|refusal| Instant::now() < refusal.due)?;
        Some(&refusal.problem)
    }

    /// Returns whether the version was refused before.
    pub(super) fn has(&self, version: VersionId) -> bool {
        self.0.contains_key(&version)
    }

    pub(super) fn forget(&mut self, version: VersionId) {
        self.0.remove(&version);
    }

    /// Forgets the versions that `is_wanted` does not select.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(VersionId) -> bool) {
        self.0.retain(|&version, _| is_wanted(version));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_version_waits_longer_each_time() {
        let mut refusals = Refusals::default();
        let version = VersionId(3);
        let hour = Duration::from_secs(3600);
        assert_eq!(refusals.waiting(version), None);
        refusals.record(version, "bad".into(), hour);
        assert_eq!(refusals.0[&version].wait, LONGEST_WAIT);
        assert_eq!(refusals.waiting(version), Some("bad"));
        refusals.forget(version);
        assert!(!refusals.has(version));
        let mut waits = Vec::new();
        for _ in 0..4 {
            refusals.record(version, "bad".into(), Duration::from_millis(100));
            waits.push(refusals.0[&version].wait.as_millis());
        }
        assert_eq!(waits, [100, 200, 400, 800]);
        refusals.retain(|_| false);
        assert_eq!(refusals.waiting(version), None);
        refusals.record(version, "bad".into(), Duration::ZERO);
        assert_eq!((refusals.waiting(version), refusals.has(version)), (None, true));
    }
}
