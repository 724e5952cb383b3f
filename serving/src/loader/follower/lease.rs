//! The leases of a loader: what this server tells the registry about the versions that it has open.
//!
//! A registry that takes no lease still has versions to serve, so that a failed lease is a warning.
//! Files that no lease protects can be collected, and then the cache is what the server has.

use std::time::{Duration, Instant};

use zillion_registry::VersionId;

use super::{Follower, OpenVersions};

/// The duration of a lease on loaded versions. A server renews its lease after a third of this time
/// at the latest.
pub(super) const LEASE: Duration = Duration::from_secs(300);

/// The time between two attempts to renew a lease that the registry did not take.
const RETRY: Duration = Duration::from_secs(10);

impl Follower {
    pub(super) fn renew_lease(&mut self, open: &OpenVersions, changed: bool) {
        if changed || self.lease_due.is_none_or(|due| Instant::now() >= due) {
            self.lease(open.versions.keys().copied().collect());
        }
    }

    /// Writes the lease of this server.
    pub(super) fn lease(&mut self, versions: Vec<VersionId>) {
        let leased = self.model.lease(&self.config.server, versions, LEASE);
        let next = if leased.is_ok() { LEASE / 3 } else { RETRY };
        self.lease_due = Some(Instant::now() + next);
        if let Err(error) = leased {
            let name = self.model.name();
            self.metrics.loading.record_write_failure(name);
            tracing::warn!(model = name, "the registry does not take a lease: {error}");
        }
    }

    pub(in crate::loader) fn end_lease(&mut self) {
        if let Err(error) = self.model.end_lease(&self.config.server) {
            // The lease runs out by itself.
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }
}
