//! A file that grows at its end: a log, to which records are appended and then synced.
//!
//! # Crash consistency
//!
//! If the process crashes during [`AppendFile::append`], the file may contain a part of the bytes.
//! The format of the file must therefore show where its last whole record ends. The bytes are
//! durable when [`AppendFile::sync`] has returned. After an error of either, the end of the file is
//! unknown, so that the owner must open the file again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Action, Files, Op, failpoint};
use crate::error::DeviceError;

/// A file to whose end bytes are written.
#[derive(Debug)]
pub struct AppendFile {
    files: Files,
    path: PathBuf,
    file: File,
    length: u64,
}

impl Files {
    /// Opens an existing file and goes on behind its first `length` bytes. What follows these bytes
    /// is cut off durably.
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist, cannot be written, or is shorter than `length`
    /// bytes.
    pub fn open_append(
        &self,
        path: impl AsRef<Path>,
        length: u64,
    ) -> Result<AppendFile, DeviceError> {
        let path = path.as_ref().to_path_buf();
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|e| DeviceError::file("open", &path, e))?;
        let present = file.metadata().map_err(|e| DeviceError::file("read", &path, e))?.len();
        if present < length {
            let problem = format!("the file has {present} bytes instead of {length}");
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, problem);
            return Err(DeviceError::file("open", &path, error));
        }
        let mut appended = AppendFile { files: self.clone(), path, file, length };
        if present > length {
            let cut = appended
                .files
                .run_failpoints(Op::Write, &appended.path)
                .and_then(|()| appended.file.set_len(length));
            cut.map_err(|e| DeviceError::file("shorten", &appended.path, e))?;
            appended.sync()?;
        }
        Ok(appended)
    }
}

impl AppendFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes of the file, with those that are not synced yet.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes bytes to the end of the file.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes cannot be written. Then the file may contain a part of them.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        let written = match self.files.action(Op::Write, &self.path) {
            Action::Proceed => self.file.write_all(bytes),
            Action::Fail(error) => {
                // A full disk takes a part of the bytes before it refuses.
                self.file.write_all(&bytes[..bytes.len() / 2]).and(Err(error))
            }
            Action::Kill => failpoint::die(),
            Action::Tear => {
                // A torn write is the purpose here, so it does not matter whether the half reaches
                // the disk.
                let _ = self.file.write_all(&bytes[..bytes.len() / 2]);
                let _ = self.file.sync_data();
                failpoint::die()
            }
        };
        written.map_err(|e| DeviceError::file("write", &self.path, e))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the bytes of the file to the disk.
    ///
    /// # Errors
    ///
    /// Returns an error if the sync fails. Then it is unknown which bytes are durable.
    pub fn sync(&mut self) -> Result<(), DeviceError> {
        self.files
            .run_failpoints(Op::Fsync, &self.path)
            .and_then(|()| if self.files.is_scratch { Ok(()) } else { self.file.sync_data() })
            .map_err(|e| DeviceError::file("sync", &self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::durable::{Failpoint, Fault};

    #[test]
    fn bytes_go_to_the_end_behind_the_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, b"whole and torn").unwrap();
        let mut file = Files::new().open_append(&path, 5).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        file.append(b" again").unwrap();
        file.sync().unwrap();
        assert_eq!((file.length(), file.path()), (11, path.as_path()));
        assert_eq!(fs::read(&path).unwrap(), b"whole again");
        let error = Files::new().open_append(&path, 12).unwrap_err().to_string();
        assert!(error.contains("11 bytes instead of 12"), "{error}");
        let error = Files::new().open_append(folder.path().join("none"), 0).unwrap_err();
        assert!(error.to_string().contains("check that it exists"), "{error}");
    }

    #[test]
    fn a_refused_write_leaves_a_part_and_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, b"").unwrap();
        let files = Files::with_failpoints(Arc::new(Failpoint::new(1, Fault::Enospc)));
        let mut file = files.open_append(&path, 0).unwrap();
        assert!(file.append(b"abcd").unwrap_err().is_disk_full());
        assert_eq!(fs::read(&path).unwrap(), b"ab");
        let files = Files::with_failpoints(Arc::new(Failpoint::new(2, Fault::Eio)));
        let mut file = files.open_append(&path, 2).unwrap();
        file.append(b"cd").unwrap();
        assert!(file.sync().unwrap_err().to_string().contains("could not sync"));
    }
}
