//! A registry of models, and the versions and pointers of one model.
//!
//! ```text
//! <model>/versions/<…>/<number>.json        manifests: a version exists when its manifest does
//! <model>/pointers/<pointer>/<…>/<n>.json   the log of each pointer's moves
//! <model>/files/<ab>/<blake3>.<kind>        everything else, named by the hash of its bytes
//! <model>/pins/<version>.json               versions that garbage collection leaves alone
//! <model>/leases/<server>.json              versions that a running server has loaded
//! ```
//!
//! # Crash consistency
//! The files of a version are written first. The manifest is written last, by create-if-absent. If
//! a publisher is killed, garbage collection removes its files that no manifest names. Objects are
//! never changed in place.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_device::{Clock, Files};
use zillion_store::{Store, StoreStop};

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::pointer::{MoveKind, PointerLog, PointerMove};
use crate::version::{Link, VersionId, VersionManifest};

/// The pointer that servers follow by default.
pub const STABLE: &str = "stable";
/// The pointer to a version that gets a part of the traffic for a trial.
pub const CANARY: &str = "canary";

/// A registry of models in a store.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    clock: Arc<dyn Clock>,
}

impl Registry {
    /// Opens the registry at a URL. The URL is an existing folder, `file:///…`, or a bucket
    /// (`s3://bucket/prefix`, `gs://…`, `az://…`). The credentials come from the environment of the
    /// process.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`].
    pub fn open(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self::new(Store::open(url, files)?, clock))
    }

    /// Opens the registry at a URL for a publisher. Creates the folder of the registry if it does
    /// not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Store::create_at`].
    pub fn create(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self::new(Store::create_at(url, files)?, clock))
    }

    /// Makes the registry of an open store.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Returns the store of the registry.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the model with this name. The model may have no version yet.
    ///
    /// # Errors
    /// Returns an error if the name is not allowed.
    pub fn model(&self, name: &str) -> Result<Model> {
        check_name("model", name)?;
        Ok(Model {
            name: name.to_owned(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            versions: Numbered::new(self.store.clone(), format!("{name}/versions")),
        })
    }

    /// Returns the names of all models in ascending order.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn models(&self) -> Result<Vec<String>> {
        let listing = self.store.list("")?;
        Ok(listing.folders.into_iter().filter(|n| check_name("model", n).is_ok()).collect())
    }
}

/// One model of a registry.
#[derive(Clone)]
pub struct Model {
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) versions: Numbered,
}

impl Model {
    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the store of the registry.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the URL of the registry.
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// Returns a handle of the same model. `stop` can end its operations on the store early.
    #[must_use]
    pub fn with_stop(&self, stop: StoreStop) -> Self {
        let store = self.store.with_stop(stop);
        let versions = Numbered::new(store.clone(), format!("{}/versions", self.name));
        Self { name: self.name.clone(), store, clock: self.clock.clone(), versions }
    }

    /// Returns the number of the version that was published last, or `None` if there is no version.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn latest(&self) -> Result<Option<VersionId>> {
        Ok(self.versions.last()?.map(VersionId))
    }

    /// Reads the manifest of a version, and verifies it with the hash that it contains.
    ///
    /// # Errors
    /// Returns [`Error::NoVersion`] if there is no such version. Returns [`Error::Manifest`] if the
    /// manifest does not match its hash.
    pub fn version(&self, version: VersionId) -> Result<VersionManifest> {
        match self.versions.get(version.0)? {
            Some(bytes) => {
                let name = self.versions.name(version.0);
                VersionManifest::parse(&name, &self.name, version, &bytes)
            }
            None if self.latest()?.is_none() => Err(Error::NoModel { model: self.name.clone() }),
            None => Err(Error::NoVersion { model: self.name.clone(), version }),
        }
    }

    /// Returns the numbers of up to `limit` versions below `end`, the newest first. Without `end`,
    /// the result begins with the newest version.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn page(&self, end: Option<VersionId>, limit: usize) -> Result<Vec<VersionId>> {
        let Some(last) = self.versions.last()? else { return Ok(Vec::new()) };
        let end = end.map_or(last + 1, |end| end.0.min(last + 1));
        Ok(self.versions.page(end, limit)?.into_iter().map(VersionId).collect())
    }

    /// Returns a version and its ancestors, the base first.
    ///
    /// # Errors
    /// Returns [`Error::Chain`] if the parent of a version is missing, has a different hash, or has
    /// a different schema.
    pub fn chain(&self, version: VersionId) -> Result<Vec<Arc<VersionManifest>>> {
        self.chain_by(version, |version| self.version(version).map(Arc::new))
    }

    /// Returns the chain of a version like [`Model::chain`]. `manifest` reads the manifests.
    pub(crate) fn chain_by(
        &self,
        version: VersionId,
        mut manifest: impl FnMut(VersionId) -> Result<Arc<VersionManifest>>,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        let newest = manifest(version)?;
        let mut chain = vec![newest.clone()];
        let mut child = newest.clone();
        while let Some(link) = child.parent.clone() {
            let parent = self.read_parent(&child, &link, &newest, &mut manifest)?;
            chain.push(parent.clone());
            child = parent;
        }
        chain.reverse();
        Ok(chain)
    }

    /// Reads the parent of `child`, and checks that it has the hash in `link` and the schema of
    /// `newest`.
    fn read_parent(
        &self,
        child: &VersionManifest,
        link: &Link,
        newest: &VersionManifest,
        manifest: &mut impl FnMut(VersionId) -> Result<Arc<VersionManifest>>,
    ) -> Result<Arc<VersionManifest>> {
        let broken = |reason: String| Error::Chain {
            model: self.name.clone(),
            version: child.version,
            reason,
        };
        let parent = match manifest(link.version) {
            Ok(parent) => parent,
            Err(Error::NoVersion { .. }) => {
                return Err(broken(format!(
                    "the parent, version {}, is missing; publish a new base",
                    link.version
                )));
            }
            Err(other) => return Err(other),
        };
        if parent.chain != link.chain {
            return Err(broken(format!(
                "the manifest names version {} with hash {} as its parent, but that version has hash {}; publish a new base",
                link.version, link.chain, parent.chain
            )));
        }
        if parent.schema_hash != newest.schema_hash {
            let version = link.version;
            return Err(broken(format!(
                "the parent, version {version}, has a different schema; publish a new base"
            )));
        }
        Ok(parent)
    }

    /// Returns the last move of a pointer.
    ///
    /// # Errors
    /// Returns [`Error::NoPointer`] if the pointer was never set.
    pub fn pointer(&self, pointer: &str) -> Result<PointerMove> {
        let last = self.pointer_log(pointer)?.last()?;
        last.ok_or_else(|| Error::NoPointer { pointer: pointer.to_owned() })
    }

    /// Returns up to `limit` moves of a pointer with numbers below `end`, the newest first.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn moves(&self, pointer: &str, end: Option<u64>, limit: usize) -> Result<Vec<PointerMove>> {
        let log = self.pointer_log(pointer)?;
        match log.last()? {
            None => Ok(Vec::new()),
            Some(last) => {
                let end = end.map_or(last.number + 1, |end| end.min(last.number + 1));
                log.page(end, limit)
            }
        }
    }

    /// Returns the names of all pointers in ascending order.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn pointers(&self) -> Result<Vec<String>> {
        Ok(self.store.list(&format!("{}/pointers", self.name))?.folders)
    }

    /// Moves a pointer to a version and returns the move. If the pointer already points to the
    /// version, returns the move that set it.
    ///
    /// # Errors
    /// Returns an error if the version does not exist. Returns [`Error::PointerMoved`] if another
    /// operator moved the pointer at the same time.
    pub fn promote(
        &self,
        pointer: &str,
        version: VersionId,
        kind: MoveKind,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        let log = self.pointer_log(pointer)?;
        let last = log.last()?;
        let to = self.version(version)?.link();
        // A pointer that already points there does not move, so that its log stays a history that a
        // rollback can follow.
        if let Some(last) = last.as_ref().filter(|last| last.to == to) {
            return Ok(last.clone());
        }
        let entry = PointerMove {
            number: 0,
            to,
            from: None,
            kind,
            at_ms: self.now_ms(),
            by: by.to_owned(),
            note,
        };
        log.append(last.as_ref(), entry)
    }

    /// Moves a pointer back to the version `to`, or to the previous version of the pointer if `to`
    /// is `None`.
    ///
    /// # Errors
    /// Returns the errors of [`Model::promote`]. Also returns an error if the pointer has no
    /// previous version.
    pub fn rollback(
        &self,
        pointer: &str,
        to: Option<VersionId>,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        let now = self.pointer(pointer)?;
        let to = match to {
            Some(to) => to,
            None => self.previous_version(pointer, &now)?,
        };
        if to == now.to.version {
            return Err(Error::Refused(format!(
                "pointer `{pointer}` of model `{}` already points to version {to}; name an earlier version",
                self.name
            )));
        }
        self.promote(pointer, to, MoveKind::Rollback, by, note)
    }

    /// Finds the version to which the pointer pointed before it was moved to the present version.
    /// Rollbacks are ignored, so two rollbacks go back two versions.
    fn previous_version(&self, pointer: &str, now: &PointerMove) -> Result<VersionId> {
        const PAGE: usize = 64;
        let mut end = None;
        loop {
            let page = self.moves(pointer, end, PAGE)?;
            let came =
                |entry: &&PointerMove| entry.to == now.to && entry.kind != MoveKind::Rollback;
            if let Some(entry) = page.iter().find(came) {
                return entry.from.ok_or_else(|| self.no_previous_version(pointer, now.to.version));
            }
            match page.last() {
                Some(oldest) if oldest.number > 1 => end = Some(oldest.number),
                // The pointer was moved to the present version by rollbacks only. Then the parent
                // is the version before.
                _ => {
                    let parent = self.version(now.to.version)?.parent;
                    let before = parent.map(|parent| parent.version);
                    return before.ok_or_else(|| self.no_previous_version(pointer, now.to.version));
                }
            }
        }
    }

    fn no_previous_version(&self, pointer: &str, version: VersionId) -> Error {
        Error::Refused(format!(
            "pointer `{pointer}` of model `{}` pointed to no version before version {version}; name the \
             version to go back to",
            self.name
        ))
    }

    /// Checks that the store has every file of a version and of its ancestors, and that their sizes
    /// are correct.
    ///
    /// # Errors
    /// Returns [`Error::Chain`] if the chain is broken. Returns [`Error::File`] for the first file
    /// that is missing or has another size.
    pub fn check_files(&self, version: VersionId) -> Result<()> {
        let mut seen = std::collections::BTreeSet::new();
        let mut wanted = Vec::new();
        for manifest in self.chain(version)? {
            for (name, file) in manifest.files() {
                if seen.insert(name.clone()) {
                    wanted.push((manifest.version, self.file_object(&name), file.bytes));
                }
            }
        }
        let objects: Vec<String> = wanted.iter().map(|(_, object, _)| object.clone()).collect();
        for ((of, object, bytes), there) in wanted.into_iter().zip(self.store.heads(&objects)?) {
            if there.is_none_or(|there| there.bytes != bytes) {
                let path = self.store.local_path(&object).unwrap_or_else(|| object.into());
                let reason = format!(
                    "the file is missing; it belongs to version {of}, which version {version} needs, and was \
                     collected by gc or lost"
                );
                return Err(Error::File { path, reason });
            }
        }
        Ok(())
    }

    fn pointer_log(&self, pointer: &str) -> Result<PointerLog> {
        check_name("pointer", pointer)?;
        Ok(PointerLog::new(self.store.clone(), &self.name, pointer))
    }

    /// Returns the name of the object that contains a file.
    pub(crate) fn file_object(&self, name: &str) -> String {
        format!("{}/files/{}/{name}", self.name, name.get(..2).unwrap_or("__"))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let since = self.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.clock.wall()
    }
}

/// Checks a name. The name becomes a part of paths and must not lead to another folder.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if begins && name.len() <= 100 && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(Error::Name { what, name: name.chars().take(100).collect() })
    }
}
