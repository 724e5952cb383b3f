//! A scratch file past the page cache, and many small reads of it at once.
//!
//! What is larger than memory lives in such files: a read asks the disk and nothing else, so that the figures
//! of a table that spills are those of the disk and the memory that it was given is all that it uses. A disk
//! gives its best only with many reads in flight: [`Readers`] are threads that wait for it, so that whoever
//! computes does not.
//!
//! # Crash consistency
//! None is offered: nothing is synced, and the file is removed when its owner goes. A leftover of a process
//! that was killed is for the next owner of the folder to remove.

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

/// What reads and writes past the page cache are aligned to, in the file and in memory.
pub const PAGE: usize = 4096;

/// One aligned page of memory.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(4096))]
pub struct Page([u8; PAGE]);

/// Zeroed pages. Their bytes are had by [`bytes`] and [`bytes_mut`].
pub fn pages(count: usize) -> Vec<Page> {
    vec![Page::zeroed(); count]
}

/// The bytes of pages.
pub fn bytes(pages: &[Page]) -> &[u8] {
    bytemuck::cast_slice(pages)
}

/// The bytes of pages, to write.
pub fn bytes_mut(pages: &mut [Page]) -> &mut [u8] {
    bytemuck::cast_slice_mut(pages)
}

/// What a file was asked for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
}

/// Whether a file's system keeps it in memory. Newer ones take `O_DIRECT` all the same. A layer above such a one (overlayfs) is
/// not seen through.
fn is_memory(file: &File) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and `system` is memory of the size that the call
    // writes to.
    let is_known = unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) } == 0;
    if !is_known {
        return false;
    }
    // SAFETY: the call has succeeded, and so has written all of it.
    let kind = unsafe { system.assume_init() }.f_type as u64;
    [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&kind)
}

/// A file that is read and written in whole pages, past the page cache where the file system can (those that keep files in
/// memory cannot). Removed when dropped.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    files: Files,
    is_direct: bool,
    counts: [AtomicU64; 4],
}

impl DirectFile {
    /// Makes an empty file; one of that name must not be there. `files` is asked before every operation, as
    /// those of durable files are.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn create(files: &Files, path: &Path) -> Result<Self, DeviceError> {
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).custom_flags(flags).open(path)
        };
        let made = files.before(Op::Create, path).and_then(|()| {
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is read and written past the page cache, by a disk.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// What it was asked for so far.
    pub fn transfers(&self) -> Transfers {
        let [reads, read_bytes, writes, written_bytes] =
            [0, 1, 2, 3].map(|i| self.counts[i].load(Ordering::Relaxed));
        Transfers { reads, read_bytes, writes, written_bytes }
    }

    /// Writes pages at `offset`, a multiple of [`PAGE`]. All of them, or an error; after one, what the file
    /// holds there is not known.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn write(&self, offset: u64, pages: &[Page]) -> Result<(), DeviceError> {
        let written = self
            .files
            .before(Op::Write, &self.path)
            .and_then(|()| self.file.write_all_at(bytes(pages), offset));
        written.map_err(|e| DeviceError::file("write", &self.path, e))?;
        self.count(2, size_of_val(pages));
        Ok(())
    }

    /// Reads pages from `offset`, a multiple of [`PAGE`].
    ///
    /// # Errors
    /// Where the disk fails, or the file ends before.
    pub fn read(&self, offset: u64, pages: &mut [Page]) -> Result<(), DeviceError> {
        let length = size_of_val(pages);
        let read = self.files.before(Op::Read, &self.path).and_then(|()| {
            match self.file.read_exact_at(bytes_mut(pages), offset) {
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    let reason =
                        format!("it ends before byte {}: was it cut?", offset + length as u64);
                    Err(io::Error::new(ErrorKind::UnexpectedEof, reason))
                }
                read => read,
            }
        });
        read.map_err(|e| DeviceError::file("read", &self.path, e))?;
        self.count(0, length);
        Ok(())
    }

    /// Gives the file another length.
    ///
    /// # Errors
    /// Where the disk refuses.
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
        // It may be gone already, with its folder; a leftover is removed by the next owner of the folder.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests;
