//! An open file of a followed folder, which must stay the file that it was.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;
use zillion_device::DeviceError;

use crate::error::{Error, Result};
use crate::file::FileIdentity;
use crate::partition::Partition;

/// The number of bytes at the beginning of a file that its identity contains as a hash.
const HEAD_BYTES: u64 = 64 << 10;

/// The remedy for a file that has changed.
const RENAME: &str = "restore the file as it was, and put further messages into a later file; \
                      write a file under a name that ends in `.tmp`, rename it when it is \
                      complete, and do not change it afterwards";
/// The remedy for a file that is missing.
const KEEP: &str = "restore the file, or begin another run from the newest checkpoint; keep files \
                    until the oldest kept checkpoint has consumed them";

/// A file of a partition that is being read.
#[derive(Debug)]
pub(super) struct OpenFile {
    partition: Partition,
    path: PathBuf,
    file: File,
    identity: FileIdentity,
    /// The time of the last change when the file was opened.
    modified: Option<SystemTime>,
}

impl OpenFile {
    /// Opens the next file of a partition, which has `size` bytes and begins at offset `start`.
    pub(super) fn open_next(
        partition: Partition,
        path: &Path,
        name: &str,
        start: u64,
        size: u64,
    ) -> Result<Self> {
        let identity = FileIdentity { name: name.to_owned(), start, size, head: 0 };
        let mut opened = Self::open(partition, path, identity)?;
        opened.identity.head = opened.hash_head()?;
        Ok(opened)
    }

    /// Opens a file that the log has recorded, and checks its identity.
    pub(super) fn open_known(
        partition: Partition,
        path: &Path,
        identity: &FileIdentity,
    ) -> Result<Self> {
        let opened = Self::open(partition, path, identity.clone())?;
        if opened.hash_head()? != identity.head {
            let problem = "the beginning of the file has changed since it was recorded";
            return Err(opened.error(problem.to_owned(), RENAME));
        }
        Ok(opened)
    }

    fn open(partition: Partition, path: &Path, identity: FileIdentity) -> Result<Self> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(report_removed(partition, path));
            }
            Err(e) => return Err(DeviceError::file("open", path, e).into()),
        };
        let path = path.to_owned();
        let mut opened = Self { partition, path, file, identity, modified: None };
        opened.modified = opened.check_size()?;
        Ok(opened)
    }

    pub(super) fn identity(&self) -> &FileIdentity {
        &self.identity
    }

    /// Reads bytes at a place of the file, counted from its beginning.
    pub(super) fn read(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => self.error("the file became shorter".to_owned(), RENAME),
            _ => DeviceError::file("read", &self.path, e).into(),
        })
    }

    /// Checks that the file was not written to since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        if self.check_size()? != self.modified {
            let problem = "the file was changed while it was read";
            return Err(self.error(problem.to_owned(), RENAME));
        }
        Ok(())
    }

    /// Checks the size of the file, and returns the time of its last change.
    fn check_size(&self) -> Result<Option<SystemTime>> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|e| DeviceError::file("read", &self.path, e))?;
        if metadata.len() != self.identity.size {
            return Err(report_changed_size(
                self.partition,
                &self.path,
                &self.identity,
                metadata.len(),
            ));
        }
        Ok(metadata.modified().ok())
    }

    fn hash_head(&self) -> Result<u64> {
        let mut head = vec![0; self.identity.size.min(HEAD_BYTES) as usize];
        self.read(0, &mut head)?;
        Ok(xxh3_64(&head))
    }

    fn error(&self, problem: String, remedy: &'static str) -> Error {
        Error::Folder { partition: self.partition, path: self.path.clone(), problem, remedy }
    }
}

/// Checks that a consumed file still has its size, if it still exists.
pub(super) fn check_consumed(
    partition: Partition,
    path: &Path,
    identity: &FileIdentity,
) -> Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() == identity.size => Ok(()),
        Ok(metadata) => Err(report_changed_size(partition, path, identity, metadata.len())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(DeviceError::file("read", path, e).into()),
    }
}

/// Makes the error of a file that is missing before it was consumed.
pub(super) fn report_removed(partition: Partition, path: &Path) -> Error {
    let problem = "the file was removed before it was consumed".to_owned();
    Error::Folder { partition, path: path.to_owned(), problem, remedy: KEEP }
}

fn report_changed_size(
    partition: Partition,
    path: &Path,
    identity: &FileIdentity,
    size: u64,
) -> Error {
    let problem = format!("the file has {size} bytes, but had {} when it appeared", identity.size);
    Error::Folder { partition, path: path.to_owned(), problem, remedy: RENAME }
}
