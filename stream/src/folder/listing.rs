//! The listing of a folder: which names are new, and which must not have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;
use zillion_device::DeviceError;

use super::open_file::report_removed;
use crate::error::{Error, Result};
use crate::file::FileHistory;
use crate::partition::Partition;

/// The age of the last change of a folder from which on a listing is known to be complete. File
/// systems tell changes within some milliseconds by no other time.
const SETTLED: Duration = Duration::from_secs(1);

/// An entry of a folder that belongs to the stream.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) is_dir: bool,
    pub(super) size: u64,
}

/// The memory of the time of a folder's last change, by which unchanged folders are not listed
/// again.
#[derive(Debug, Default)]
pub(super) struct Stamp(Option<SystemTime>);

impl Stamp {
    /// Lists a folder in the order of names. Returns `None` if the folder has not changed since the
    /// last listing. A missing folder is empty. `is_known` tells which names need no look at the
    /// entry; their sizes are 0.
    ///
    /// The system lists a large folder in several parts, so that a listing may contain a new file
    /// and lack one that appeared before it. If there are new files, the folder is therefore listed
    /// again. Every file that appeared before one of the first listing is in the second one.
    pub(super) fn list(
        &mut self,
        folder: &Path,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<Option<Vec<Entry>>> {
        let modified = match fs::metadata(folder) {
            Ok(metadata) => metadata.modified().ok(),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.0 = None;
                return Ok(Some(Vec::new()));
            }
            Err(e) => return Err(DeviceError::file("list the folder", folder, e).into()),
        };
        if self.0.is_some() && self.0 == modified {
            return Ok(None);
        }
        let is_settled = |time: &SystemTime| {
            SystemTime::now().duration_since(*time).is_ok_and(|age| age > SETTLED)
        };
        // The moment before the listings counts, because the folder may change during them.
        let settled = modified.filter(is_settled);
        self.0 = None;
        let mut entries = read_entries(folder, &is_known)?;
        if let Some(newest) = entries.iter().rev().find(|entry| !is_known(&entry.name)) {
            let newest = newest.name.clone();
            entries = read_entries(folder, &is_known)?;
            // A later file has changed the time of the folder, so that the next look lists it.
            entries.retain(|entry| entry.name <= newest || is_known(&entry.name));
        }
        // After an error, the next look must find it again.
        self.0 = settled;
        Ok(Some(entries))
    }

    /// Makes the next look list the folder.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

/// Reads the entries of a folder in the order of names.
fn read_entries(folder: &Path, is_known: &impl Fn(&str) -> bool) -> Result<Vec<Entry>> {
    let failed = |e| DeviceError::file("list the folder", folder, e);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().into_string().map_err(|name| Error::Root {
            path: folder.join(name),
            problem: "the name is not UTF-8".to_owned(),
            remedy: "rename the file or folder",
        })?;
        if is_ignored_name(&name) {
            continue;
        }
        if is_known(&name) {
            entries.push(Entry { name, is_dir: false, size: 0 });
            continue;
        }
        match fs::metadata(entry.path()) {
            Ok(data) => entries.push(Entry { name, is_dir: data.is_dir(), size: data.len() }),
            // The file disappeared during the listing, so that it was never part of the stream.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(DeviceError::file("read", &entry.path(), e).into()),
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Returns whether a name in a followed folder does not belong to the stream: a hidden or an
/// unfinished file.
pub fn is_ignored_name(name: &str) -> bool {
    name.starts_with('.') || name.ends_with(".tmp")
}

/// The names in the folder of a partition.
#[derive(Debug, Default)]
pub(super) struct Listing {
    stamp: Stamp,
    /// The files behind the last recorded one, with their sizes when they appeared.
    pending: BTreeMap<String, u64>,
    /// The hashes of the names of the present files up to the last recorded one.
    earlier: BTreeSet<u64>,
    /// Whether the folder was listed before.
    was_listed: bool,
}

impl Listing {
    /// Lists the folder of a partition whose recorded files are `history`.
    ///
    /// # Errors
    /// Returns an error if a file is missing that was not consumed yet, or if a file has appeared
    /// before the last recorded one.
    pub(super) fn refresh(
        &mut self,
        partition: Partition,
        folder: &Path,
        history: &FileHistory,
    ) -> Result<()> {
        let last = history.files().last().map(|file| file.name.as_str());
        let is_earlier = |name: &str| last.is_some_and(|last| name <= last);
        let is_known = |name: &str| is_earlier(name) || self.pending.contains_key(name);
        let Some(entries) = self.stamp.list(folder, is_known)? else { return Ok(()) };
        let compared = self.compare(partition, folder, history, entries);
        if compared.is_err() {
            // The next look must find the error again.
            self.stamp.forget();
        }
        compared
    }

    /// Compares the entries of a folder with those of the last listing.
    fn compare(
        &mut self,
        partition: Partition,
        folder: &Path,
        history: &FileHistory,
        entries: Vec<Entry>,
    ) -> Result<()> {
        let last = history.files().last().map(|file| file.name.as_str());
        let (mut pending, mut earlier) = (BTreeMap::new(), BTreeSet::new());
        for entry in entries {
            if entry.is_dir {
                return Err(Error::Folder {
                    partition,
                    path: folder.join(&entry.name),
                    problem: "a folder is inside the folder of a partition".to_owned(),
                    remedy: "move the folder away, or give it a name that begins with a dot",
                });
            }
            if last.is_some_and(|last| entry.name.as_str() <= last) {
                self.check_earlier(partition, folder, history, &entry.name)?;
                earlier.insert(xxh3_64(entry.name.as_bytes()));
            } else {
                let size = self.pending.get(&entry.name).copied().unwrap_or(entry.size);
                pending.insert(entry.name, size);
            }
        }
        if let Some(missing) = self.pending.keys().find(|name| !pending.contains_key(*name)) {
            return Err(report_removed(partition, &folder.join(missing)));
        }
        self.pending = pending;
        self.earlier = earlier;
        self.was_listed = true;
        Ok(())
    }

    /// Checks that a file up to the last recorded one was there before.
    fn check_earlier(
        &self,
        partition: Partition,
        folder: &Path,
        history: &FileHistory,
        name: &str,
    ) -> Result<()> {
        let is_recorded = history.files().binary_search_by(|f| f.name.as_str().cmp(name)).is_ok();
        // After a start, it is unknown which files existed before the first one that is remembered.
        let is_forgotten = history.forgotten() > 0
            && history.files().first().is_some_and(|first| name < first.name.as_str());
        let was_present = if self.was_listed {
            self.earlier.contains(&xxh3_64(name.as_bytes()))
        } else {
            is_forgotten
        };
        if is_recorded || was_present {
            return Ok(());
        }
        let last = history.files().last().map_or("", |file| file.name.as_str());
        Err(Error::Folder {
            partition,
            path: folder.join(name),
            problem: format!("the file has appeared after `{last}`, which has a later name"),
            remedy: "rename the file so that its name follows all other names",
        })
    }

    /// Returns the next file behind the recorded ones with its size.
    pub(super) fn first_pending(&self) -> Option<(&str, u64)> {
        self.pending.first_key_value().map(|(name, size)| (name.as_str(), *size))
    }

    /// Moves a file from the pending ones to the recorded ones.
    pub(super) fn record(&mut self, name: &str) {
        self.pending.remove(name);
        self.earlier.insert(xxh3_64(name.as_bytes()));
    }

    /// Returns the number of bytes of all pending files.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.values().sum()
    }

    /// Returns whether a recorded file was present at the last listing.
    pub(super) fn is_present(&self, name: &str) -> bool {
        self.earlier.contains(&xxh3_64(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// Lists a folder in which a file with the name `added` appears between the two listings.
    fn list_while_adding(added: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("m"), "x").unwrap();
        let calls = Cell::new(0);
        // The first listing asks once about its one file. The next question is behind it.
        let is_known = |_: &str| {
            calls.set(calls.get() + 1);
            if calls.get() == 2 {
                fs::write(folder.path().join(added), "x").unwrap();
            }
            false
        };
        let entries = Stamp::default().list(folder.path(), is_known).unwrap().unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn a_file_that_a_listing_has_missed_comes_before_later_ones() {
        // The file may have appeared before `m`.
        assert_eq!(list_while_adding("a"), ["a", "m"]);
        // Files that appeared before `z` may be missed again, so that `z` waits for the next look.
        assert_eq!(list_while_adding("z"), ["m"]);
    }

    /// Gives a folder an old time of its last change.
    fn make_old(folder: &Path) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(folder).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn an_error_of_either_listing_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let bad = folder.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(folder.path().join("m"), "x").unwrap();
        make_old(folder.path());
        for failing in [1, 2] {
            let mut stamp = Stamp::default();
            let calls = Cell::new(0);
            let add_bad = || {
                fs::write(&bad, "x").unwrap();
                make_old(folder.path());
            };
            if failing == 1 {
                add_bad();
            }
            // The second question is behind the first listing.
            let is_known = |_: &str| {
                calls.set(calls.get() + 1);
                if failing == 2 && calls.get() == 2 {
                    add_bad();
                }
                false
            };
            for look in 0..2 {
                let error = stamp.list(folder.path(), is_known).err().map(|e| e.to_string());
                let error = error.unwrap_or_else(|| panic!("{failing}, {look}: no error"));
                assert!(error.contains("the name is not UTF-8"), "{failing}, {look}: {error}");
            }
            fs::remove_file(&bad).unwrap();
            make_old(folder.path());
            assert_eq!(stamp.list(folder.path(), |_| true).unwrap().unwrap().len(), 1);
            assert!(stamp.list(folder.path(), |_| true).unwrap().is_none(), "nothing has changed");
        }
    }
}
