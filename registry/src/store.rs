//! Where versions are kept: an object store, used synchronously.
//!
//! `object_store` knows folders and the clouds; what this adds is a blocking face (engines here are
//! synchronous), durable local writes, names that cannot leave the store, and a hook before and after
//! every change, so that a test can kill the process there.
//!
//! # Crash consistency
//! A local object is staged, synced and renamed or linked into place, and its folder is synced: it is
//! there whole or not at all. [`Store::create`] is the one operation that decides between two writers. What
//! a killed write leaves behind (`name#1`) is not listed by anything, and [`Store::sweep`] removes it.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::task::JoinSet;
use zillion_device::Files;
use zillion_device::durable::Op;

use crate::error::{Error, Result};

/// Objects that are written at the same time.
const PUTS_AT_ONCE: usize = 16;

/// An object store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    runtime: Arc<tokio::runtime::Runtime>,
    files: Files,
    /// The folder of a local store.
    folder: Option<PathBuf>,
    url: String,
}

/// What a folder of a store holds, in ascending order of names, without the folder's own path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Folders in it.
    pub folders: Vec<String>,
    /// Objects in it.
    pub objects: Vec<Listed>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its last name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// When it was written.
    pub modified: SystemTime,
}

impl Store {
    /// Opens a store by its URL: a folder's path, or `file://` and its absolute path.
    ///
    /// # Errors
    /// A URL of a kind that this program has not been built for, or a folder that is not there.
    pub fn open(url: &str, files: Files) -> Result<Self> {
        Self::open_folder(url, files, false)
    }

    /// The same; the folder is made if it is not there.
    ///
    /// # Errors
    /// A URL of a kind that this program has not been built for, or a folder that cannot be made.
    pub fn create_at(url: &str, files: Files) -> Result<Self> {
        Self::open_folder(url, files, true)
    }

    fn open_folder(url: &str, files: Files, is_new: bool) -> Result<Self> {
        let folder = match url.split_once("://") {
            None => PathBuf::from(url),
            Some(("file", path)) if path.starts_with('/') => PathBuf::from(path),
            Some(_) => return Err(Error::UnknownStore { url: url.to_owned() }),
        };
        if folder.as_os_str().is_empty() {
            return Err(Error::UnknownStore { url: url.to_owned() });
        }
        let failed = |reason: String| Error::Store { action: "open", path: url.to_owned(), reason };
        if is_new {
            files.create_dir(&folder).map_err(|e| failed(e.to_string()))?;
        } else if !folder.is_dir() {
            let reason = "there is no such folder; `zillion publish` makes one".to_owned();
            return Err(failed(reason));
        }
        let folder = folder.canonicalize().map_err(|e| failed(e.to_string()))?;
        let local = LocalFileSystem::new_with_prefix(&folder)
            .map_err(|e| failed(e.to_string()))?
            .with_fsync(true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|e| failed(e.to_string()))?;
        Ok(Self {
            objects: Arc::new(local),
            runtime: Arc::new(runtime),
            files,
            folder: Some(folder),
            url: url.to_owned(),
        })
    }

    /// As it was opened.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file that holds an object, in a local store.
    pub(crate) fn local_path(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(name))
    }

    /// Writes an object that must not be there yet. Returns whether it was not: `false` means that
    /// somebody else came first, and nothing was changed.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let path = parse(name)?;
        self.hook(Op::Create, name)?;
        let options = PutOptions::from(PutMode::Create);
        let put = self.objects.put_opts(&path, PutPayload::from_bytes(bytes), options);
        let created = match self.runtime.block_on(put) {
            Ok(_) => true,
            Err(object_store::Error::AlreadyExists { .. }) => false,
            Err(error) => return Err(failed("create", name, &error)),
        };
        self.hook(Op::SyncDir, name)?;
        Ok(created)
    }

    /// Writes an object, in the place of what is there. For names that follow from the contents.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = parse(name)?;
        self.hook(Op::Write, name)?;
        let put = self.objects.put(&path, PutPayload::from_bytes(bytes));
        self.runtime.block_on(put).map_err(|error| failed("write", name, &error))?;
        self.hook(Op::Fsync, name)
    }

    /// [`Store::put`] of several objects at once: a disk makes many files durable in the time of a few.
    ///
    /// # Errors
    /// Where the store refuses one of them; others may then have been written.
    pub fn put_all(&self, objects: Vec<(String, Bytes)>) -> Result<()> {
        let mut parsed = Vec::with_capacity(objects.len());
        for (name, bytes) in objects {
            self.hook(Op::Write, &name)?;
            parsed.push((parse(&name)?, name, bytes));
        }
        let names: Vec<String> = parsed.iter().map(|(_, name, _)| name.clone()).collect();
        self.runtime.block_on(async {
            let mut left = parsed.into_iter();
            let mut open = JoinSet::new();
            loop {
                while open.len() < PUTS_AT_ONCE
                    && let Some((path, name, bytes)) = left.next()
                {
                    let objects = self.objects.clone();
                    open.spawn(async move {
                        let put = objects.put(&path, PutPayload::from_bytes(bytes)).await;
                        put.map(drop).map_err(|error| failed("write", &name, &error))
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
        names.iter().try_for_each(|name| self.hook(Op::Fsync, name))
    }

    /// Reads an object; `None` where there is none of this name.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let path = parse(name)?;
        let read = async { self.objects.get(&path).await?.bytes().await };
        match self.runtime.block_on(read) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read", name, &error)),
        }
    }

    /// Size and age of an object; `None` where there is none of this name.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn head(&self, name: &str) -> Result<Option<Listed>> {
        let path = parse(name)?;
        match self.runtime.block_on(self.objects.head(&path)) {
            Ok(meta) => Ok(Some(listed(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("look at", name, &error)),
        }
    }

    /// What a folder holds. A folder that is not there holds nothing.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn list(&self, folder: &str) -> Result<Listing> {
        let path = parse(folder)?;
        let listing = match self.runtime.block_on(self.objects.list_with_delimiter(Some(&path))) {
            Ok(listing) => listing,
            Err(object_store::Error::NotFound { .. }) => return Ok(Listing::default()),
            Err(error) => return Err(failed("list", folder, &error)),
        };
        let mut folders: Vec<String> =
            listing.common_prefixes.iter().filter_map(|p| Some(p.filename()?.to_owned())).collect();
        folders.sort_unstable();
        let mut objects: Vec<Listed> = listing.objects.iter().map(listed).collect();
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { folders, objects })
    }

    /// Removes an object; fine if it is not there.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn delete(&self, name: &str) -> Result<()> {
        let path = parse(name)?;
        self.hook(Op::Remove, name)?;
        match self.runtime.block_on(self.objects.delete(&path)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove", name, &error)),
        }
    }

    /// Removes what killed writes left in a folder of a local store longer than `age` ago. Returns how many.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn sweep(&self, folder: &str, age: Duration) -> Result<u64> {
        let Some(path) = self.local_path(parse(folder)?.as_ref()) else { return Ok(0) };
        let failed = |e: std::io::Error| Error::Store {
            action: "sweep",
            path: folder.to_owned(),
            reason: e.to_string(),
        };
        let mut removed = 0;
        let entries = match std::fs::read_dir(&path) {
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

    fn hook(&self, op: Op, name: &str) -> Result<()> {
        let path = self.local_path(name).unwrap_or_else(|| PathBuf::from(name));
        self.files.before(op, &path).map_err(|e| Error::Store {
            action: "write",
            path: name.to_owned(),
            reason: e.to_string(),
        })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A name within the store: no way up, no absolute path, nothing that is not a plain word.
fn parse(name: &str) -> Result<Path> {
    Path::parse(name).map_err(|e| Error::Store {
        action: "name",
        path: name.to_owned(),
        reason: e.to_string(),
    })
}

fn listed(meta: &object_store::ObjectMeta) -> Listed {
    Listed {
        name: meta.location.filename().unwrap_or_default().to_owned(),
        bytes: meta.size,
        modified: meta.last_modified.into(),
    }
}

/// `name#number`: what the local store calls an object while it is written.
fn is_leftover(path: &FilePath) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.rsplit_once('#')
        .is_some_and(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty())
}

fn failed(action: &'static str, name: &str, error: &object_store::Error) -> Error {
    Error::Store { action, path: name.to_owned(), reason: error.to_string() }
}
