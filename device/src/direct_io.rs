//! Scratch files that bypass the page cache, and many small reads of such a file at the same time.
//!
//! Tables that are larger than memory are stored in such files. Because reads bypass the page
//! cache, a table that spills uses no more memory than its limit, and the measured rates are those
//! of the disk. A disk reaches its full rate only if many reads are in progress at the same time.
//! The threads of [`Readers`] wait for the disk, so that compute threads do not wait.
//!
//! # Crash consistency
//! A crash loses the file, because nothing is synced. The file is removed when its owner is
//! dropped. If a process was killed, the next owner of the folder removes the files that it left.

mod readers;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};

use crate::durable::{Files, Op};
use crate::error::DeviceError;
pub use readers::{Pieces, Readers, Reading};

/// The alignment of direct reads and writes, in the file and in memory.
pub const PAGE: usize = 4096;

/// A page of memory, aligned to its size.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(4096))]
pub struct Page([u8; PAGE]);

/// Allocates zeroed pages. The functions [`bytes`] and [`bytes_mut`] give access to their bytes.
pub fn pages(count: usize) -> Vec<Page> {
    vec![Page::zeroed(); count]
}

/// Returns the bytes of pages.
pub fn bytes(pages: &[Page]) -> &[u8] {
    bytemuck::cast_slice(pages)
}

/// Returns the bytes of pages for writing.
pub fn bytes_mut(pages: &mut [Page]) -> &mut [u8] {
    bytemuck::cast_slice_mut(pages)
}

/// The numbers of reads and writes of a file so far, with their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// The number of reads.
    pub reads: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of writes.
    pub writes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
}

/// Returns whether the file system stores this file in memory. The check is needed because newer
/// kernels accept `O_DIRECT` for such a file. It cannot detect a memory file system below another
/// file system (overlayfs).
fn is_memory(file: &File) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and `system` has the size that
    // the call writes.
    let is_known = unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) } == 0;
    if !is_known {
        return false;
    }
    // SAFETY: the call succeeded, so it has written the whole value.
    let kind = unsafe { system.assume_init() }.f_type as u64;
    [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&kind)
}

/// A file that is read and written in whole pages, and removed when the value is dropped. It
/// bypasses the page cache unless the file system keeps its files in memory.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    files: Files,
    is_direct: bool,
    counts: [AtomicU64; 4],
}

impl DirectFile {
    /// Creates an empty file. The failpoints of `files` run before every operation on the file, as
    /// for durable files.
    ///
    /// # Errors
    /// Returns an error if the file exists or cannot be created.
    pub fn create(files: &Files, path: &Path) -> Result<Self, DeviceError> {
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).custom_flags(flags).open(path)
        };
        let made = files.run_failpoints(Op::Create, path).and_then(|()| {
            if path.exists() {
                return Err(io::Error::from(ErrorKind::AlreadyExists));
            }
            match open(libc::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok((open(0)?, false)),
                file => {
                    let file = file?;
                    let is_direct = !is_memory(&file);
                    Ok((file, is_direct))
                }
            }
        });
        let (file, is_direct) = made.map_err(|e| DeviceError::file("create", path, e))?;
        let (path, files) = (path.to_owned(), files.clone());
        Ok(Self { file, path, files, is_direct, counts: Default::default() })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether reads and writes bypass the page cache and reach a disk.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the counts of reads and writes so far.
    pub fn transfers(&self) -> Transfers {
        let [reads, read_bytes, writes, written_bytes] =
            [0, 1, 2, 3].map(|i| self.counts[i].load(Ordering::Relaxed));
        Transfers { reads, read_bytes, writes, written_bytes }
    }

    /// Writes all pages at `offset`, which must be a multiple of [`PAGE`]. After an error, the
    /// contents of the file at `offset` are unknown.
    ///
    /// # Errors
    /// Returns an error if the disk cannot store the pages.
    pub fn write(&self, offset: u64, pages: &[Page]) -> Result<(), DeviceError> {
        let written = self
            .files
            .run_failpoints(Op::Write, &self.path)
            .and_then(|()| self.file.write_all_at(bytes(pages), offset));
        written.map_err(|e| DeviceError::file("write", &self.path, e))?;
        self.count(2, size_of_val(pages));
        Ok(())
    }

    /// Reads pages from `offset`, which must be a multiple of [`PAGE`].
    ///
    /// # Errors
    /// Returns an error if the disk fails, or if the file ends before the last page.
    pub fn read(&self, offset: u64, pages: &mut [Page]) -> Result<(), DeviceError> {
        let length = size_of_val(pages);
        let read = self.files.run_failpoints(Op::Read, &self.path).and_then(|()| {
            match self.file.read_exact_at(bytes_mut(pages), offset) {
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    let reason = format!(
                        "the file ends before byte {}, because it was truncated; restart from the \
                         last checkpoint",
                        offset + length as u64
                    );
                    Err(io::Error::new(ErrorKind::UnexpectedEof, reason))
                }
                read => read,
            }
        });
        read.map_err(|e| DeviceError::file("read", &self.path, e))?;
        self.count(0, length);
        Ok(())
    }

    /// Sets the length of the file.
    ///
    /// # Errors
    /// Returns an error if the file system cannot change the length.
    pub fn set_len(&self, bytes: u64) -> Result<(), DeviceError> {
        self.file.set_len(bytes).map_err(|e| DeviceError::file("resize", &self.path, e))
    }

    fn count(&self, operation: usize, bytes: usize) {
        self.counts[operation].fetch_add(1, Ordering::Relaxed);
        self.counts[operation + 1].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        // The file may be gone with its folder; the next owner of the folder removes leftovers.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests;
