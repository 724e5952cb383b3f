//! Files as memory: a read-only mapping in the form of [`bytes::Bytes`]. Slices share the mapping
//! without a copy, and the mapping stays until the last slice is dropped.
//!
//! If a file is truncated while it is mapped, SIGBUS kills the processes that read it. So mapped
//! files must never change. They may be removed only by unlink, which does not change a mapping. A
//! server installs a handler that puts zeros in the place of lost pages and marks the mapping
//! ([`survive_faults`]). A copy ([`copy`]) avoids this danger, but processes cannot share its
//! memory.

mod faults;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::{Deref, DerefMut};
use std::path::Path;

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use crate::error::DeviceError;
use faults::Registration;
pub use faults::{faulted_ranges, faults, overlaps, survive_faults};

/// The number of bytes that are copied between two calls of `piece`. Copying them takes about 0.1
/// ms.
const PIECE_BYTES: usize = 256 << 10;

/// Copies a regular, non-empty file into separate memory, with huge pages if the system has them.
/// The copy does not change if the file is truncated or its disk fails later. `piece` is called
/// after every 256 KiB.
pub fn copy(path: impl AsRef<Path>, piece: &mut dyn FnMut()) -> Result<Bytes, DeviceError> {
    let path = path.as_ref();
    let (mut file, bytes) = open(path)?;
    let failed = |action: &'static str| move |e| DeviceError::file(action, path, e);
    let bytes = usize::try_from(bytes)
        .map_err(|e| failed("copy into memory")(io::Error::new(io::ErrorKind::OutOfMemory, e)))?;
    let mut memory =
        MmapMut::map_anon(bytes).map_err(|source| DeviceError::OutOfMemory { bytes, source })?;
    // Small pages contain the same bytes, so a refusal does not matter.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    for part in memory.chunks_mut(PIECE_BYTES) {
        file.read_exact(part).map_err(failed("read"))?;
        piece();
    }
    let memory = memory.make_read_only().map_err(failed("protect the copy of"))?;
    Ok(Bytes::from_owner(memory))
}

/// Words of anonymous memory on huge pages, if the system has them. They are zero at first.
pub struct HugeWords {
    memory: MmapMut,
    words: usize,
}

impl HugeWords {
    /// Maps this many words.
    ///
    /// # Errors
    /// Returns [`DeviceError::OutOfMemory`] if the system refuses the memory.
    pub fn zeroed(words: usize) -> Result<Self, DeviceError> {
        let bytes = words.saturating_mul(size_of::<u64>()).max(1);
        let memory = MmapMut::map_anon(bytes)
            .map_err(|source| DeviceError::OutOfMemory { bytes, source })?;
        // Small pages contain the same bytes, so a refusal does not matter.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(Self { memory, words })
    }
}

impl Deref for HugeWords {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        // A mapping begins at a page, so it is aligned for words.
        bytemuck::cast_slice(&self.memory[..self.words * size_of::<u64>()])
    }
}

impl DerefMut for HugeWords {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.memory[..self.words * size_of::<u64>()])
    }
}

impl fmt::Debug for HugeWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HugeWords").field("words", &self.words).finish_non_exhaustive()
    }
}

/// Maps a regular, non-empty file for reading.
pub fn map(path: impl AsRef<Path>) -> Result<Bytes, DeviceError> {
    let path = path.as_ref();
    let (file, _) = open(path)?;
    // SAFETY: the mapping is read-only. Undefined behaviour needs a change of the file while it is
    // mapped. Files of this system are written under a temporary name, renamed, never opened for
    // writing again (`durable`), and leave by unlink, which does not touch mapped pages. If another
    // program changes the memory all the same, it is bytes without invariants here: `Bytes` hands
    // out `&[u8]`, and every reader of a format validates what it finds.
    let mapping =
        unsafe { Mmap::map(&file) }.map_err(|e| DeviceError::file("map into memory", path, e))?;
    Ok(Bytes::from_owner(Mapped { _registration: Registration::new(&mapping), mapping }))
}

/// A mapping, and its entry in the table of watched mappings. The entry is dropped first, because
/// fields are dropped in the order of their declaration.
struct Mapped {
    _registration: Registration,
    mapping: Mmap,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.mapping
    }
}

/// Opens a regular, non-empty file for reading. Returns it with its size in bytes.
fn open(path: &Path) -> Result<(File, u64), DeviceError> {
    // The type of the file is checked by its path before it is opened, because opening a pipe would
    // wait for its writer.
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
    Ok((file, metadata.len()))
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
    fn a_copy_outlives_the_contents_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let contents: Vec<u8> = (0..PIECE_BYTES + 7).map(|i| i as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let mut pieces = 0;
        let bytes = copy(&path, &mut || pieces += 1).unwrap();
        // With a mapping, the next read would kill the process.
        File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
        assert_eq!((&bytes[..], pieces), (&contents[..], 2));
        assert!(copy(folder.path(), &mut || ()).unwrap_err().to_string().contains("regular file"));
    }

    #[test]
    fn words_are_zero_at_first_and_hold_what_is_written() {
        for words in [0, 1, 513, 1 << 19] {
            let mut memory = HugeWords::zeroed(words).unwrap();
            assert!(memory.len() == words && memory.iter().all(|&word| word == 0));
            memory.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
            assert!(memory.iter().copied().eq(1..=words as u64));
        }
        let refused = HugeWords::zeroed(usize::MAX).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
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
