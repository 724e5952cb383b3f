//! Files as memory: a read-only mapping in the form of [`bytes::Bytes`]. Slices share the mapping
//! without a copy, and the mapping stays until the last slice is dropped.
//!
//! If a file is truncated while it is mapped, its readers are killed by SIGBUS. So mapped files
//! must never change. They may be removed only by unlink, after which the mapping stays complete.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

use crate::error::DeviceError;

/// Maps a regular, non-empty file for reading.
pub fn map(path: impl AsRef<Path>) -> Result<Bytes, DeviceError> {
    let path = path.as_ref();
    // The type is checked by name first: opening a pipe would wait for its writer.
    let metadata =
        std::fs::metadata(path).map_err(|e| DeviceError::file("open for reading", path, e))?;
    if !metadata.is_file() {
        return Err(DeviceError::NotAFile(path.to_path_buf()));
    }
    let file = File::open(path).map_err(|e| DeviceError::file("open for reading", path, e))?;
    let metadata = file.metadata().map_err(|e| DeviceError::file("inspect", path, e))?;
    if !metadata.is_file() {
        return Err(DeviceError::NotAFile(path.to_path_buf()));
    }
    if metadata.len() == 0 {
        return Err(DeviceError::EmptyFile(path.to_path_buf()));
    }
    // SAFETY: the mapping is read-only. Undefined behaviour needs a change of the file while it is
    // mapped. Files of this system are written under a temporary name, renamed, never opened for
    // writing again (`durable`), and leave by unlink, which does not touch mapped pages. If another
    // program changes the memory all the same, it is bytes without invariants here: `Bytes` hands
    // out `&[u8]`, and every reader of a format validates what it finds.
    let mapping =
        unsafe { Mmap::map(&file) }.map_err(|e| DeviceError::file("map into memory", path, e))?;
    Ok(Bytes::from_owner(mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_outlives_the_name_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, b"some bytes").unwrap();
        let bytes = map(&path).unwrap();
        let slice = bytes.slice(5..);
        drop(bytes);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&slice[..], b"bytes");
    }

    #[test]
    fn files_that_cannot_be_mapped_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| map(path).unwrap_err().to_string();
        assert!(message(folder.path()).contains("not a regular file"));
        let empty = folder.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        assert!(message(&empty).contains("is empty; write the file again"));
        let missing = folder.path().join("missing");
        assert!(message(&missing).contains("check that it exists"));
        assert!(message(&missing).contains(&*missing.to_string_lossy()));
    }
}
