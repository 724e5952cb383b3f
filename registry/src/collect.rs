//! Garbage collection: removes files that no version in use needs, and leftovers of killed
//! processes.
//!
//! A collection removes the rows, parameters and graphs that only versions out of use need.
//! Manifests and the logs of pointers are small, and stay unless [`Retention::history`] says
//! otherwise. The newest version and the last move of a pointer always stay, so that no number is
//! used twice.
//!
//! These versions are in use: the versions that a pointer points to or pointed to a short time ago,
//! the pinned versions, the versions that a running server has leased, the newest versions, and the
//! young ones. All ancestors of a version in use are in use too.
//!
//! A process that collects again and again keeps a [`CollectMemory`]. A collection then costs time
//! in proportion to the versions that came and went since the last one, and not to those that stay
//! (see [`incremental`](crate::incremental)).
//!
//! # Crash consistency
//! A publisher writes files before the manifest that names them. So a collection keeps files that
//! are younger than [`Retention::grace`], and a publisher writes existing files again. A collection
//! that is killed has removed only objects that no version in use needs. It removes the manifest of
//! a version before its files, so that no manifest names files that a later collection leaves.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::collect_memory::CollectMemory;
use crate::error::{Error, Result};
use crate::model::{Model, check_name};
use crate::pointer::PointerMove;
use crate::reference::VersionId;

/// The largest number of bytes of a lease.
const LEASE_BYTES: u64 = 1 << 20;

/// The rules by which a garbage collection keeps versions and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The number of the newest versions that are in use.
    pub keep: usize,
    /// The age below which a version is in use, even if it is not one of the newest.
    pub keep_for: Duration,
    /// The age below which a file is never removed.
    pub grace: Duration,
    /// Whether the manifests of versions out of use are removed too, with the notes that servers
    /// have served them, and the moves of pointers, of which the newest `keep` stay. Manifests and
    /// moves below the age of `keep_for` or of `grace` stay.
    pub history: bool,
}

impl Default for Retention {
    fn default() -> Self {
        let (keep_for, grace) = (Duration::ZERO, Duration::from_secs(3600));
        Self { keep: 16, keep_for, grace, history: false }
    }
}

/// The result of a garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The number of versions in use.
    pub kept_versions: u64,
    /// The number of files that these versions need.
    pub kept_files: u64,
    /// The number of files that were removed, or that would be removed in a dry run.
    pub removed_files: u64,
    /// The number of bytes of the removed files.
    pub removed_bytes: u64,
    /// The number of manifests that were removed, or that would be removed in a dry run.
    pub removed_manifests: u64,
    /// The number of moves of pointers that were removed, or that would be removed in a dry run.
    pub removed_moves: u64,
    /// The number of removed unfinished files of killed writers.
    pub leftovers: u64,
}

/// The versions that a running server has loaded. The server renews its lease before the lease
/// ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The versions that the server has loaded.
    pub versions: Vec<VersionId>,
    /// The end of the lease, in milliseconds since 1970.
    pub until_ms: u64,
}

impl Model {
    /// Removes the files that no version in use needs. If `dry_run` is true, only counts them.
    ///
    /// # Errors
    /// Returns an error if the chain of a version in use is broken, or if the store fails. If a
    /// chain is broken, nothing is removed.
    pub fn collect(&self, retention: Retention, dry_run: bool) -> Result<Collected> {
        self.collect_all(&mut CollectMemory::default(), retention, dry_run)
    }

    /// Removes what [`Model::collect`] removes. Looks at every object of the model, and reads only
    /// the manifests that `memory` does not have. Remembers the versions in use.
    pub(crate) fn collect_all(
        &self,
        memory: &mut CollectMemory,
        retention: Retention,
        dry_run: bool,
    ) -> Result<Collected> {
        let mut sum = Collected::default();
        let roots = self.find_roots(memory, &retention, Look::Lists)?;
        let in_use = memory.close(roots, |version| self.version(version))?;
        memory.retain(&in_use);
        sum.kept_versions = in_use.len() as u64;
        sum.kept_files = memory.count_files();
        if retention.history {
            self.collect_history(&retention, &in_use, dry_run, &mut sum)?;
        }
        let folder = self.files_folder();
        for shelf in self.store.list(&folder)?.folders {
            let shelf = format!("{folder}/{shelf}");
            for object in self.store.list(&shelf)?.objects {
                let age = self.now().duration_since(object.modified).unwrap_or_default();
                if memory.needs(&object.name) || age < retention.grace {
                    continue;
                }
                if !dry_run {
                    self.store.delete(&format!("{shelf}/{}", object.name))?;
                }
                sum.removed_files += 1;
                sum.removed_bytes += object.bytes;
            }
            if !dry_run {
                sum.leftovers += self.store.sweep(&shelf, retention.grace)?;
            }
        }
        if !dry_run {
            sum.leftovers += self.versions.sweep(retention.grace)?;
        }
        Ok(sum)
    }

    /// Pins a version: its files are kept until it is unpinned.
    ///
    /// # Errors
    /// Returns an error if the version does not exist.
    pub fn pin(&self, version: VersionId, by: &str) -> Result<()> {
        self.chain(version)?;
        let pin = serde_json::json!({ "by": by, "at_ms": self.now_ms() });
        Ok(self.store.put(&self.pin_object(version), pin.to_string().into())?)
    }

    /// Removes the pin of a version. Does nothing if the version is not pinned.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn unpin(&self, version: VersionId) -> Result<()> {
        Ok(self.store.delete(&self.pin_object(version))?)
    }

    /// Returns the pinned versions in ascending order.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn pins(&self) -> Result<Vec<VersionId>> {
        let listing = self.store.list(&format!("{}/pins", self.name))?;
        let version = |name: &str| name.strip_suffix(".json")?.parse().ok();
        let mut pins: Vec<VersionId> =
            listing.objects.iter().filter_map(|object| version(&object.name)).collect();
        pins.sort_unstable();
        Ok(pins)
    }

    /// Writes a lease for the versions that a server has loaded. The lease ends after `time`.
    ///
    /// # Errors
    /// Returns an error if the name of the server is not allowed, or if the store fails.
    pub fn lease(&self, server: &str, versions: Vec<VersionId>, time: Duration) -> Result<()> {
        check_name("server", server)?;
        let until_ms =
            self.now_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let lease = serde_json::to_vec(&Lease { versions, until_ms })
            .expect("a lease is plain data, which JSON can always hold");
        Ok(self.store.put(&format!("{}/leases/{server}.json", self.name), lease.into())?)
    }

    /// Removes the lease of a server, if there is one.
    ///
    /// # Errors
    /// Returns an error if the name of the server is not allowed, or if the store fails.
    pub fn end_lease(&self, server: &str) -> Result<()> {
        check_name("server", server)?;
        Ok(self.store.delete(&format!("{}/leases/{server}.json", self.name))?)
    }

    /// Returns the versions in all leases that have not ended, in ascending order.
    ///
    /// # Errors
    /// Returns an error if a lease cannot be read.
    pub fn leased_versions(&self) -> Result<Vec<VersionId>> {
        let folder = format!("{}/leases", self.name);
        let mut leased = BTreeSet::new();
        for object in self.store.list(&folder)?.objects {
            let path = format!("{folder}/{}", object.name);
            let Some(bytes) = self.store.get_at_most(&path, LEASE_BYTES)? else { continue };
            let lease: Lease = serde_json::from_slice(&bytes).map_err(|e| Error::Manifest {
                path,
                reason: format!("the lease cannot be parsed: {e}"),
            })?;
            if lease.until_ms >= self.now_ms() {
                leased.extend(lease.versions);
            }
        }
        Ok(leased.into_iter().collect())
    }

    fn pin_object(&self, version: VersionId) -> String {
        format!("{}/pins/{:020}.json", self.name, version.0)
    }

    /// Removes the manifests and the proofs of versions that are not in use, and old moves.
    fn collect_history(
        &self,
        retention: &Retention,
        in_use: &BTreeSet<VersionId>,
        dry_run: bool,
        sum: &mut Collected,
    ) -> Result<()> {
        let age = retention.grace.max(retention.keep_for);
        let now = self.now();
        let is_old = |at: SystemTime| now.duration_since(at).unwrap_or_default() >= age;
        let all = self.versions.all()?;
        // Versions that were published since the look for versions in use are newer than these.
        let newest = in_use.last().copied();
        let is_unused = |number: u64| {
            let version = VersionId(number);
            Some(version) < newest && !in_use.contains(&version)
        };
        let old: Vec<u64> = all
            .iter()
            .filter(|(number, at)| is_unused(*number) && is_old(*at))
            .map(|(number, _)| *number)
            .collect();
        sum.removed_manifests = old.len() as u64;
        for pointer in self.pointers()? {
            let log = self.pointer_log(&pointer)?;
            sum.removed_moves += log.remove_old(retention.keep, age, now, dry_run)?;
        }
        if dry_run {
            return Ok(());
        }
        self.versions.remove(&old)?;
        let left: BTreeSet<u64> = self.versions.all()?.iter().map(|(number, _)| *number).collect();
        self.remove_proofs(|version| !left.contains(&version.0), is_old)
    }

    /// Finds the versions that are in use for a reason of their own, and not as an ancestor.
    pub(crate) fn find_roots(
        &self,
        memory: &CollectMemory,
        retention: &Retention,
        look: Look,
    ) -> Result<BTreeSet<VersionId>> {
        let now = self.now();
        let is_young =
            |at: SystemTime| now.duration_since(at).unwrap_or_default() < retention.keep_for;
        let mut roots = match look {
            Look::Lists => {
                let mut roots: BTreeSet<VersionId> =
                    self.page(None, retention.keep.max(1))?.into_iter().collect();
                if !retention.keep_for.is_zero() {
                    let young = self.versions.all()?.into_iter().filter(|(_, at)| is_young(*at));
                    roots.extend(young.map(|(number, _)| VersionId(number)));
                }
                roots
            }
            Look::Remembers => memory.newest(retention.keep.max(1), is_young),
        };
        for pointer in self.pointers()? {
            match self.pointer(&pointer) {
                Ok(moved) => {
                    roots.insert(moved.to.version);
                    roots.extend(self.left_lately(&moved, retention.grace, &roots)?);
                }
                // An empty folder is no pointer.
                Err(Error::NoPointer { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        roots.extend(self.pins()?);
        roots.extend(self.leased_versions()?);
        Ok(roots)
    }

    /// Returns the version that a pointer has left with its last move, if that was a short time
    /// ago: a server that has no lease yet may be loading it.
    pub(crate) fn left_lately(
        &self,
        last: &PointerMove,
        grace: Duration,
        roots: &BTreeSet<VersionId>,
    ) -> Result<Option<VersionId>> {
        let age = u128::from(self.now_ms().saturating_sub(last.at_ms));
        let left = last.from.filter(|left| age < grace.as_millis() && !roots.contains(left));
        let Some(left) = left else { return Ok(None) };
        // The version may have been removed with a shorter grace.
        match self.chain(left) {
            Ok(_) => Ok(Some(left)),
            Err(Error::NoVersion { .. } | Error::Chain { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The way in which the newest and the young versions are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The folders of the registry are listed.
    Lists,
    /// The memory has all versions that the registry has.
    Remembers,
}
