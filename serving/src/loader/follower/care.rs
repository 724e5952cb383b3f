//! The care of the loader for its cache: room, repairs, claims, and what a start without the
//! registry needs.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use zillion_registry::{Error as RegistryError, Remembered, VersionId, VersionManifest};
use zillion_scorer::Error;

use super::{Follower, LEASE, Look, followed_name};
use crate::config::Follow;
use crate::host::OpenVersions;

/// The number of loads between two clean-ups of a cache without a budget.
const TRIM_EVERY: u64 = 16;

impl Follower {
    /// Writes to the cache which versions answer now, and the current time. A server that starts
    /// while the registry cannot be reached uses this note.
    pub(super) fn remember(&mut self, follow: &Follow, open: &OpenVersions) {
        let Some(current) = open.current else { return };
        let look = Look { current: Some(current), labels: open.labels.clone() };
        let is_known = |(known, at): &(Look, Instant)| *known == look && at.elapsed() * 3 < LEASE;
        if self.remembered.as_ref().is_some_and(is_known) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seen_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let answer = Remembered { seen_ms, current, labels: look.labels.clone() };
        // A server that cannot write its cache still serves what it has.
        if let Err(error) = self.cache.remember(&followed_name(follow), &answer) {
            tracing::warn!(model = self.model.name(), "{error}");
        }
        self.remembered = Some((look, Instant::now()));
    }

    /// Claims files of the cache. A claim that cannot be written endangers only what other servers
    /// find in the cache, and each of them can fetch it again.
    pub(super) fn claim(&mut self, versions: BTreeSet<VersionId>, is_loading: bool) {
        if let Err(error) = self.cache.claim(versions, is_loading) {
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }

    /// Removes what may be the reason of a failed load: old files if the disk is full, and at the
    /// first failure of a version the cached files that have changed on the disk. Returns whether
    /// another attempt is worth its cost.
    pub(super) fn mend(&mut self, version: VersionId, error: &Error) -> bool {
        if is_disk_full(error) {
            let freed = self.trim_within(Some(0), Some(version));
            return freed.is_ok_and(|freed| freed > 0);
        }
        let is_absent = matches!(
            error,
            Error::Registry(
                RegistryError::Store(_)
                    | RegistryError::NoModel { .. }
                    | RegistryError::NoVersion { .. }
            )
        );
        if is_absent || self.refusals.has(version) {
            return false;
        }
        let Ok(chain) = self.cache.chain(&self.model, version) else { return false };
        match self.cache.repair(&chain, &mut self.pace) {
            Ok(damaged) if damaged.is_empty() => false,
            Ok(damaged) => {
                let files = damaged.join(", ");
                tracing::warn!(model = self.model.name(), "the cache had damaged files: {files}");
                self.metrics.loading.record_damage(self.model.name(), damaged.len());
                true
            }
            Err(error) => {
                tracing::warn!(model = self.model.name(), "{error}");
                false
            }
        }
    }

    /// Returns whether this server begins to load a new version now, instead of leaving it to
    /// another server.
    pub(super) fn may_begin(&mut self, version: VersionId) -> bool {
        let (window, server) = (self.config.stagger, &self.config.server);
        if self.stagger.is_over(version, server, window) {
            return true;
        }
        // A version that cannot be read is loaded, so that its problem is shown. A store that fails
        // shows no proof, and then the wait decides.
        let Ok(chain) = self.cache.chain(&self.model, version) else { return true };
        chain.last().is_none_or(|newest| self.model.is_proved(&newest.link()).unwrap_or_default())
    }

    /// Notes that this server serves a version.
    pub(super) fn prove(&self, version: &VersionManifest) {
        if self.config.stagger.is_zero() {
            return;
        }
        if let Err(error) = self.model.prove(&version.link(), &self.config.server) {
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }

    /// Hashes one cached file of the current version. If it has changed on the disk, the damaged
    /// files are removed, and the open versions are to be loaded again.
    pub(super) fn scrub(&mut self, open: &OpenVersions) -> Result<(), Error> {
        let Some(current) = open.current else { return Ok(()) };
        let chain = self.cache.chain(&self.model, current)?;
        self.pace.begin();
        let Some(name) = self.cache.scrub(&chain, &mut self.pace)? else { return Ok(()) };
        let damaged = self.cache.repair(&chain, &mut self.pace)?;
        let model = self.model.name();
        tracing::error!(model, "the cached file {name} has changed on the disk and is removed");
        self.metrics.loading.record_damage(model, damaged.len());
        self.distrusted.extend(open.versions.keys());
        Ok(())
    }

    /// Trims the cache before a load that would exceed its budget.
    pub(super) fn make_room(&mut self, version: VersionId) -> Result<(), Error> {
        let Some(budget) = self.config.cache_bytes else { return Ok(()) };
        let chain = self.cache.chain(&self.model, version)?;
        let missing = self.cache.missing_bytes(&chain)?;
        let size = self.cache.size(&mut self.pace)?;
        if size.bytes.saturating_add(missing) > budget {
            self.trim_within(Some(budget.saturating_sub(missing)), Some(version))?;
        }
        Ok(())
    }

    /// Removes the files that no loaded or recent version reads from the cache: once in
    /// [`TRIM_EVERY`] loads, and whenever the cache is larger than its budget.
    pub(super) fn trim(&mut self) -> Result<(), Error> {
        self.loads += 1;
        let is_over = match self.config.cache_bytes {
            Some(budget) => self.cache.size(&mut self.pace)?.bytes > budget,
            None => false,
        };
        if is_over || self.loads.is_multiple_of(TRIM_EVERY) {
            self.trim_within(self.config.cache_bytes, None)?;
        }
        Ok(())
    }

    /// Trims the cache to a budget. The files of loaded versions and of the version that is being
    /// loaded stay in any case, and those of recent versions as long as they fit, the most recent
    /// first. Returns the number of freed bytes.
    fn trim_within(
        &mut self,
        budget: Option<u64>,
        loading: Option<VersionId>,
    ) -> Result<u64, Error> {
        let open = self.host.open();
        let fixed: BTreeSet<VersionId> = open.versions.keys().copied().chain(loading).collect();
        let recent = self.recent.iter().rev().filter(|v| !fixed.contains(v));
        let recent: Vec<VersionId> = recent.copied().collect();
        let mut chains: Vec<Vec<Arc<VersionManifest>>> = Vec::with_capacity(fixed.len());
        for version in fixed {
            chains.push(self.cache.chain(&self.model, version)?);
        }
        let mut more = Vec::with_capacity(recent.len());
        for version in recent {
            more.push(self.cache.chain(&self.model, version)?);
        }
        let chains: Vec<&[Arc<VersionManifest>]> = chains.iter().map(Vec::as_slice).collect();
        let more: Vec<&[Arc<VersionManifest>]> = more.iter().map(Vec::as_slice).collect();
        Ok(self.cache.trim_to(&chains, &more, budget)?)
    }
}

/// Returns whether an error comes from a disk or a quota without free space.
fn is_disk_full(error: &Error) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use zillion_device::DeviceError;

    use super::*;

    #[test]
    fn a_full_disk_is_found_in_any_error() {
        let full = |kind: io::ErrorKind| {
            let source = io::Error::from(kind);
            let device = DeviceError::File { action: "write", path: "x".into(), source };
            Error::Registry(RegistryError::Device(device))
        };
        assert!(is_disk_full(&full(io::ErrorKind::StorageFull)));
        assert!(is_disk_full(&full(io::ErrorKind::QuotaExceeded)));
        assert!(!is_disk_full(&full(io::ErrorKind::NotFound)));
        assert!(!is_disk_full(&Error::Refused("No space left on device".into())));
    }
}
