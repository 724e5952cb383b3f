//! The removal of files that no version in use needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zillion_device::DeviceError;
use zillion_device::durable::Op;

use super::claim::{Others, SLACK};
use super::{Cache, LONGEST_WRITE, list_all_names, list_names, run_name};
use crate::error::Result;
use crate::reference::{VersionFile, VersionId};
use crate::stack::stack;
use crate::version::VersionManifest;

type Chain = [Arc<VersionManifest>];

/// The merges and files of some chains.
#[derive(Clone, Debug, Default)]
pub(super) struct Needed {
    pub(super) merges: BTreeSet<String>,
    /// The sizes of the files by name.
    pub(super) files: BTreeMap<String, u64>,
}

impl Needed {
    fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    fn extend(&mut self, other: Self) {
        self.merges.extend(other.merges);
        self.files.extend(other.files);
    }
}

impl Cache {
    /// Closes the layers that are not used elsewhere, and removes the merges and files that neither
    /// `chains` nor the other processes need. Returns the number of freed bytes.
    ///
    /// # Errors
    /// Returns an error if a folder cannot be listed or a file cannot be removed.
    pub fn trim(&mut self, chains: &[&Chain]) -> Result<u64> {
        self.trim_to(chains, &[], None)
    }

    /// Trims the cache to `budget` bytes: keeps the files of `chains` in any case, and those of
    /// `more`, the most important first, as long as all kept files fit the budget. Without a
    /// budget, all of `more` are kept. Returns the number of freed bytes. Does nothing while
    /// another process trims the cache.
    ///
    /// # Errors
    /// Returns the errors of [`Cache::trim`].
    pub fn trim_to(
        &mut self,
        chains: &[&Chain],
        more: &[&Chain],
        budget: Option<u64>,
    ) -> Result<u64> {
        self.open.retain(|_, layer| layer.is_shared());
        let Some(turn) = self.claims.take_turn()? else { return Ok(0) };
        let Some(others) = self.claims.others(&turn)? else { return Ok(0) };
        let Some(claimed) = self.claimed_chains(&others) else { return Ok(0) };
        let mut kept: Vec<&Chain> = chains.to_vec();
        kept.extend(claimed.iter().map(Vec::as_slice));
        let mut needed = Needed::default();
        for chain in &kept {
            needed.extend(self.needed(chain)?);
        }
        for chain in more {
            let mut with = needed.clone();
            with.extend(self.needed(chain)?);
            if budget.is_some_and(|budget| with.bytes() > budget) {
                break;
            }
            needed = with;
            kept.push(chain);
        }
        let oldest = kept.iter().filter_map(|chain| chain.first()).map(|base| base.version).min();
        self.remove_unneeded(&needed, oldest, &others)
    }

    /// Returns an upper bound of the bytes that loading `chain` adds to the cache: files that are
    /// fetched, and merges that are written.
    ///
    /// # Errors
    /// Returns an error if a merge cannot be read.
    pub fn missing_bytes(&self, chain: &Chain) -> Result<u64> {
        let rows: Vec<u64> = chain.iter().map(|version| version.layer.rows()).collect();
        let mut missing = 0u64;
        for run in stack(&rows) {
            let merge = self.merges_dir.join(format!("{}.json", run_name(chain, &run)));
            if run.len() > 1 && self.read_merge(&merge)?.is_some() {
                continue;
            }
            for version in &chain[run.clone()] {
                for (name, file) in version.layer.files() {
                    let is_there = self.has(&name, file.bytes);
                    let fetched = if is_there { 0 } else { file.bytes };
                    let merged = if run.len() > 1 { file.bytes } else { 0 };
                    missing = missing.saturating_add(fetched).saturating_add(merged);
                }
            }
        }
        let mut own = chain.last().map(|newest| newest.own_files()).unwrap_or_default();
        // A difference of items needs the files before it.
        let items = VersionManifest::item_files(chain).into_iter().skip(1);
        own.extend(items.map(VersionFile::entry));
        own.sort_by(|(a, _), (b, _)| a.cmp(b));
        own.dedup();
        let own = own.into_iter().filter(|(name, file)| !self.has(name, file.bytes));
        Ok(own.fold(missing, |sum, (_, file)| sum.saturating_add(file.bytes)))
    }

    /// Returns the merges and files that a load of `chain` opens, now or after its merges.
    pub(super) fn needed(&self, chain: &Chain) -> Result<Needed> {
        let mut needed = Needed::default();
        let rows: Vec<u64> = chain.iter().map(|version| version.layer.rows()).collect();
        let mut is_merged = true;
        for run in stack(&rows) {
            if run.len() > 1 {
                is_merged &= self.need_merge(chain, &run, &mut needed)?;
            } else {
                let files = chain[run.start].layer.files().into_iter();
                needed.files.extend(files.map(|(name, file)| (name, file.bytes)));
                let own = chain[run.start].own_files();
                needed.files.extend(own.into_iter().map(|(name, file)| (name, file.bytes)));
            }
        }
        if !is_merged && let Some(cover) = self.cover(chain)? {
            for run in cover {
                if run.len() > 1 {
                    self.need_merge(chain, &run, &mut needed)?;
                    continue;
                }
                // A process that does not merge later has fetched none of these files.
                let files = chain[run.start].layer.files().into_iter();
                let files = files.map(|(name, file)| (name, file.bytes));
                needed.files.extend(files.filter(|(name, bytes)| self.has(name, *bytes)));
            }
        }
        if let Some(newest) = chain.last() {
            let own = newest.own_files();
            needed.files.extend(own.into_iter().map(|(name, file)| (name, file.bytes)));
        }
        let items = VersionManifest::item_files(chain).into_iter();
        needed.files.extend(items.map(|file| (file.name(), file.bytes)));
        // Without the registry, the manifests of a chain are read with their frames.
        let frames = chain.iter().filter_map(|version| version.frame_file.as_ref());
        let frames = frames.map(|file| (file.name(), file.bytes));
        needed.files.extend(frames.filter(|(name, bytes)| self.has(name, *bytes)));
        Ok(needed)
    }

    /// Adds a merge and its files. Returns whether the merge exists.
    fn need_merge(&self, chain: &Chain, run: &Range<usize>, needed: &mut Needed) -> Result<bool> {
        let name = format!("{}.json", run_name(chain, run));
        let merge = self.read_merge(&self.merges_dir.join(&name))?;
        needed.merges.insert(name);
        let files = merge.iter().flat_map(|merge| merge.files());
        needed.files.extend(files.map(|file| (file.name(), file.bytes)));
        Ok(merge.is_some())
    }

    /// Returns the chains of the versions that other processes have open, or `None` if a manifest
    /// is not known here.
    fn claimed_chains(&self, others: &Others) -> Option<Vec<Vec<Arc<VersionManifest>>>> {
        let chain = |&version: &VersionId| {
            let mut chain = vec![self.known_manifest(version)?];
            while let Some(parent) = chain.last().and_then(|child| child.parent.clone()) {
                let child = chain.last()?.version;
                let parent = self.known_manifest(parent.version)?;
                chain.push(Some(parent).filter(|parent| parent.version < child)?);
            }
            chain.reverse();
            Some(chain)
        };
        others.versions.iter().map(chain).collect()
    }

    fn remove_unneeded(
        &mut self,
        needed: &Needed,
        oldest: Option<VersionId>,
        others: &Others,
    ) -> Result<u64> {
        self.scrubbed.retain(|name| needed.files.contains_key(name));
        self.manifests.retain(|&version, _| oldest.is_some_and(|oldest| version >= oldest));
        // The files of a merge that runs get their names before the merge has its entry.
        let own = self.merging_since.map(|since| since.checked_sub(SLACK).unwrap_or(UNIX_EPOCH));
        let since = [others.since, own].into_iter().flatten().min();
        let is_young = |path: &Path| {
            let changed = fs::metadata(path).ok().and_then(|m| changed_at(&m));
            since.zip(changed).is_some_and(|(since, changed)| changed >= since)
        };
        let mut freed = self.sweep()?;
        // An entry leaves before its files, so that no merge is found without them.
        let merges = list_names(&self.merges_dir)?.into_iter();
        self.remove_all(&self.merges_dir, merges, |name, path| {
            !needed.merges.contains(name) && !is_young(path)
        })?;
        let files = list_names(&self.files_dir)?.into_iter();
        freed += self.remove_all(&self.files_dir, files, |name, path| {
            !needed.files.contains_key(name) && !is_young(path)
        })?;
        let manifests = list_names(&self.manifests_dir)?.into_iter();
        self.remove_all(&self.manifests_dir, manifests, |name, path| {
            let version = name.strip_suffix(".json").and_then(|name| name.parse().ok());
            let is_old =
                version.is_none_or(|version| oldest.is_none_or(|o| VersionId(version) < o));
            is_old && !is_young(path)
        })?;
        Ok(freed)
    }

    /// Removes the files of a folder that `is_unneeded` selects, and syncs the folder once. Returns
    /// the number of freed bytes.
    fn remove_all(
        &self,
        folder: &Path,
        names: impl Iterator<Item = String>,
        is_unneeded: impl Fn(&str, &Path) -> bool,
    ) -> Result<u64> {
        let mut freed = 0;
        let mut is_changed = false;
        for name in names {
            let path = folder.join(&name);
            if is_unneeded(&name, &path) {
                freed += fs::metadata(&path).map_or(0, |metadata| metadata.len());
                self.unlink(&path)?;
                is_changed = true;
            }
        }
        if is_changed {
            self.files.sync_dir(folder)?;
        }
        Ok(freed)
    }

    /// Removes a file without a sync of its folder. A file that is gone already is not an error.
    pub(super) fn unlink(&self, path: &Path) -> Result<()> {
        let removed =
            self.files.run_failpoints(Op::Remove, path).and_then(|()| fs::remove_file(path));
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(DeviceError::file("remove", path, error).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes the unfinished files of processes that were killed. Only old ones are removed,
    /// because another process may be writing a new one.
    fn sweep(&self) -> Result<u64> {
        let mut freed = 0;
        let is_unfinished = |name: &String| name.starts_with('.') && name.ends_with(".tmp");
        for name in list_all_names(&self.files_dir)?.into_iter().filter(is_unfinished) {
            let path = self.files_dir.join(name);
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > LONGEST_WRITE) {
                self.unlink(&path)?;
                freed += metadata.len();
            }
        }
        Ok(freed)
    }
}

/// Returns the time when a file got its name or its last change. The time of the last write is not
/// enough, because a link has that of the registry's file.
fn changed_at(metadata: &fs::Metadata) -> Option<SystemTime> {
    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let nanos = u32::try_from(metadata.ctime_nsec()).ok()?;
    Some(UNIX_EPOCH + Duration::new(seconds, nanos))
}
