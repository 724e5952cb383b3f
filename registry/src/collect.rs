//! Garbage collection: removes files that no version in use needs, and leftovers of killed
//! processes.
//!
//! Manifests and the logs of pointers are small and are never removed. So a number is never used
//! twice, and the history stays readable. A collection removes the rows, parameters and graphs that
//! only versions out of use need.
//!
//! These versions are in use: the versions that a pointer points to, the pinned versions, the
//! versions that a running server has leased, and the newest versions. All ancestors of a version
//! in use are in use too.
//!
//! # Crash consistency
//! A publisher writes files before the manifest that names them. So a collection keeps files that
//! are younger than [`Retention::grace`], and a publisher writes existing files again. A collection
//! that is killed has removed only files that no version in use needs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{Model, check_name};
use crate::version::VersionId;

/// The largest number of bytes of a lease.
const LEASE_BYTES: u64 = 1 << 20;

/// The rules by which a garbage collection keeps versions and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The number of the newest versions that are in use.
    pub keep: usize,
    /// The age below which a file is never removed.
    pub grace: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: 16, grace: Duration::from_secs(3600) }
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
        let mut sum = Collected::default();
        let needed = self.needed_files(retention.keep, &mut sum)?;
        sum.kept_files = needed.len() as u64;
        let folder = self.files_folder();
        for shelf in self.store.list(&folder)?.folders {
            let shelf = format!("{folder}/{shelf}");
            for object in self.store.list(&shelf)?.objects {
                let age = self.now().duration_since(object.modified).unwrap_or_default();
                if needed.contains(&object.name) || age < retention.grace {
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

    fn needed_files(&self, keep: usize, sum: &mut Collected) -> Result<BTreeSet<String>> {
        let mut roots: BTreeSet<VersionId> = self.page(None, keep.max(1))?.into_iter().collect();
        for pointer in self.pointers()? {
            match self.pointer(&pointer) {
                Ok(moved) => _ = roots.insert(moved.to.version),
                // An empty folder is no pointer.
                Err(Error::NoPointer { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        roots.extend(self.pins()?);
        roots.extend(self.leased_versions()?);
        let mut versions = BTreeSet::new();
        let mut files = BTreeSet::new();
        // The newest comes first, so that the shared part of a chain is walked once.
        for root in roots.into_iter().rev() {
            let mut next = Some(root);
            while let Some(version) = next.filter(|&version| versions.insert(version)) {
                let manifest = self.version(version)?;
                files.extend(manifest.files().into_iter().map(|(name, _)| name));
                next = manifest.parent.map(|parent| parent.version);
            }
        }
        sum.kept_versions = versions.len() as u64;
        Ok(files)
    }
}
