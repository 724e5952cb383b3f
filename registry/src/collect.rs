//! Garbage collection: files that no version in use needs, and what killed writers left.
//!
//! Manifests and the logs of pointers are small and stay for ever: a number is never used twice, and the
//! history can be read. What goes is files: rows, parameters, graphs that only versions out of use name.
//!
//! In use are the versions that a pointer stands on, those that are pinned, those that a running server has
//! leased, and the newest few; each with everything it stands on.
//!
//! # Crash consistency
//! A file that a publisher has written and not yet named by a manifest is young: files are left alone for
//! [`Retention::grace`] after they were written, and a publisher writes a file that is there already
//! anew. Killed at any moment, a collection has removed some of what nobody needs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{Model, check_name};
use crate::version::VersionId;

/// What garbage collection leaves alone, beside what is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The newest versions, this many.
    pub keep: usize,
    /// Files younger than this.
    pub grace: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: 16, grace: Duration::from_secs(3600) }
    }
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Versions that are in use.
    pub kept_versions: u64,
    /// Files that they need.
    pub kept_files: u64,
    /// Files that were removed.
    pub removed_files: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Unfinished writes that were removed.
    pub leftovers: u64,
}

/// Versions that a running server has open, until it says so again or the time is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The versions.
    pub versions: Vec<VersionId>,
    /// When it ends, in milliseconds since 1970.
    pub until_ms: u64,
}

impl Model {
    /// Removes files that no version in use needs. With `dry_run` it only counts.
    ///
    /// # Errors
    /// A chain in use that does not hold: nothing is removed then. A store that refuses.
    pub fn collect(&self, retention: Retention, dry_run: bool) -> Result<Collected> {
        let mut sum = Collected::default();
        let needed = self.needed_files(retention.keep, &mut sum)?;
        sum.kept_files = needed.len() as u64;
        let folder = format!("{}/files", self.name);
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

    /// Keeps a version's files until it is unpinned.
    ///
    /// # Errors
    /// A version that is not there.
    pub fn pin(&self, version: VersionId, by: &str) -> Result<()> {
        self.chain(version)?;
        let pin = serde_json::json!({ "by": by, "at_ms": self.now_ms() });
        Ok(self.store.put(&self.pin_object(version), pin.to_string().into())?)
    }

    /// Lets a version go; fine if it was not pinned.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn unpin(&self, version: VersionId) -> Result<()> {
        Ok(self.store.delete(&self.pin_object(version))?)
    }

    /// The versions that are pinned, in ascending order.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn pins(&self) -> Result<Vec<VersionId>> {
        let listing = self.store.list(&format!("{}/pins", self.name))?;
        let version = |name: &str| name.strip_suffix(".json")?.parse().ok();
        let mut pins: Vec<VersionId> =
            listing.objects.iter().filter_map(|object| version(&object.name)).collect();
        pins.sort_unstable();
        Ok(pins)
    }

    /// Says for a server which versions it has open, for the next `time`.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn lease(&self, server: &str, versions: Vec<VersionId>, time: Duration) -> Result<()> {
        check_name("server", server)?;
        let until_ms =
            self.now_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let lease = serde_json::to_vec(&Lease { versions, until_ms })
            .expect("a lease is plain data, which JSON can always hold");
        Ok(self.store.put(&format!("{}/leases/{server}.json", self.name), lease.into())?)
    }

    /// Ends a server's lease.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn end_lease(&self, server: &str) -> Result<()> {
        check_name("server", server)?;
        Ok(self.store.delete(&format!("{}/leases/{server}.json", self.name))?)
    }

    /// Versions that running servers have open, in ascending order.
    ///
    /// # Errors
    /// A lease that cannot be read.
    pub fn leased(&self) -> Result<Vec<VersionId>> {
        let folder = format!("{}/leases", self.name);
        let mut leased = BTreeSet::new();
        for object in self.store.list(&folder)?.objects {
            let path = format!("{folder}/{}", object.name);
            let Some(bytes) = self.store.get(&path)? else { continue };
            let lease: Lease = serde_json::from_slice(&bytes).map_err(|e| Error::Manifest {
                path,
                reason: format!("the lease does not parse: {e}"),
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
            roots.insert(self.pointer(&pointer)?.to.version);
        }
        roots.extend(self.pins()?);
        roots.extend(self.leased()?);
        let mut versions = BTreeSet::new();
        let mut files = BTreeSet::new();
        // From the newest: what a chain shares with one that was walked before is known.
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
