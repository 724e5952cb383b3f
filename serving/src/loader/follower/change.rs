//! The change to other versions: which ones are opened, and what is published if some of them
//! cannot be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zillion_registry::VersionId;
use zillion_scorer::{Error, Servable};

use super::{Follower, OpenVersions, Versions};
use crate::config::Follow;

/// The versions that were opened, and the problems of the others.
#[derive(Debug, Default)]
struct Opened {
    versions: Versions,
    /// The error of the current version.
    failed: Option<Error>,
    /// The first problem of a version that is not the current one.
    first_problem: Option<String>,
}

impl Follower {
    /// Opens and publishes the versions that `labels` and `current` name. If the current version
    /// cannot be loaded, the versions of the other pointers change all the same.
    pub(super) fn change(
        &mut self,
        follow: &Follow,
        before: &Arc<OpenVersions>,
        current: Option<VersionId>,
        mut labels: BTreeMap<String, VersionId>,
        is_held: bool,
    ) -> Result<(), Error> {
        let wanted = self.choose_versions(before, current, &labels);
        // The lease comes first, so that files are not collected while they are being opened.
        self.lease(wanted.iter().copied().collect());
        self.claim(before.versions.keys().chain(&wanted).copied().collect(), true);
        let Opened { mut versions, failed, first_problem } =
            self.open_all(before, &wanted, current);
        self.distrusted.retain(|version| !versions.contains_key(version));
        let mut answers = current;
        if failed.is_some() {
            answers = before.current;
            let kept = answers.and_then(|version| before.versions.get_key_value(&version));
            versions.extend(kept.map(|(version, servable)| (*version, servable.clone())));
            self.keep_followed_label(follow, before, &mut labels);
        }
        labels.retain(|_, version| versions.contains_key(version));
        let mut open =
            OpenVersions { current: answers, labels, versions, ..OpenVersions::default() };
        if failed.is_some() || is_held {
            open.problem.clone_from(&before.problem);
            open.problem_kind = before.problem_kind;
        }
        if failed.is_none() {
            self.distrusted.clear();
        }
        self.publish(before, open.clone());
        if let Some(problem) = first_problem {
            tracing::warn!(model = self.model.name(), "{problem}");
        }
        self.renew_lease(&open, true);
        if let Some(error) = failed {
            return Err(error);
        }
        self.remember(follow, &open);
        if before.current != answers
            && let Some(servable) = answers.and_then(|version| open.versions.get(&version))
        {
            self.prove(servable.manifest());
        }
        self.trim();
        Ok(())
    }

    /// Returns whether the pointers name another version than the open one with the same number.
    pub(super) fn is_replaced(&self, open: &OpenVersions) -> bool {
        let named = open.current.iter().chain(open.labels.values());
        named.into_iter().any(|version| {
            open.versions.get(version).is_some_and(|servable| !self.is_named(servable))
        })
    }

    /// Returns whether a version has the hash that the pointers name for its number.
    pub(super) fn is_named(&self, servable: &Servable) -> bool {
        let named = self.chains.get(&servable.version());
        named.is_none_or(|chain| *chain == servable.manifest().chain)
    }

    /// Lets the label of the followed pointer name the version that answers, while its new version
    /// does not.
    fn keep_followed_label(
        &self,
        follow: &Follow,
        before: &OpenVersions,
        labels: &mut BTreeMap<String, VersionId>,
    ) {
        let Follow::Pointer(pointer) = follow else { return };
        match before.labels.get(pointer) {
            Some(&version) => _ = labels.insert(pointer.clone(), version),
            None => _ = labels.remove(pointer),
        }
    }

    /// Chooses the versions to keep open: the current one, those of pointers, and recent ones.
    fn choose_versions(
        &mut self,
        before: &OpenVersions,
        current: Option<VersionId>,
        labels: &BTreeMap<String, VersionId>,
    ) -> BTreeSet<VersionId> {
        if let Some(current) = current.filter(|current| self.recent.last() != Some(current)) {
            self.recent.retain(|&version| version != current);
            self.recent.push(current);
            let surplus = self.recent.len().saturating_sub(self.config.retain_cached + 1);
            self.recent.drain(..surplus);
        }
        let open_ones = self.recent.len().saturating_sub(self.config.retain + 1);
        let stay = self.recent[open_ones..].iter().filter(|&v| before.versions.contains_key(v));
        labels.values().chain(stay).copied().chain(current).collect()
    }

    /// Opens the wanted versions, the current one first.
    fn open_all(
        &mut self,
        before: &OpenVersions,
        wanted: &BTreeSet<VersionId>,
        current: Option<VersionId>,
    ) -> Opened {
        let mut opened = Opened::default();
        let others = wanted.iter().rev().copied().filter(|&version| Some(version) != current);
        for version in current.into_iter().chain(others) {
            let is_known = self.refusals.has(version);
            let error = match self.open(before, &opened.versions, version) {
                Ok(servable) => {
                    opened.versions.insert(version, servable);
                    continue;
                }
                Err(error) => error,
            };
            // A version that cannot be read must not stand in the way of others.
            self.recent.retain(|&recent| recent != version);
            if Some(version) == current {
                opened.failed = Some(error);
                continue;
            }
            // An error of another pointer or of an old version does not keep the current version
            // out.
            self.metrics.loading.record_failure(self.model.name(), &error);
            if !is_known {
                self.record_refusal(&error);
            }
            opened.first_problem.get_or_insert(error.to_string());
        }
        opened
    }
}
