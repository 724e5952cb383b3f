//! The bytes of a data file, which lies on this machine or in a bucket.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::{ReaderError, Result};
use crate::stores::{ObjectFile, Stores};

/// A file whose bytes can be read. A file of this machine is opened anew for each reading. A file
/// in a bucket is bound to one state of its object.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Local(PathBuf),
    Object(Arc<ObjectFile>),
}

/// The size of a file and the time of its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The time of the last change of the file.
    pub modified: SystemTime,
}

impl Input {
    /// Finds the file at a path or at a URL.
    ///
    /// # Errors
    /// Returns an error if the path is the URL of a missing object, or if the store refuses the
    /// request. A missing file of this machine is noticed when it is read.
    pub(crate) fn open(stores: &Stores, path: &Path) -> Result<Self> {
        Ok(match stores.open(path)? {
            Some(object) => Self::Object(object),
            None => Self::Local(path.to_owned()),
        })
    }

    /// Returns the path or the URL of the file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Local(path) => path,
            Self::Object(object) => object.path(),
        }
    }

    /// Returns the size of the file and the time of its last change.
    pub(crate) fn facts(&self) -> Result<FileFacts> {
        match self {
            Self::Local(path) => {
                let found = std::fs::metadata(path).and_then(|m| Ok((m.len(), m.modified()?)));
                let failed = ReaderError::io("read the size of the file", path);
                found.map(|(bytes, modified)| FileFacts { bytes, modified }).map_err(failed)
            }
            Self::Object(object) => {
                let object = object.object();
                Ok(FileFacts { bytes: object.bytes, modified: object.modified })
            }
        }
    }

    /// Opens the file for reading all of its bytes in order.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub(crate) fn read_all(&self) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::Local(path) => open_local(path),
            Self::Object(object) => Ok(Box::new(object.stream())),
        }
    }

    /// Opens the file for reading its beginning. Of a file in a bucket, no more is requested than
    /// what is read.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub(crate) fn read_start(&self) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::Local(path) => open_local(path),
            Self::Object(object) => Ok(Box::new(object.read_from(0))),
        }
    }

    /// Returns whether the file has no bytes. A pipe has an unknown number of bytes.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        match self {
            Self::Local(path) => {
                let metadata = std::fs::metadata(path);
                let metadata = metadata.map_err(ReaderError::io("open the file", path))?;
                Ok(metadata.is_file() && metadata.len() == 0)
            }
            Self::Object(object) => Ok(object.bytes() == 0),
        }
    }

    /// Returns the failure of the last read from a bucket, or else the given error. Decoders hide
    /// the failures of the reads below them.
    pub(crate) fn failure_or(&self, error: ReaderError) -> ReaderError {
        match self {
            Self::Local(_) => error,
            Self::Object(object) => object.failure().unwrap_or(error),
        }
    }
}

fn open_local(path: &Path) -> Result<Box<dyn Read + Send>> {
    let file: io::Result<File> = File::open(path);
    Ok(Box::new(file.map_err(ReaderError::io("open the file", path))?))
}
