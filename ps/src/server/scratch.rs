//! The folder of files that a server needs only for a while: parts on their way to a store or from
//! it, and layers on their way to the publisher.
//!
//! # Crash consistency
//! Nothing in the folder is needed after the process has ended. The folder of a server that was
//! killed is removed by the next server with the same address.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::error::{Result, start_error};

/// The scratch folder of a server. It is created at its first use, and removed with the value.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a handle to the folder of the server with an address, below `parent` or below the
    /// folder of the system for temporary files. Removes the folder of an earlier process.
    pub(super) fn new(parent: Option<&Path>, address: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let name: String = address.chars().map(plain).collect();
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("zillion-ps-{name}"));
        remove(&path);
        Self { path }
    }

    /// Returns the empty folder with a name in the scratch folder. Only the user of the process can
    /// read the scratch folder.
    ///
    /// # Errors
    /// Returns an error if a folder cannot be written, or if another user has made the scratch
    /// folder.
    pub(super) fn begin(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        self.make(&path).map_err(|e| {
            start_error(format!(
                "cannot create the scratch folder {}: {e}; give `ps.scratch` a folder that the \
                 server may write to",
                path.display()
            ))
        })?;
        Ok(path)
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        match create(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // Nothing is removed behind a link of another user.
        if !std::fs::symlink_metadata(&self.path)?.is_dir() {
            return Err(io::Error::other("it is not a folder"));
        }
        remove(path);
        create(path)?;
        let owner = |path: &Path| std::fs::symlink_metadata(path).map(|found| found.uid());
        if owner(&self.path)? != owner(path)? {
            return Err(io::Error::other("it belongs to another user"));
        }
        Ok(())
    }

    /// Returns the path of a folder in the scratch folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes a folder in the scratch folder, if it exists.
    pub(super) fn end(&self, name: &str) {
        remove(&self.path.join(name));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn create(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

/// Removes a folder that may not exist.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove the scratch folder {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_an_earlier_process_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let new = || Scratch::new(Some(parent.path()), "127.0.0.1:7100");
        let killed = new();
        let layer = killed.begin("layer").unwrap();
        std::fs::write(layer.join("a"), "rows").unwrap();
        // A folder that begins again is empty.
        assert_eq!(std::fs::read_dir(killed.begin("layer").unwrap()).unwrap().count(), 0);
        std::fs::write(layer.join("a"), "rows").unwrap();
        std::mem::forget(killed); // The process is killed, so nothing is removed.
        assert!(layer.exists());
        let next = new();
        assert!(!layer.exists());
        assert!(next.begin("restore").unwrap().exists());
        next.end("restore");
        next.end("layer");
        drop(next);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
        let missing = Scratch::new(Some(&parent.path().join("missing")), "a");
        let error = missing.begin("layer").unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("`ps.scratch`"), "{error}");
    }
}
