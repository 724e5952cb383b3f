//! The memory of a process that collects again and again: the versions that were in use, and the
//! files that each of them needs.
//!
//! Manifests never change, so that a manifest is read once. In memory are about 300 bytes for each
//! version that stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::Result;
use crate::reference::{Link, VersionId};
use crate::version::VersionManifest;

/// The versions that earlier collections found in use, and their files.
#[derive(Debug, Default)]
pub struct CollectMemory {
    versions: BTreeMap<VersionId, Known>,
    /// For each file, the number of versions that need it.
    uses: HashMap<Arc<str>, u32>,
    /// The files that no version needs, and that were too young to be removed.
    pub(crate) unneeded: BTreeSet<Arc<str>>,
    /// The number of the first move of each pointer that a collection has left.
    pub(crate) first_moves: BTreeMap<String, u64>,
    /// The number of collections with this memory.
    pub(crate) turns: u64,
}

/// A version of the memory.
#[derive(Debug)]
struct Known {
    chain: String,
    parent: Option<VersionId>,
    published: SystemTime,
    files: Vec<Arc<str>>,
}

impl CollectMemory {
    /// Adds a version, unless the memory has it.
    pub(crate) fn add(&mut self, manifest: &VersionManifest) {
        if self.versions.contains_key(&manifest.version) {
            return;
        }
        let files: BTreeSet<String> = manifest.files().into_iter().map(|(name, _)| name).collect();
        let mut known = Vec::with_capacity(files.len());
        for name in files {
            let name = match self.uses.get_key_value(&name[..]) {
                Some((name, _)) => name.clone(),
                None => Arc::from(name),
            };
            *self.uses.entry(name.clone()).or_default() += 1;
            self.unneeded.remove(&name);
            known.push(name);
        }
        let known = Known {
            chain: manifest.chain.clone(),
            parent: manifest.parent.as_ref().map(|parent| parent.version),
            published: manifest.published(),
            files: known,
        };
        self.versions.insert(manifest.version, known);
    }

    /// Removes a version. The files that no other version needs become unneeded. Returns the
    /// reference to the version.
    pub(crate) fn remove(&mut self, version: VersionId) -> Option<Link> {
        let known = self.versions.remove(&version)?;
        for name in known.files {
            let uses = self.uses.get_mut(&name).map_or(0, |uses| {
                *uses = uses.saturating_sub(1);
                *uses
            });
            if uses == 0 {
                self.uses.remove(&name);
                self.unneeded.insert(name);
            }
        }
        Some(Link { version, chain: known.chain })
    }

    /// Removes all versions but these. Files are forgotten with them, because the caller looks at
    /// every file.
    pub(crate) fn retain(&mut self, versions: &BTreeSet<VersionId>) {
        let gone: Vec<VersionId> =
            self.versions.keys().copied().filter(|version| !versions.contains(version)).collect();
        for version in gone {
            self.remove(version);
        }
        self.unneeded.clear();
    }

    /// Returns the roots and all their ancestors. `read` reads a version that the memory does not
    /// have.
    pub(crate) fn close(
        &mut self,
        roots: BTreeSet<VersionId>,
        read: impl Fn(VersionId) -> Result<VersionManifest>,
    ) -> Result<BTreeSet<VersionId>> {
        let mut in_use = BTreeSet::new();
        // The newest comes first, so that the shared part of a chain is walked once.
        for root in roots.into_iter().rev() {
            let mut next = Some(root);
            while let Some(version) = next.filter(|&version| in_use.insert(version)) {
                if !self.versions.contains_key(&version) {
                    self.add(&read(version)?);
                }
                next = self.versions.get(&version).and_then(|known| known.parent);
            }
        }
        Ok(in_use)
    }

    /// Returns the newest `number` versions, and those whose time of publication `is_young`
    /// accepts.
    pub(crate) fn newest(
        &self,
        number: usize,
        is_young: impl Fn(SystemTime) -> bool,
    ) -> BTreeSet<VersionId> {
        let newest = self.versions.keys().rev().take(number);
        let young = self.versions.iter().filter(|(_, known)| is_young(known.published));
        newest.chain(young.map(|(version, _)| version)).copied().collect()
    }

    /// Returns whether the memory has a version.
    pub(crate) fn has(&self, version: VersionId) -> bool {
        self.versions.contains_key(&version)
    }

    /// Returns the newest version.
    pub(crate) fn last(&self) -> Option<VersionId> {
        self.versions.last_key_value().map(|(version, _)| *version)
    }

    /// Returns the versions that are neither in use, nor the newest, nor accepted by `is_young`.
    pub(crate) fn unused(
        &self,
        in_use: &BTreeSet<VersionId>,
        is_young: impl Fn(SystemTime) -> bool,
    ) -> Vec<VersionId> {
        let unused = self.versions.iter().filter(|(version, known)| {
            !in_use.contains(version) && Some(**version) < self.last() && !is_young(known.published)
        });
        unused.map(|(version, _)| *version).collect()
    }

    /// Returns whether a version of the memory needs a file.
    pub(crate) fn needs(&self, name: &str) -> bool {
        self.uses.contains_key(name)
    }

    /// Returns the number of files that the versions need.
    pub(crate) fn count_files(&self) -> u64 {
        self.uses.len() as u64
    }
}
