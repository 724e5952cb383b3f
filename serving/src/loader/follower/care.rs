//! The care of the loader for its cache: room, repairs, claims, and what a start without the
//! registry needs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zillion_registry::{Error as RegistryError, Remembered, VersionId, VersionManifest};
use zillion_scorer::Error;

use super::lease::LEASE;
use super::{Follower, Look, followed_name};
use crate::config::Follow;
use crate::host::OpenVersions;

/// The number of loads between two clean-ups of a cache without a budget.
const TRIM_EVERY: u64 = 16;

/// The first time between two loads of a version that may have ended the process, while another
/// version answers.
const CRASH_WAIT: Duration = Duration::from_secs(10);
/// The longest of these times.
const LONGEST_CRASH_WAIT: Duration = Duration::from_secs(3600);

impl Follower {
    /// Writes to the cache which versions answer now, and the current time. A server that starts
    /// while the registry cannot be reached uses this note.
    pub(super) fn remember(&mut self, follow: &Follow, open: &OpenVersions) {
        let Some(current) = open.current else { return };
        let labels = open.labels.clone();
        let look = Look { current: Some(current), labels, ..Look::default() };
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
            // A file may have been unreadable for a moment only. It is then mapped again.
            Ok(damaged) if damaged.is_empty() => {
                matches!(error, Error::Damaged { .. })
            }
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
        self.is_proved(version).unwrap_or(true)
    }

    /// Returns whether another server has served a version.
    ///
    /// # Errors
    /// Returns an error if the manifest of the version cannot be read.
    fn is_proved(&mut self, version: VersionId) -> Result<bool, Error> {
        let chain = self.cache.chain(&self.model, version)?;
        let newest = chain.last().map(|newest| newest.link());
        Ok(newest.is_some_and(|link| self.model.is_proved(&link).unwrap_or_default()))
    }

    /// Refuses for a while a version whose load has ended a process before, unless another server
    /// has proved it. Without another version that answers, the first retry is at once.
    ///
    /// # Errors
    /// Returns an error if the version is not to be tried now.
    pub(super) fn check_crashes(&mut self, version: VersionId, answers: bool) -> Result<(), Error> {
        let Some(crashes) = self.cache.crashes(version) else { return Ok(()) };
        if crashes.age >= crash_wait(crashes.number, answers)
            || self.is_proved(version).unwrap_or_default()
        {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "version {version} was being loaded {} times when the server ended, so that it is tried again later; \
             publish a new version, or move the pointer to another one",
            crashes.number
        )))
    }

    /// Checks that a version is the one that the pointers name, before it is loaded.
    ///
    /// # Errors
    /// Returns an error if the hashes differ, or the manifest cannot be read.
    pub(super) fn check_link(&mut self, version: VersionId) -> Result<(), Error> {
        let Some(wanted) = self.chains.get(&version).cloned() else { return Ok(()) };
        // A manifest that was read before may have been replaced in a registry that was made anew.
        let mut found = String::new();
        for _ in 0..2 {
            let chain = self.cache.chain(&self.model, version)?;
            found = chain.last().map(|newest| newest.chain.clone()).unwrap_or_default();
            if found == wanted {
                return Ok(());
            }
            self.cache.reset();
        }
        let reason = format!(
            "its hash is {found}, but the pointer names the hash {wanted}; move the pointer to a version of the \
             registry"
        );
        let model = self.model.name().to_owned();
        Err(RegistryError::Chain { model, version, reason }.into())
    }

    /// Returns whether this server leaves a new version to another server for now. A server that
    /// has no version does not.
    pub(super) fn is_left_to_others(&mut self, before: &OpenVersions, version: VersionId) -> bool {
        before.current.is_some()
            && !before.versions.contains_key(&version)
            && !self.may_begin(version)
    }

    /// Lets the labels of versions that are not loaded yet keep the versions that they had: those
    /// of the followed version while it `is_held`, and those that are left to other servers.
    pub(super) fn hold_labels(
        &mut self,
        before: &OpenVersions,
        current: VersionId,
        is_held: bool,
        labels: &mut BTreeMap<String, VersionId>,
    ) {
        let mut waits = is_held;
        let mut held = BTreeMap::new();
        for version in labels.values() {
            let is_known = held.contains_key(version);
            if *version == current {
                held.insert(*version, is_held);
            } else if !is_known {
                held.insert(*version, self.is_left_to_others(before, *version));
            }
        }
        labels.retain(|name, version| {
            if !held.get(version).copied().unwrap_or_default() {
                return true;
            }
            waits = true;
            let kept = before.labels.get(name).filter(|kept| before.versions.contains_key(kept));
            kept.map(|kept| *version = *kept).is_some()
        });
        if !waits {
            self.stagger.end();
        }
    }

    /// Notes that this server serves a version.
    pub(super) fn prove(&self, version: &VersionManifest) {
        if self.config.stagger.is_zero() {
            return;
        }
        if let Err(error) = self.model.prove(&version.link(), &self.config.server) {
            self.metrics.loading.record_write_failure(self.model.name());
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }

    /// Hashes one cached file of an open version, those of the current version first. If it has
    /// changed on the disk, the damaged files are removed, and the open versions are to be loaded
    /// again.
    pub(super) fn scrub(&mut self, open: &OpenVersions) {
        if let Err(error) = self.scrub_one(open) {
            // The file or its manifest is looked at again.
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }

    fn scrub_one(&mut self, open: &OpenVersions) -> Result<(), Error> {
        self.scrubbed.retain(|version| open.versions.contains_key(version));
        let mut versions = open.current.iter().chain(open.versions.keys());
        let next = versions.find(|&version| !self.scrubbed.contains(version));
        let Some(version) = next.copied() else { return Ok(()) };
        // Without its manifest a version is not looked at, and the next one is.
        self.scrubbed.insert(version);
        let chain = self.cache.chain(&self.model, version)?;
        self.pace.begin();
        let changed = self.cache.scrub(&chain, &mut self.pace);
        if self.cache.has_unscrubbed() {
            self.scrubbed.remove(&version);
        }
        let Some(name) = changed? else { return Ok(()) };
        let damaged = self.cache.repair(&chain, &mut self.pace)?;
        let model = self.model.name();
        tracing::error!(model, "the cached file {name} has changed on the disk and is removed");
        self.metrics.loading.record_damage(model, damaged.len());
        self.distrusted.extend(open.versions.keys());
        Ok(())
    }

    /// Removes the damaged files of versions whose mapped files have lost pages, and lets the
    /// versions be loaded again. Such a version answers no requests until then.
    pub(super) fn replace_truncated(&mut self, open: &OpenVersions) {
        let mut is_damaged = false;
        for (&version, servable) in &open.versions {
            if !servable.is_damaged() || !self.distrusted.insert(version) {
                continue;
            }
            is_damaged = true;
            self.pace.begin();
            let chain = self.cache.chain(&self.model, version);
            let removed = chain.and_then(|chain| self.cache.repair(&chain, &mut self.pace));
            let model = self.model.name();
            let files = removed.as_ref().map_or(0, Vec::len);
            self.metrics.loading.record_damage(model, files.max(1));
            tracing::error!(
                model,
                version = version.0,
                files,
                "a mapped file of the version was truncated or cannot be read; the version is \
                 turned off and loaded again"
            );
            if let Err(error) = removed {
                tracing::warn!(model, "{error}");
            }
        }
        if is_damaged {
            // Other versions may have merges of the same files.
            self.distrusted.extend(open.versions.keys());
        }
    }

    /// Trims the cache before a load that would exceed its budget. A cache that cannot be trimmed
    /// does not refuse the load.
    pub(super) fn make_room(&mut self, version: VersionId) -> Result<(), Error> {
        let Some(budget) = self.config.cache_bytes else { return Ok(()) };
        let chain = self.cache.chain(&self.model, version)?;
        let missing = self.cache.missing_bytes(&chain)?;
        let size = self.cache.size(&mut self.pace)?;
        if size.bytes.saturating_add(missing) > budget {
            self.trim_or_warn(Some(budget.saturating_sub(missing)), Some(version));
        }
        Ok(())
    }

    /// Removes the files that no loaded or recent version reads from the cache: once in
    /// [`TRIM_EVERY`] loads, and whenever the cache is larger than its budget.
    pub(super) fn trim(&mut self) {
        self.loads += 1;
        let is_over = self.config.cache_bytes.is_some_and(|budget| {
            // A folder that cannot be listed is trimmed another time.
            self.cache.size(&mut self.pace).is_ok_and(|size| size.bytes > budget)
        });
        if is_over || self.loads.is_multiple_of(TRIM_EVERY) {
            self.trim_or_warn(self.config.cache_bytes, None);
        }
    }

    /// Trims the cache. A failure says nothing about the version that is being loaded.
    fn trim_or_warn(&mut self, budget: Option<u64>, loading: Option<VersionId>) {
        if let Err(error) = self.trim_within(budget, loading) {
            tracing::warn!(model = self.model.name(), "cannot trim the cache: {error}");
        }
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
            match self.cache.chain(&self.model, version) {
                Ok(chain) => chains.push(chain),
                // The files of an open version must be known, so that none of them is removed.
                Err(error) if open.versions.contains_key(&version) => return Err(error.into()),
                Err(_) => {}
            }
        }
        let mut more = Vec::with_capacity(recent.len());
        for version in recent {
            // A recent version that cannot be read has nothing that is worth the room.
            more.extend(self.cache.chain(&self.model, version));
        }
        let chains: Vec<&[Arc<VersionManifest>]> = chains.iter().map(Vec::as_slice).collect();
        let more: Vec<&[Arc<VersionManifest>]> = more.iter().map(Vec::as_slice).collect();
        Ok(self.cache.trim_to(&chains, &more, budget)?)
    }
}

/// Returns the wait before the next load of a version, after `number` loads have ended with the
/// process. The wait doubles with each such load.
fn crash_wait(number: u32, answers: bool) -> Duration {
    let doubled = |first: Duration, times: u32| first.saturating_mul(1 << times.min(16));
    match (answers, number) {
        (true, _) => doubled(CRASH_WAIT, number.saturating_sub(1)).min(LONGEST_CRASH_WAIT),
        // A process can end in a load for any reason, and nothing answers without the version.
        (false, 0 | 1) => Duration::ZERO,
        (false, _) => doubled(Duration::from_secs(1), number - 2).min(CRASH_WAIT),
    }
}

/// Returns whether an error comes from a disk or a quota without free space.
pub(super) fn is_disk_full(error: &Error) -> bool {
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
    fn a_version_that_ends_its_server_is_tried_less_and_less() {
        let waits = |answers| (1..=20).map(move |number| crash_wait(number, answers));
        assert!(waits(true).is_sorted() && waits(false).is_sorted());
        assert_eq!(crash_wait(1, true), CRASH_WAIT);
        assert_eq!(waits(true).max(), Some(LONGEST_CRASH_WAIT));
        assert_eq!(crash_wait(1, false), Duration::ZERO);
        assert!(crash_wait(2, false) > Duration::ZERO);
        assert_eq!(waits(false).max(), Some(CRASH_WAIT));
    }

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
