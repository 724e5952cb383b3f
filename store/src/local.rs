//! A store in a folder of this machine.
//!
//! # Crash consistency
//! An object is written to a temporary file and synced. Then the file gets the name of the object
//! by a rename or a link, and the folder is synced. So the object exists completely or not at all.
//! The temporary file of a killed write (`name#1`) is never listed. [`Local::sweep`] removes it.

use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::task::JoinSet;
use zillion_device::Files;

use crate::error::{Error, Result};
use crate::listing::{Listed, Listing};
use crate::remote::too_large;
use crate::stats::{Operation, Outcome, StoreStats};

/// The maximum number of objects that are written to a folder at the same time.
const PUTS_AT_ONCE: usize = 16;

/// A store in a folder of this machine.
pub(crate) struct Local {
    /// The files of the folder. The value is set when an operation first finds that the folder
    /// exists.
    objects: OnceLock<Arc<LocalFileSystem>>,
    runtime: tokio::runtime::Runtime,
    url: String,
    folder: PathBuf,
    pub(crate) stats: StoreStats,
}

impl Local {
    /// Opens a folder. If `is_new` is true, creates the folder if it does not exist.
    pub(crate) fn open(folder: &FilePath, url: &str, files: &Files, is_new: bool) -> Result<Self> {
        if is_new {
            files.create_dir(folder).map_err(|e| open_error(url, e))?;
        }
        let local = Self::attach(folder, url)?;
        local.objects()?;
        Ok(local)
    }

    /// Makes the store of a folder that may not exist yet. Every operation returns an error until
    /// the folder exists.
    pub(crate) fn attach(folder: &FilePath, url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|e| open_error(url, e))?;
        // A folder that does not exist has no canonical path.
        let absolute = || std::path::absolute(folder);
        let folder =
            folder.canonicalize().or_else(|_| absolute()).map_err(|e| open_error(url, e))?;
        let (objects, url, stats) = (OnceLock::new(), url.to_owned(), StoreStats::default());
        Ok(Self { objects, runtime, url, folder, stats })
    }

    /// Returns the files of the folder.
    ///
    /// # Errors
    /// Returns an error if the folder does not exist.
    fn objects(&self) -> Result<Arc<LocalFileSystem>> {
        if let Some(objects) = self.objects.get() {
            return Ok(objects.clone());
        }
        if !self.folder.is_dir() {
            let reason = "the folder does not exist; name an existing registry, or create one \
                          with `zillion publish`";
            return Err(open_error(&self.url, reason));
        }
        let objects = LocalFileSystem::new_with_prefix(&self.folder)
            .map_err(|e| open_error(&self.url, e))?
            .with_fsync(true);
        Ok(self.objects.get_or_init(|| Arc::new(objects)).clone())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a request and counts it. `of` converts a response into the outcome and the numbers of
    /// bytes that were sent and received.
    fn run<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = object_store::Result<T>>,
        of: impl FnOnce(&T) -> (Outcome, usize, usize),
    ) -> object_store::Result<T> {
        let began = Instant::now();
        let answer = self.runtime.block_on(request);
        let (outcome, sent, received) = match &answer {
            Ok(answer) => of(answer),
            Err(object_store::Error::NotFound { .. }) => (Outcome::Missing, 0, 0),
            Err(_) => (Outcome::Refused, 0, 0),
        };
        self.stats.request(operation, outcome, began.elapsed());
        self.stats.sent(sent);
        self.stats.received(received);
        answer
    }

    pub(crate) fn create(&self, path: &Path, bytes: Bytes) -> Result<bool> {
        let (size, objects) = (bytes.len(), self.objects()?);
        let create = async {
            let options = PutOptions::from(PutMode::Create);
            match objects.put_opts(path, PutPayload::from_bytes(bytes), options).await {
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                written => written.map(|_| true),
            }
        };
        let created = self.run(Operation::Create, create, |created| match created {
            true => (Outcome::Ok, size, 0),
            false => (Outcome::Exists, 0, 0),
        });
        created.map_err(|error| operation_error("create", path, &error))
    }

    pub(crate) fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let (size, objects) = (bytes.len(), self.objects()?);
        let put = objects.put(path, PutPayload::from_bytes(bytes));
        let put = self.run(Operation::Put, put, |_| (Outcome::Ok, size, 0));
        put.map(drop).map_err(|error| operation_error("write", path, &error))
    }

    /// Writes several objects at the same time. This is faster, because a disk syncs many files in
    /// nearly the same time as a few.
    pub(crate) fn put_all(&self, objects: Vec<(Path, Bytes)>) -> Result<()> {
        let (began, store) = (Instant::now(), self.objects()?);
        let sizes: Vec<usize> = objects.iter().map(|(_, bytes)| bytes.len()).collect();
        self.runtime.block_on(async {
            let mut left = objects.into_iter();
            let mut open = JoinSet::new();
            loop {
                while open.len() < PUTS_AT_ONCE
                    && let Some((path, bytes)) = left.next()
                {
                    let objects = store.clone();
                    open.spawn(async move {
                        let put = objects.put(&path, PutPayload::from_bytes(bytes)).await;
                        put.map(drop).map_err(|error| operation_error("write", &path, &error))
                    });
                }
                match open.join_next().await {
                    Some(Ok(put)) => put?,
                    Some(Err(stopped)) => {
                        let reason = stopped.to_string();
                        return Err(Error::Store { action: "write", path: String::new(), reason });
                    }
                    None => return Ok(()),
                }
            }
        })?;
        for size in sizes {
            self.stats.request(Operation::Put, Outcome::Ok, Duration::ZERO);
            self.stats.sent(size);
        }
        self.stats.time(Operation::Put, began.elapsed());
        Ok(())
    }

    pub(crate) fn get(&self, path: &Path, most: u64) -> Result<Option<Bytes>> {
        let objects = self.objects()?;
        self.check_kind(path)?;
        let read = async {
            let answer = objects.get(path).await?;
            let size = answer.meta.size;
            Ok((size, if size > most { None } else { Some(answer.bytes().await?) }))
        };
        let read = self.run(Operation::Get, read, |(_, bytes)| {
            (Outcome::Ok, 0, bytes.as_ref().map_or(0, Bytes::len))
        });
        match none_if_missing("read", path, read)? {
            None => Ok(None),
            Some((_, Some(bytes))) => Ok(Some(bytes)),
            Some((size, None)) => Err(Error::Store {
                action: "read",
                path: path.to_string(),
                reason: too_large(size, most),
            }),
        }
    }

    /// Refuses an object that is no plain file, such as a pipe, which would block its reader.
    fn check_kind(&self, path: &Path) -> Result<()> {
        match std::fs::metadata(self.path(path.as_ref())) {
            Ok(found) if !found.is_file() && !found.is_dir() => Err(Error::Store {
                action: "read",
                path: path.to_string(),
                reason: "it is a pipe, a socket or a device and not a plain file; remove it"
                    .to_owned(),
            }),
            // An object that is missing or a folder is reported by the read.
            _ => Ok(()),
        }
    }

    pub(crate) fn head(&self, path: &Path) -> Result<Option<Listed>> {
        let objects = self.objects()?;
        let seen = self.run(Operation::Head, objects.head(path), |_| (Outcome::Ok, 0, 0));
        none_if_missing("inspect", path, seen.map(|meta| Listed::of(&meta)))
    }

    pub(crate) fn list(&self, path: &Path) -> Result<Listing> {
        let objects = self.objects()?;
        let list = objects.list_with_delimiter(Some(path));
        let listed = self.run(Operation::List, list, |_| (Outcome::Ok, 0, 0));
        let listed = none_if_missing("list", path, listed)?;
        Ok(listed.as_ref().map(Listing::of).unwrap_or_default())
    }

    pub(crate) fn delete(&self, path: &Path) -> Result<()> {
        let objects = self.objects()?;
        let removed = self.run(Operation::Delete, objects.delete(path), |()| (Outcome::Ok, 0, 0));
        none_if_missing("remove", path, removed).map(drop)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_empty(&self, folder: &Path) -> Result<()> {
        use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
        match std::fs::remove_dir(self.path(folder.as_ref())) {
            Err(error) if !matches!(error.kind(), NotFound | DirectoryNotEmpty) => {
                Err(Error::Store {
                    action: "remove the folder",
                    path: folder.to_string(),
                    reason: error.to_string(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Removes the temporary files of killed writes whose last change was at least `age` ago.
    /// Returns the number of removed files.
    pub(crate) fn sweep(&self, folder: &str, age: Duration) -> Result<u64> {
        let failed = |e: std::io::Error| Error::Store {
            action: "sweep",
            path: folder.to_owned(),
            reason: e.to_string(),
        };
        let mut removed = 0;
        let entries = match std::fs::read_dir(self.path(folder)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(failed(e)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_old = || {
                let modified = entry.metadata().and_then(|m| m.modified()).ok()?;
                Some(SystemTime::now().duration_since(modified).ok()? >= age)
            };
            if is_leftover(&entry.path()) && is_old() == Some(true) {
                std::fs::remove_file(entry.path()).map_err(failed)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn open_error(url: &str, reason: impl ToString) -> Error {
    Error::Store { action: "open", path: url.to_owned(), reason: reason.to_string() }
}

fn operation_error(action: &'static str, path: &Path, error: &object_store::Error) -> Error {
    Error::Store { action, path: path.to_string(), reason: error.to_string() }
}

/// Converts the error for a missing object into `None`.
fn none_if_missing<T>(
    action: &'static str,
    path: &Path,
    answer: object_store::Result<T>,
) -> Result<Option<T>> {
    match answer {
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        answer => answer.map(Some).map_err(|error| operation_error(action, path, &error)),
    }
}

/// Returns whether a file name has the form `name#number`. The local store gives such names to
/// temporary files.
fn is_leftover(path: &FilePath) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.rsplit_once('#')
        .is_some_and(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().display().to_string();
        let local = Local::open(folder.path(), &url, &Files::new(), false).unwrap();
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
        assert!(made.unwrap().success());
        let (send, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(local.get(&Path::from("pipe"), 10).map(drop)));
        // A read of a pipe without a writer never ends.
        let said = answer.recv_timeout(Duration::from_secs(60)).unwrap().unwrap_err().to_string();
        assert!(said.contains("pipe"), "{said}");
    }
}
