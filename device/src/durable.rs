//! Operations for files that must survive a crash: write a temporary file, sync it, rename it, and
//! sync its folder.
//!
//! # Crash consistency
//!
//! If the process crashes during [`Files::write_file`], the name has either the old file or the
//! whole new file. A leftover `.name.tmp` may also exist. A set of files that must appear together
//! is written with [`Files::stage`]: all files are written into a hidden folder beside the target
//! and synced, and then the folder is renamed. [`Files::remove_dir`] renames the folder before it
//! removes it, so a part of a folder is never visible. [`Files::sweep`] removes leftovers.
//!
//! # Failpoints
//!
//! An optional hook runs before every create, write, fsync, rename and removal (see
//! [`Failpoints`]). With it, a test can kill the process or simulate a failing disk at each
//! operation. The clean-up after an error runs no hook.

mod append;
mod delivery;
mod failpoint;
mod stage;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DeviceError;
pub use append::AppendFile;
pub use delivery::Delivery;
pub use failpoint::{Action, Failpoint, Failpoints, Fault, Op};
pub use stage::Stage;

/// The largest number of bytes in one write to the kernel. A write failpoint runs before each such
/// write.
const BUFFER_BYTES: usize = 256 << 10;
/// The suffix of files that are being written.
const TEMPORARY: &str = ".tmp";
/// The suffix of folders that are being removed.
const REMOVED: &str = ".removed";

/// The durable file operations. A clone is cheap. A program makes one value at its start and passes
/// it on.
#[derive(Clone, Debug, Default)]
pub struct Files {
    failpoints: Option<Arc<dyn Failpoints>>,
    /// Whether all syncs are skipped.
    is_scratch: bool,
    /// The receiver of every complete file; `None` if files stay where they are written.
    delivery: Option<Arc<dyn Delivery>>,
}

impl Files {
    /// Creates operations without failpoints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates operations that run the hook `failpoints` before every operation.
    pub fn with_failpoints(failpoints: Arc<dyn Failpoints>) -> Self {
        Self { failpoints: Some(failpoints), ..Self::default() }
    }

    /// Returns the same operations without syncs. They are for files that will be copied to a
    /// durable place and can be written again after a crash.
    #[must_use]
    pub fn scratch(&self) -> Self {
        Self { is_scratch: true, ..self.clone() }
    }

    /// Returns the same operations, which also pass every complete file to `delivery`, under the
    /// final name of the file.
    #[must_use]
    pub fn delivering(&self, delivery: Arc<dyn Delivery>) -> Self {
        Self { delivery: Some(delivery), ..self.clone() }
    }

    /// Writes a whole file. The output of `fill` goes to a temporary file beside `path`, which is
    /// synced and then renamed to `path`. Then the folder is synced. Returns the size in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written or `fill` fails. Then `path` is unchanged.
    pub fn write_file(
        &self,
        path: impl AsRef<Path>,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<u64, DeviceError> {
        let path = path.as_ref();
        let temporary = hidden_beside(path, TEMPORARY)?;
        let written = self
            .fill_file(&temporary, fill)
            .and_then(|bytes| self.rename(&temporary, path).map(|()| bytes));
        if written.is_err() {
            // The error is returned already; a later sweep removes the leftover.
            let _ = fs::remove_file(&temporary);
        }
        let bytes = written?;
        self.sync_dir(parent_of(path))?;
        self.deliver(path)?;
        Ok(bytes)
    }

    /// Writes the given bytes as [`Files::write_file`] does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Files::write_file`].
    pub fn write_bytes(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_file(path, |file| file.write_all(bytes)).map(drop)
    }

    /// Writes and syncs a file under its final name, for a folder that becomes visible later by a
    /// rename. Replaces a leftover with this name. The folder is not synced. Returns the size in
    /// bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written or `fill` fails. Then a part of the file may
    /// remain.
    pub fn create_file(
        &self,
        path: impl AsRef<Path>,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<u64, DeviceError> {
        let path = path.as_ref();
        let bytes = self.fill_file(path, fill)?;
        self.deliver(path)?;
        Ok(bytes)
    }

    /// Writes and syncs a file, which is not complete before it has its final name.
    fn fill_file(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<u64, DeviceError> {
        let file = self
            .run_failpoints(Op::Create, path)
            .and_then(|()| File::create(path))
            .map_err(|e| DeviceError::file("create", path, e))?;
        let mut target = Target { files: self, path, file, bytes: 0, failure: None };
        let mut buffer = BufWriter::with_capacity(BUFFER_BYTES, &mut target);
        let filled = fill(&mut buffer).and_then(|()| buffer.flush());
        // Bytes that are still buffered after an error must not be written when the buffer is
        // dropped.
        let _ = buffer.into_parts();
        if let Err(error) = filled {
            // Outer writers wrap the error of the disk; the first error of the disk itself is the
            // better one.
            let error = target.failure.take().unwrap_or(error);
            return Err(DeviceError::file("write", path, error));
        }
        self.run_failpoints(Op::Fsync, path)
            .and_then(|()| if self.is_scratch { Ok(()) } else { target.file.sync_all() })
            .map_err(|e| DeviceError::file("sync", path, e))?;
        Ok(target.bytes)
    }

    /// Writes a file whose name depends on its contents. The synced file is renamed to the name in
    /// `folder` that `fill` returns. An existing file with this name is replaced, which changes
    /// nothing if names are hashes. The folder is not synced. Returns the name and the size in
    /// bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written or `fill` fails. Then no file appears.
    pub fn write_named_by_content(
        &self,
        folder: impl AsRef<Path>,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<String>,
    ) -> Result<(String, u64), DeviceError> {
        let folder = folder.as_ref();
        // Two writers in one process, or two processes, must not share the unfinished file.
        let unique = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        let temporary = hidden_beside(&folder.join(unique), TEMPORARY)?;
        let mut name = String::new();
        let written = self
            .fill_file(&temporary, |out| {
                name = fill(out)?;
                Ok(())
            })
            .and_then(|bytes| self.rename(&temporary, &folder.join(&name)).map(|()| bytes));
        if written.is_err() {
            // The error is returned already; a later sweep removes the leftover.
            let _ = fs::remove_file(&temporary);
        }
        let bytes = written?;
        self.deliver(&folder.join(&name))?;
        Ok((name, bytes))
    }

    /// Creates a folder and its parents. An existing folder is not an error. Nothing is synced.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be created.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), DeviceError> {
        let path = path.as_ref();
        self.run_failpoints(Op::Create, path)
            .and_then(|()| fs::create_dir_all(path))
            .map_err(|e| DeviceError::file("create the folder", path, e))
    }

    /// Creates a folder with a hidden name, to which files can be added. [`Stage::commit`] makes it
    /// visible as `target`, with all its files.
    ///
    /// # Errors
    ///
    /// Returns an error if the hidden folder cannot be created.
    pub fn stage(&self, target: impl AsRef<Path>) -> Result<Stage, DeviceError> {
        Stage::begin(self.clone(), target.as_ref())
    }

    /// Renames a folder, and syncs the parent folders of both names. The target must not exist, or
    /// must be empty.
    ///
    /// # Errors
    ///
    /// Returns an error if the rename or a sync fails, or if `to` is a folder that is not empty.
    pub fn rename_dir(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<(), DeviceError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.rename(from, to)?;
        self.sync_dir(parent_of(to))?;
        if parent_of(from) != parent_of(to) {
            self.sync_dir(parent_of(from))?;
        }
        Ok(())
    }

    /// Syncs the names in a folder to the disk.
    ///
    /// # Errors
    ///
    /// Returns an error if the sync fails.
    pub fn sync_dir(&self, path: impl AsRef<Path>) -> Result<(), DeviceError> {
        let path = path.as_ref();
        self.run_failpoints(Op::SyncDir, path)
            .and_then(|()| if self.is_scratch { Ok(()) } else { File::open(path)?.sync_all() })
            .map_err(|e| DeviceError::file("sync the folder", path, e))
    }

    /// Removes a folder with its contents. The folder is first renamed durably, so that neither a
    /// reader nor a restart after a crash sees only a part of it.
    ///
    /// # Errors
    ///
    /// Returns an error if the rename or a removal fails.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), DeviceError> {
        let path = path.as_ref();
        let doomed = hidden_beside(path, REMOVED)?;
        if doomed.exists() {
            self.delete(&doomed)?;
        }
        self.rename(path, &doomed)?;
        self.sync_dir(parent_of(path))?;
        self.delete(&doomed)
    }

    /// Removes a file and syncs its folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the removal or the sync fails.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), DeviceError> {
        let path = path.as_ref();
        self.run_failpoints(Op::Remove, path)
            .and_then(|()| fs::remove_file(path))
            .map_err(|e| DeviceError::file("remove", path, e))?;
        self.sync_dir(parent_of(path))
    }

    /// Gives a file a second name on the same disk. An existing name is not an error. The folder is
    /// not synced. Returns `false` if the system makes no link of this file here: the two names
    /// would be on different disks, the disk has no links, the file has too many, or it belongs to
    /// another user.
    ///
    /// # Errors
    ///
    /// Returns an error if the link cannot be made for another reason.
    pub fn link_file(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<bool, DeviceError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match self.run_failpoints(Op::Create, to).and_then(|()| fs::hard_link(from, to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
            Err(error) if is_unlinkable(error.kind()) => Ok(false),
            Err(error) => Err(DeviceError::file("link", to, error)),
        }
    }

    /// Runs the failpoints for an operation, and takes the action that they request. Other code
    /// with durable operations, such as an object store, calls this method too.
    ///
    /// # Errors
    ///
    /// Returns the error that a failpoint requests.
    pub fn run_failpoints(&self, op: Op, path: impl AsRef<Path>) -> io::Result<()> {
        match self.action(op, path.as_ref()) {
            Action::Proceed => Ok(()),
            Action::Fail(error) => Err(error),
            Action::Kill | Action::Tear => failpoint::die(),
        }
    }

    /// Removes the leftovers of interrupted operations directly in `folder`, and returns their
    /// names in sorted order. No other thread or process may write to the folder at the same time.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be read or a leftover cannot be removed.
    pub fn sweep(&self, folder: impl AsRef<Path>) -> Result<Vec<OsString>, DeviceError> {
        let folder = folder.as_ref();
        let read = |e| DeviceError::file("list the folder", folder, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(read)? {
            let name = entry.map_err(read)?.file_name();
            if is_leftover(&name) {
                names.push(name);
            }
        }
        names.sort();
        for name in &names {
            self.delete(&folder.join(name))?;
        }
        Ok(names)
    }

    /// Passes a complete file on, if there is a receiver.
    fn deliver(&self, path: &Path) -> Result<(), DeviceError> {
        let delivered = self.delivery.as_ref().map_or(Ok(()), |to| to.deliver(path));
        delivered.map_err(|e| DeviceError::file("pass on", path, e))
    }

    /// Removes a file, or a folder with its contents.
    fn delete(&self, path: &Path) -> Result<(), DeviceError> {
        self.run_failpoints(Op::Remove, path)
            .and_then(|()| {
                if fs::symlink_metadata(path)?.is_dir() {
                    fs::remove_dir_all(path)
                } else {
                    fs::remove_file(path)
                }
            })
            .map_err(|e| DeviceError::file("remove", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DeviceError> {
        self.run_failpoints(Op::Rename, to)
            .and_then(|()| fs::rename(from, to))
            .map_err(|e| DeviceError::file("move into place", to, e))
    }

    fn action(&self, op: Op, path: &Path) -> Action {
        self.failpoints.as_ref().map_or(Action::Proceed, |hook| hook.before(op, path))
    }
}

/// A file that runs the failpoints before every write.
struct Target<'a> {
    files: &'a Files,
    path: &'a Path,
    file: File,
    bytes: u64,
    /// The first error of a write, if one failed.
    failure: Option<io::Error>,
}

impl Write for Target<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let outcome = match self.files.action(Op::Write, self.path) {
            Action::Proceed => self.file.write(buffer),
            Action::Fail(error) => Err(error),
            Action::Kill => failpoint::die(),
            Action::Tear => {
                // A torn write is the purpose here, so it does not matter whether the half reaches
                // the disk.
                let _ = self.file.write_all(&buffer[..buffer.len() / 2]);
                let _ = self.file.sync_data();
                failpoint::die()
            }
        };
        match outcome {
            Ok(written) => {
                self.bytes += written as u64;
                Ok(written)
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::Interrupted && self.failure.is_none() {
                    self.failure = Some(copy_error(&error));
                }
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Copies an error, because `io::Error` is not `Clone`.
fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Returns the folder that contains `path`.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Returns `folder/.name<suffix>` for `folder/name`.
fn hidden_beside(path: &Path, suffix: &str) -> Result<PathBuf, DeviceError> {
    let name = path.file_name().ok_or_else(|| {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path does not end in a file name; add one",
        );
        DeviceError::file("write", path, error)
    })?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(suffix);
    Ok(path.with_file_name(hidden))
}

/// Returns whether a failed link leaves a copy as the other way to the same bytes.
fn is_unlinkable(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::CrossesDevices
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::Unsupported
            | io::ErrorKind::TooManyLinks
    )
}

/// Returns whether a name has the form of the names that [`hidden_beside`] makes.
fn is_leftover(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".")
        && (name.ends_with(TEMPORARY.as_bytes()) || name.ends_with(REMOVED.as_bytes()))
}
