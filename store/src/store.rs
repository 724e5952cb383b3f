//! A store: objects by name, in a folder or in a bucket.
//!
//! # Crash consistency
//! An object exists completely or not at all. If two writers compete, [`Store::create`] decides
//! which one succeeds.
//!
//! # Concurrency
//! A remote store has one thread that sends its requests. Any number of threads can wait for the
//! responses. A request that hangs ends at its time limit, or when a [`StoreStop`] ends it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use zillion_device::Files;
use zillion_device::durable::Op;

use crate::client::Client;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::listing::{Listed, Listing};
use crate::local::Local;
use crate::location::Location;
use crate::options::Options;
use crate::remote::Remote;
use crate::retry::RetryPolicy;
use crate::stats::StoreStats;
use crate::stop::StoreStop;

/// A handle of a store of objects. Clones of the handle are cheap and use the same store.
#[derive(Clone)]
pub struct Store {
    place: Place,
    files: Files,
    stop: StoreStop,
    url: String,
}

#[derive(Clone)]
enum Place {
    Local(Arc<Local>),
    Remote(Arc<Remote>),
}

/// The checks when a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// A missing folder is created, and the store must support create-if-absent.
    New,
    /// The store must exist and be accessible.
    Checked,
    /// The store is not accessed, so it may be missing.
    Unchecked,
}

impl Store {
    /// Opens the store at a URL: the path of a folder, `file://` and an absolute path,
    /// `s3://bucket/prefix`, `gs://…`, or `az://…`. Reads credentials and settings from the
    /// environment of the process.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, if settings contradict each other, or if the folder
    /// or bucket does not exist or is not accessible.
    pub fn open(url: &str, files: Files) -> Result<Self> {
        Self::open_in(&Environment::process(), url, files)
    }

    /// Opens a store for writers. Creates a folder that does not exist. Refuses a bucket that does
    /// not support create-if-absent, because two writers could then overwrite each other's objects.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`]. Also returns an error if the store ignores the
    /// condition of create-if-absent.
    pub fn create_at(url: &str, files: Files) -> Result<Self> {
        Self::create_in(&Environment::process(), url, files)
    }

    /// Opens a store like [`Store::open`], but reads credentials and settings from `environment`.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`].
    pub fn open_in(environment: &Environment, url: &str, files: Files) -> Result<Self> {
        Self::make(environment, url, files, Opening::Checked)
    }

    /// Opens a store as [`Store::open_in`] does, but does not ask whether it exists and is
    /// accessible. While it is not, every operation returns an error.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, or if settings contradict each other.
    pub fn attach_in(environment: &Environment, url: &str, files: Files) -> Result<Self> {
        Self::make(environment, url, files, Opening::Unchecked)
    }

    /// Opens a store like [`Store::create_at`], but reads credentials and settings from
    /// `environment`.
    ///
    /// # Errors
    /// Returns the errors of [`Store::create_at`].
    pub fn create_in(environment: &Environment, url: &str, files: Files) -> Result<Self> {
        Self::make(environment, url, files, Opening::New)
    }

    fn make(environment: &Environment, url: &str, files: Files, opening: Opening) -> Result<Self> {
        let stop = StoreStop::default();
        let place = match Location::parse(url)? {
            Location::Folder(folder) => {
                let local = match opening {
                    Opening::Unchecked => Local::attach(&folder, url)?,
                    _ => Local::open(&folder, url, &files, opening == Opening::New)?,
                };
                Place::Local(Arc::new(local))
            }
            Location::Bucket { cloud, bucket, account, prefix } => {
                let options = Options::of(environment)?;
                let client =
                    Client::new(cloud, &bucket, account.as_deref(), environment, &options)?;
                let policy = RetryPolicy::new(options, client.secrets.clone());
                let remote = Remote::new(client, prefix, policy)
                    .map_err(|e| Error::StoreOpen { url: url.to_owned(), reason: e.to_string() })?;
                if opening != Opening::Unchecked {
                    remote.check(url, &stop)?;
                }
                if opening == Opening::New {
                    remote.check_create(&stop)?;
                }
                Place::Remote(Arc::new(remote))
            }
        };
        Ok(Self { place, files, stop, url: url.to_owned() })
    }

    /// Returns the URL with which the store was opened.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns `true` if the store is a bucket, and `false` if it is a folder of this machine.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::Remote(_))
    }

    /// Returns the counters of the store, which all clones share.
    pub fn stats(&self) -> &StoreStats {
        match &self.place {
            Place::Local(local) => &local.stats,
            Place::Remote(remote) => &remote.shared.policy.stats,
        }
    }

    /// Returns a handle of the same store. `stop` can end the operations of this handle early.
    #[must_use]
    pub fn with_stop(&self, stop: StoreStop) -> Self {
        Self { stop, ..self.clone() }
    }

    /// Returns the path of the file that holds an object of a local store. Returns `None` for a
    /// remote store.
    pub fn local_path(&self, name: &str) -> Option<PathBuf> {
        match &self.place {
            Place::Local(local) => Some(local.path(name)),
            Place::Remote(_) => None,
        }
    }

    /// Writes an object that must not exist yet. If an object with this name exists, returns
    /// `false` and changes nothing. The exception is an object in a bucket that already holds
    /// exactly these bytes: then it returns `true`, because a retried PUT whose first response was
    /// lost has succeeded.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let path = parse(name)?;
        self.hook(Op::Create, name)?;
        let created = match &self.place {
            Place::Local(local) => local.create(&path, bytes)?,
            Place::Remote(remote) => remote.create(path, bytes, &self.stop)?,
        };
        self.hook(Op::SyncDir, name)?;
        Ok(created)
    }

    /// Writes an object, or replaces an existing one. It is meant for objects whose name depends on
    /// their contents.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = parse(name)?;
        self.hook(Op::Write, name)?;
        match &self.place {
            Place::Local(local) => local.put(&path, bytes)?,
            Place::Remote(remote) => remote.put(path, bytes, &self.stop)?,
        }
        self.hook(Op::Fsync, name)
    }

    /// Writes several objects at the same time. Each object is written in the same way as by
    /// [`Store::put`].
    ///
    /// # Errors
    /// Returns an error if a name is invalid or if the store refuses one of the objects. Some
    /// objects may have been written when the function returns an error.
    pub fn put_all(&self, objects: Vec<(String, Bytes)>) -> Result<()> {
        let mut parsed = Vec::with_capacity(objects.len());
        let mut names = Vec::with_capacity(objects.len());
        for (name, bytes) in objects {
            self.hook(Op::Write, &name)?;
            parsed.push((parse(&name)?, bytes));
            names.push(name);
        }
        match &self.place {
            Place::Local(local) => local.put_all(parsed)?,
            Place::Remote(remote) => remote.put_all(parsed, &self.stop)?,
        }
        names.iter().try_for_each(|name| self.hook(Op::Fsync, name))
    }

    /// Reads a small object. Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn get(&self, name: &str) -> Result<Option<Bytes>> {
        self.get_at_most(name, u64::MAX)
    }

    /// Reads an object of at most `most` bytes. The body of a larger object is not received.
    /// Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// Returns an error if the name is invalid, if the object has more bytes, or if the store
    /// refuses the operation.
    pub fn get_at_most(&self, name: &str, most: u64) -> Result<Option<Bytes>> {
        let path = parse(name)?;
        match &self.place {
            Place::Local(local) => local.get(&path, most),
            Place::Remote(remote) => remote.get(path, most, &self.stop),
        }
    }

    /// Begins to read a large object from a remote store. `bytes` is the size of the object.
    /// Returns `None` for a local store, because its objects are files that can be read directly.
    ///
    /// # Errors
    /// Returns an error if the name is invalid.
    pub fn fetch(&self, name: &str, bytes: u64) -> Result<Option<Fetch>> {
        match &self.place {
            Place::Local(..) => Ok(None),
            Place::Remote(remote) => {
                Ok(Some(Fetch::begin(remote.clone(), parse(name)?, bytes, self.stop.clone())))
            }
        }
    }

    /// Returns the size of an object and the time of its last write, or `None` if the object does
    /// not exist.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn head(&self, name: &str) -> Result<Option<Listed>> {
        let path = parse(name)?;
        match &self.place {
            Place::Local(local) => local.head(&path),
            Place::Remote(remote) => remote.head(path, &self.stop),
        }
    }

    /// Returns the sizes and the times of the last write of several objects, in the order of
    /// `names`. The entry of a missing object is `None`.
    ///
    /// # Errors
    /// Returns an error if a name is invalid or the store refuses one of the requests.
    pub fn heads(&self, names: &[String]) -> Result<Vec<Option<Listed>>> {
        match &self.place {
            Place::Local(..) => names.iter().map(|name| self.head(name)).collect(),
            Place::Remote(remote) => {
                let paths = names.iter().map(|name| parse(name)).collect::<Result<_>>()?;
                remote.heads(paths, &self.stop)
            }
        }
    }

    /// Lists the contents of a folder. A folder that does not exist has no contents.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn list(&self, folder: &str) -> Result<Listing> {
        let path = parse(folder)?;
        match &self.place {
            Place::Local(local) => local.list(&path),
            Place::Remote(remote) => remote.list(path, &self.stop),
        }
    }

    /// Removes an object. If the object does not exist, nothing happens.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the store refuses the operation.
    pub fn delete(&self, name: &str) -> Result<()> {
        let path = parse(name)?;
        self.hook(Op::Remove, name)?;
        match &self.place {
            Place::Local(local) => local.delete(&path),
            Place::Remote(remote) => remote.delete(path, &self.stop),
        }
    }

    /// Removes from a folder the temporary files of writes that were killed at least `age` ago.
    /// Returns the number of removed files. In a bucket there are no such files, so the function
    /// does nothing there. docs/STORES.md describes how unfinished uploads in parts are removed.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or a file cannot be removed.
    pub fn sweep(&self, folder: &str, age: Duration) -> Result<u64> {
        match &self.place {
            Place::Local(local) => local.sweep(parse(folder)?.as_ref(), age),
            Place::Remote(_) => Ok(0),
        }
    }

    /// Removes a folder that has become empty, so that listings need not visit it. Does nothing if
    /// the folder has contents or does not exist, and in a bucket, which has no empty folders.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the system refuses the operation.
    pub fn remove_empty(&self, folder: &str) -> Result<()> {
        match &self.place {
            Place::Local(local) => local.remove_empty(&parse(folder)?),
            Place::Remote(_) => Ok(()),
        }
    }

    fn hook(&self, op: Op, name: &str) -> Result<()> {
        let path = self.local_path(name).unwrap_or_else(|| PathBuf::from(name));
        self.files.run_failpoints(op, &path).map_err(|e| Error::Store {
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

/// Parses a name in the store. It must be a relative path of plain words that does not leave the
/// store.
fn parse(name: &str) -> Result<Path> {
    Path::parse(name).map_err(|e| Error::Store {
        action: "name",
        path: name.to_owned(),
        reason: e.to_string(),
    })
}
