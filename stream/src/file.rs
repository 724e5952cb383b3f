//! The files of a partition of a followed folder, and their places in the partition.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::partition::Partition;

/// The number of consumed files that a [`FileHistory`] remembers.
pub(crate) const REMEMBERED: usize = 32;

/// The identity of a file of a followed folder. A file with another size or head is another file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// The name of the file in the folder of its partition.
    pub name: String,
    /// The offset in the partition at which the file begins: the sizes of all files before it.
    pub start: u64,
    /// The size of the file in bytes.
    pub size: u64,
    /// The xxh3-64 of the first 64 KiB of the file.
    pub head: u64,
}

impl FileIdentity {
    /// Returns the offset in the partition behind the last byte of the file.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// The files of a partition in the order of their names: all files that are not consumed yet, and
/// the last 32 consumed ones. The consumed ones show whether a file has appeared too late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHistory {
    /// The number of files before the first one of `files`.
    forgotten: u64,
    files: Vec<FileIdentity>,
}

impl FileHistory {
    /// Creates the history of files that follow `forgotten` other ones.
    ///
    /// # Errors
    /// Returns an error if the files do not follow one another.
    pub fn restore(partition: Partition, forgotten: u64, files: Vec<FileIdentity>) -> Result<Self> {
        let history = Self { forgotten, files };
        history.check(partition)?;
        Ok(history)
    }

    /// Returns the files in the order of their names.
    pub fn files(&self) -> &[FileIdentity] {
        &self.files
    }

    /// Returns the number of files before the first one of [`FileHistory::files`].
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns the offset behind the last file, where the next file begins.
    pub fn end(&self) -> u64 {
        self.files.last().map_or(0, FileIdentity::end)
    }

    /// Returns the file that contains the byte at `offset`.
    pub fn find(&self, offset: u64) -> Option<&FileIdentity> {
        let at = self.files.partition_point(|file| file.end() <= offset);
        self.files.get(at).filter(|file| file.start <= offset)
    }

    /// Adds the next file.
    ///
    /// # Errors
    /// Returns an error if the name does not follow that of the last file, or if the file does not
    /// begin where the last file ends.
    pub fn add(&mut self, partition: Partition, file: FileIdentity) -> Result<()> {
        if let Some(last) = self.files.last()
            && last.name >= file.name
        {
            return Err(Error::Position(format!(
                "{partition}, file `{}`: the name must follow that of the last file, `{}`; record \
                 files in the order of their names",
                file.name, last.name
            )));
        }
        if self.end() != file.start || file.start.checked_add(file.size).is_none() {
            return Err(Error::Position(format!(
                "{partition}, file `{}`: the file begins at offset {} instead of {}; record every \
                 file of the partition",
                file.name,
                file.start,
                self.end()
            )));
        }
        self.files.push(file);
        Ok(())
    }

    /// Forgets old files that end at `offset` or before it.
    pub fn forget(&mut self, offset: u64) {
        let consumed = self.files.partition_point(|file| file.end() <= offset);
        let old = consumed.saturating_sub(REMEMBERED);
        if old > 0 {
            self.files.drain(..old);
            self.forgotten += old as u64;
        }
    }

    /// Checks a history that was read from a file.
    pub(crate) fn check(&self, partition: Partition) -> Result<()> {
        let mut checked = Self::default();
        for (at, file) in self.files.iter().enumerate() {
            if at == 0 && self.forgotten > 0 {
                // The files before are forgotten, so that the first one may begin anywhere.
                checked.files.push(file.clone());
            } else {
                checked.add(partition, file.clone())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: Partition = Partition { stream: 0, number: 1 };

    fn file(name: &str, start: u64, size: u64) -> FileIdentity {
        FileIdentity { name: name.to_owned(), start, size, head: 7 }
    }

    #[test]
    fn files_lie_behind_one_another() {
        let mut history = FileHistory::default();
        history.add(PARTITION, file("a", 0, 10)).unwrap();
        history.add(PARTITION, file("b", 10, 0)).unwrap();
        history.add(PARTITION, file("c", 10, 5)).unwrap();
        assert_eq!(history.end(), 15);
        let name = |offset| history.find(offset).map(|file| file.name.as_str());
        assert_eq!([name(0), name(9), name(10), name(15)], [Some("a"), Some("a"), Some("c"), None]);
        let error = history.clone().add(PARTITION, file("c", 15, 5)).unwrap_err().to_string();
        assert!(error.contains("partition 1 of stream 0, file `c`"), "{error}");
        let error = history.clone().add(PARTITION, file("d", 14, 5)).unwrap_err().to_string();
        assert!(error.contains("offset 14 instead of 15"), "{error}");
        history.check(PARTITION).unwrap();
        assert!(history.add(PARTITION, file("d", 15, u64::MAX)).is_err());
    }

    #[test]
    fn only_old_consumed_files_are_forgotten() {
        let mut history = FileHistory::default();
        for number in 0..100 {
            history.add(PARTITION, file(&format!("{number:03}"), number, 1)).unwrap();
        }
        history.forget(10);
        assert_eq!((history.forgotten(), history.files().len()), (0, 100));
        history.forget(50);
        assert_eq!((history.forgotten(), history.files().len()), (18, 82));
        assert_eq!(history.find(50).unwrap().name, "050");
        history.forget(100);
        assert_eq!(history.files().len(), REMEMBERED);
        assert_eq!(history.end(), 100);
        history.check(PARTITION).unwrap();
    }
}
