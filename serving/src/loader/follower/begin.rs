//! The start of a loader from its cache: without the registry, or beside a version that has ended
//! the process before.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zillion_registry::{Error as RegistryError, Remembered};
use zillion_scorer::Error;
use zillion_store::StoreStop;

use super::{Follower, OpenVersions, Watch, followed_name};
use crate::config::Follow;

impl Follower {
    /// Loads the versions that the registry named last, if it does not answer in time, or if the
    /// load of the version that it names has ended this server before. Requests are answered from
    /// them until the registry answers with a version that can be loaded.
    pub(in crate::loader) fn begin_from_cache(&mut self) {
        let follow = self.host.follow();
        let Some(last) = self.cache.recall(&followed_name(&follow)) else { return };
        let quick = StoreStop::default();
        quick.within(self.config.registry_wait);
        let model = self.model.with_stop(quick);
        let mut watch = Watch::default();
        let first = self.traffic_labels();
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        let look = watch.look(&model, &follow, &first);
        if let Ok(Some(current)) = look.as_ref().map(|look| look.current) {
            self.watch = watch;
            let crashed = self.cache.crashes(current).is_some();
            if crashed && last.current != current && self.cache.crashes(last.current).is_none() {
                self.begin_with(last, "a load of the newest version has ended this server before");
            }
            return;
        }
        let served = last.current;
        let last = match self.check_remembered(&follow, last, look.err()) {
            Ok(last) => last,
            Err(error) => {
                let name = self.model.name();
                tracing::warn!(model = name, "the version in the cache is not served: {error}");
                return;
            }
        };
        let age = UNIX_EPOCH + Duration::from_millis(last.seen_ms);
        self.host.begin_stale(SystemTime::now().duration_since(age).unwrap_or_default());
        self.cache.set_offline(true);
        let reason = "the registry does not answer";
        if !self.begin_with(last.clone(), reason) && last.current != served {
            // The pointer was moved to a version that this server could not load.
            self.begin_with(Remembered { current: served, ..last }, reason);
        }
        self.cache.set_offline(false);
    }

    /// Serves versions of the cache, for a reason. Returns whether there is one that answers.
    fn begin_with(&mut self, last: Remembered, reason: &str) -> bool {
        let opened = self.open_remembered(&last);
        self.refusals = super::Refusals::default();
        let name = self.model.name();
        match opened {
            Ok(open) => {
                tracing::warn!(model = name, "{reason}, so that versions of the cache are served");
                self.recent.push(last.current);
                self.publish(&OpenVersions::default(), open);
                true
            }
            Err(error) => {
                self.fresh.clear();
                tracing::warn!(model = name, "the version in the cache cannot be served: {error}");
                false
            }
        }
    }

    /// Checks what the cache remembers, and returns what may be served. With trusted keys, the
    /// versions are those of the signed moves that this server took last and that are still valid:
    /// a restart must not undo the end of their validity.
    ///
    /// # Errors
    /// Returns an error if the followed version may not be served.
    fn check_remembered(
        &mut self,
        follow: &Follow,
        last: Remembered,
        look: Option<RegistryError>,
    ) -> Result<Remembered, Error> {
        if let Some(error @ RegistryError::Expired { .. }) = look {
            return Err(error.into());
        }
        if !self.model.has_trusted_keys() {
            return Ok(last);
        }
        self.chains.clear();
        let Remembered { seen_ms, mut current, labels } = last;
        if let Follow::Pointer(pointer) = follow {
            let Some(moved) = self.model.recall_pointer(pointer)? else {
                return Err(Error::Refused(format!(
                    "no signed move of pointer `{pointer}` is in the cache; wait for the registry"
                )));
            };
            current = moved.to.version;
            self.chains.insert(current, moved.to.chain);
        }
        let mut signed = BTreeMap::new();
        for name in labels.into_keys() {
            // A pointer whose move is over is left out, as it would be with the registry.
            if let Ok(Some(moved)) = self.model.recall_pointer(&name) {
                self.chains.entry(moved.to.version).or_insert(moved.to.chain);
                signed.insert(name, moved.to.version);
            }
        }
        Ok(Remembered { seen_ms, current, labels: signed })
    }

    fn open_remembered(&mut self, last: &Remembered) -> Result<OpenVersions, Error> {
        let before = self.host.open();
        self.claim([last.current].into(), true);
        let mut versions = BTreeMap::new();
        let current = self.open(&before, &versions, last.current)?;
        versions.insert(last.current, current);
        for &version in last.labels.values() {
            // A version that may have ended the server is not needed for an answer.
            if versions.contains_key(&version) || self.cache.crashes(version).is_some() {
                continue;
            }
            // A version of another pointer is left out, as it would be with the registry.
            if let Ok(servable) = self.open(&before, &versions, version) {
                versions.insert(version, servable);
            }
        }
        let mut labels = last.labels.clone();
        labels.retain(|_, version| versions.contains_key(version));
        Ok(OpenVersions {
            current: Some(last.current),
            labels,
            versions,
            ..OpenVersions::default()
        })
    }

    /// Returns the pointers that the traffic of the model needs.
    pub(super) fn traffic_labels(&self) -> Vec<String> {
        let traffic = self.config.traffic.get(self.model.name());
        let shares = traffic.into_iter().flat_map(|traffic| [&traffic.canary, &traffic.shadow]);
        shares.flatten().map(|share| share.label.clone()).collect()
    }
}
