//! The rates of the disk of a folder, and the time that a durable small write takes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The number of bytes of one write and of one read, which is a multiple of the alignment of direct
/// reads.
const PIECE: usize = 1 << 20;
const ALIGNED: usize = 4096;
/// The number of small writes that are measured. Each write is synced before the next one begins.
const SYNCS: usize = 32;

/// The measured speed of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// The bytes per second of sequential writes, including the sync.
    pub write: f64,
    /// The bytes per second of sequential reads that bypass the page cache, or `None` if the file
    /// system does not support such reads.
    pub read: Option<f64>,
    /// The median number of seconds until a small write is durable.
    pub sync: f64,
}

/// Measures a disk: writes a file of `bytes` into `folder`, reads it, and removes it.
///
/// # Errors
/// Returns an error if no file can be created in the folder or the disk is full.
pub fn measure_disk(folder: &Path, bytes: usize) -> io::Result<DiskSpeed> {
    let file = Scratch::new(folder)?;
    let bytes = bytes.div_ceil(PIECE).max(1) * PIECE;
    let write = measure_write(&file.path, bytes)?;
    // If a file system refuses direct reads, there is no read rate. A failing disk is noticed in
    // the next line.
    let read = measure_read(&file.path).ok();
    Ok(DiskSpeed { write: bytes as f64 / write, read, sync: measure_sync(&file.path)? })
}

/// A file that is removed when the value is dropped.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".zillion-disk-probe-{}", std::process::id()));
        File::create_new(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the file is already gone, nothing more needs to be done.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the time in seconds that a write of `bytes` bytes takes, including the final sync.
fn measure_write(path: &Path, bytes: usize) -> io::Result<f64> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    // The bytes are not zeros, because some file systems do not store zeros.
    let mut number = 0x9e37_79b9_7f4a_7c15_u64;
    let piece: Vec<u8> = std::iter::repeat_with(|| {
        number = number.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (number >> 56) as u8
    })
    .take(PIECE)
    .collect();
    let began = Instant::now();
    for _ in 0..bytes / PIECE {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(began.elapsed().max(Duration::from_nanos(1)).as_secs_f64())
}

/// Returns the bytes per second of reading the file at `path` without the page cache. The file must
/// exist.
fn measure_read(path: &Path) -> io::Result<f64> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut buffer = vec![0u8; PIECE + ALIGNED];
    let start = buffer.as_ptr().align_offset(ALIGNED);
    let piece = &mut buffer[start..start + PIECE];
    let (began, mut bytes) = (Instant::now(), 0);
    loop {
        match file.read(piece)? {
            0 => break,
            count => bytes += count,
        }
    }
    Ok(bytes as f64 / began.elapsed().max(Duration::from_nanos(1)).as_secs_f64())
}

/// Returns the median time in seconds that a small write and its sync take.
fn measure_sync(path: &Path) -> io::Result<f64> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(b"as long as the entry of a log, more or less")?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[SYNCS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_measured_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let speed = measure_disk(folder.path(), 3 << 20).unwrap();
        assert!(speed.write > 0.0 && speed.sync > 0.0);
        assert!(speed.read.is_none_or(|read| read > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(measure_disk(&folder.path().join("nowhere"), 1).is_err());
    }
}
