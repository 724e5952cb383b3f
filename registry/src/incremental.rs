//! The collection that looks only at what is new since the last one.
//!
//! A publisher that keeps an hour of versions, one a second, would otherwise read thousands of
//! manifests and list all files for each collection, which takes processor time from the run. With
//! a memory, a collection reads the manifests that were published since, and removes the versions
//! that have left the rules and the files that only these needed.
//!
//! Leftovers of killed publishers, and objects of versions that another process has removed, are
//! found by listing. This is done by the first collection of a memory, and by one in
//! [`LISTED_ONCE_IN`] of the others.

use std::sync::Arc;

use crate::collect::{Collected, Look, Retention};
use crate::collect_memory::CollectMemory;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::reference::VersionId;
use crate::version::VersionManifest;

/// The number of collections of which one lists all objects.
const LISTED_ONCE_IN: u64 = 64;

impl Model {
    /// Removes what [`Model::collect`] removes, except for leftovers, which are removed once in a
    /// while. `published` are versions that the caller has published, whose manifests then need
    /// not be read.
    ///
    /// # Errors
    /// Returns the errors of [`Model::collect`]. After an error, the next collection with this
    /// memory lists all objects.
    pub fn collect_again(
        &self,
        memory: &mut CollectMemory,
        retention: Retention,
        published: &[Arc<VersionManifest>],
    ) -> Result<Collected> {
        let mut kept = std::mem::take(memory);
        let is_listed = kept.turns.is_multiple_of(LISTED_ONCE_IN) || !retention.history;
        let done = match kept.last() {
            Some(last) if !is_listed => {
                self.collect_since(&mut kept, last, &retention, published)?
            }
            _ => self.collect_all(&mut kept, retention, false)?,
        };
        kept.turns += 1;
        *memory = kept;
        Ok(done)
    }

    fn collect_since(
        &self,
        memory: &mut CollectMemory,
        last: VersionId,
        retention: &Retention,
        published: &[Arc<VersionManifest>],
    ) -> Result<Collected> {
        published.iter().for_each(|version| memory.add(version));
        let latest = self.latest_since(memory.last().unwrap_or(last))?.unwrap_or(last);
        for number in last.0 + 1..=latest.0 {
            self.remember(memory, VersionId(number))?;
        }
        let roots = self.find_roots(memory, retention, Look::Remembers)?;
        let in_use = memory.close(roots, |version| self.version(version))?;
        let now = self.now();
        let age = retention.grace.max(retention.keep_for);
        let is_young = |at| now.duration_since(at).unwrap_or_default() < age;
        let mut sum = Collected { kept_versions: in_use.len() as u64, ..Collected::default() };
        let unused = memory.unused(&in_use, is_young);
        let numbers: Vec<u64> = unused.iter().map(|version| version.0).collect();
        // A manifest leaves before its files, so that no manifest names files that are gone.
        self.versions.remove(&numbers)?;
        for version in unused {
            if let Some(link) = memory.remove(version) {
                self.remove_proof(&link)?;
            }
        }
        sum.removed_manifests = numbers.len() as u64;
        self.remove_unneeded(memory, retention, &mut sum)?;
        sum.kept_files = memory.count_files();
        for pointer in self.pointers()? {
            let log = self.pointer_log(&pointer)?;
            let first = memory.first_moves.get(&pointer).copied();
            let (removed, first) = log.remove_old_since(first, retention.keep, age, now)?;
            sum.removed_moves += removed;
            memory.first_moves.extend(first.map(|first| (pointer, first)));
        }
        Ok(sum)
    }

    /// Adds a version to the memory, unless it is there or was removed.
    fn remember(&self, memory: &mut CollectMemory, version: VersionId) -> Result<()> {
        if memory.has(version) {
            return Ok(());
        }
        match self.version(version) {
            Ok(manifest) => memory.add(&manifest),
            // Another process has removed the version, or has written an object that is no version.
            Err(
                Error::NoVersion { .. }
                | Error::Manifest { .. }
                | Error::File { .. }
                | Error::Access(_),
            ) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes the files that no version needs any more. A file that a publisher has just written
    /// again stays.
    fn remove_unneeded(
        &self,
        memory: &mut CollectMemory,
        retention: &Retention,
        sum: &mut Collected,
    ) -> Result<()> {
        let names: Vec<Arc<str>> = memory.unneeded.iter().cloned().collect();
        let objects: Vec<String> = names.iter().map(|name| self.file_object(name)).collect();
        let heads = self.store.heads(&objects)?;
        for ((name, object), there) in names.iter().zip(&objects).zip(heads) {
            if let Some(there) = there {
                let age = self.now().duration_since(there.modified).unwrap_or_default();
                if age < retention.grace {
                    continue;
                }
                self.store.delete(object)?;
                sum.removed_files += 1;
                sum.removed_bytes += there.bytes;
            }
            memory.unneeded.remove(name);
        }
        Ok(())
    }
}
