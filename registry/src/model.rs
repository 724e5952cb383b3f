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
//! Files go first and the manifest last, by create-if-absent. A publisher that dies leaves files
//! that no manifest names, which garbage collection removes. Objects are never changed in place.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_device::{Clock, Files};
use zillion_store::{Environment, Store, StoreStop};

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::pointer::{MoveKind, PointerLog, PointerMove};
use crate::version::{Link, VersionId, VersionManifest};

/// The pointer that servers follow unless they are told otherwise.
pub const STABLE: &str = "stable";
/// The pointer for a version on trial.
pub const CANARY: &str = "canary";

/// The models of a store.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    clock: Arc<dyn Clock>,
}

impl Registry {
    /// Opens the registry at a URL: an existing folder, `file:///…`, or a bucket
    /// (`s3://bucket/prefix`, `gs://…`, `az://…`) with the credentials of the process.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    pub fn open(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Store::open(url, files)?, clock })
    }

    /// Opens the registry at a URL for a publisher, and creates it if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Store::create_at`].
    pub fn create(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Store::create_at(url, files)?, clock })
    }

    /// Opens a registry as [`Registry::open`] does, with other credentials and settings than the
    /// process has.
    ///
    /// # Errors
    /// The errors of [`Store::open_in`].
    pub fn open_in(
        environment: &Environment,
        url: &str,
        files: Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Ok(Self { store: Store::open_in(environment, url, files)?, clock })
    }

    /// Opens a registry as [`Registry::create`] does, with other credentials and settings than the
    /// process has.
    ///
    /// # Errors
    /// The errors of [`Store::create_in`].
    pub fn create_in(
        environment: &Environment,
        url: &str,
        files: Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Ok(Self { store: Store::create_in(environment, url, files)?, clock })
    }

    /// Returns the store of the registry.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the model of a name, which need not have a version yet.
    ///
    /// # Errors
    /// A name that is not allowed.
    pub fn model(&self, name: &str) -> Result<Model> {
        check_name("model", name)?;
        Ok(Model {
            name: name.to_owned(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            versions: Numbered::new(self.store.clone(), format!("{name}/versions")),
        })
    }

    /// Lists the names of all models, in ascending order.
    ///
    /// # Errors
    /// A store that refuses.
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

    /// Returns the same model with operations on the store that `stop` can end early.
    #[must_use]
    pub fn with_stop(&self, stop: StoreStop) -> Self {
        let store = self.store.with_stop(stop);
        let versions = Numbered::new(store.clone(), format!("{}/versions", self.name));
        Self { name: self.name.clone(), store, clock: self.clock.clone(), versions }
    }

    /// Returns the number that was published last.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn latest(&self) -> Result<Option<VersionId>> {
        Ok(self.versions.last()?.map(VersionId))
    }

    /// Reads the manifest of a version, and verifies it against its own hash.
    ///
    /// # Errors
    /// [`Error::NoVersion`], or [`Error::Manifest`] for a manifest that was changed.
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

    /// Lists up to `limit` versions below `end`, the newest first. The first page has no `end`.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn page(&self, end: Option<VersionId>, limit: usize) -> Result<Vec<VersionId>> {
        let Some(last) = self.versions.last()? else { return Ok(Vec::new()) };
        let end = end.map_or(last + 1, |end| end.0.min(last + 1));
        Ok(self.versions.page(end, limit)?.into_iter().map(VersionId).collect())
    }

    /// Returns a version and its ancestors, the base first.
    ///
    /// # Errors
    /// [`Error::Chain`] names the version whose parent is missing, has another hash than recorded,
    /// or has another schema.
    pub fn chain(&self, version: VersionId) -> Result<Vec<Arc<VersionManifest>>> {
        self.chain_by(version, |version| self.version(version).map(Arc::new))
    }

    /// Returns the chain of a version as [`Model::chain`] does, with manifests from `read`.
    pub(crate) fn chain_by(
        &self,
        version: VersionId,
        mut manifest: impl FnMut(VersionId) -> Result<Arc<VersionManifest>>,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        let newest = manifest(version)?;
        let mut chain = vec![newest.clone()];
        let mut child = newest.clone();
        while let Some(link) = child.parent.clone() {
            let parent = self.parent(&child, &link, &newest, &mut manifest)?;
            chain.push(parent.clone());
            child = parent;
        }
        chain.reverse();
        Ok(chain)
    }

    fn parent(
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
                return Err(broken(format!("the parent, version {}, is missing", link.version)));
            }
            Err(other) => return Err(other),
        };
        if parent.chain != link.chain {
            return Err(broken(format!(
                "the manifest names version {} with hash {} as its parent, and that version has hash {}",
                link.version, link.chain, parent.chain
            )));
        }
        if parent.schema_hash != newest.schema_hash {
            let version = link.version;
            return Err(broken(format!("the parent, version {version}, has another schema")));
        }
        Ok(parent)
    }

    /// Returns the last move of a pointer.
    ///
    /// # Errors
    /// [`Error::NoPointer`] if the pointer was never set.
    pub fn pointer(&self, pointer: &str) -> Result<PointerMove> {
        let last = self.pointer_log(pointer)?.last()?;
        last.ok_or_else(|| Error::NoPointer { pointer: pointer.to_owned() })
    }

    /// Lists up to `limit` moves of a pointer before number `end`, the newest first.
    ///
    /// # Errors
    /// A store that refuses.
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

    /// Lists the names of all pointers that were set, in ascending order.
    ///
    /// # Errors
    /// A store that refuses.
    pub fn pointers(&self) -> Result<Vec<String>> {
        Ok(self.store.list(&format!("{}/pointers", self.name))?.folders)
    }

    /// Moves a pointer to a version, whose chain must hold. Returns the move, or the earlier move
    /// if the pointer already points to the version.
    ///
    /// # Errors
    /// A version that does not exist, or [`Error::PointerMoved`] if another operator came first.
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

    /// Moves a pointer back: to `to`, or to the version before the present one.
    ///
    /// # Errors
    /// The errors of [`Model::promote`], or a pointer without an earlier version.
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
                "pointer `{pointer}` of model `{}` already points to version {to}",
                self.name
            )));
        }
        self.promote(pointer, to, MoveKind::Rollback, by, note)
    }

    /// Finds the version before the present one: the one that the pointer left when it came, not by
    /// a rollback, to the present version. Rolling back twice therefore goes back two versions.
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
                // The pointer came to the present version by rollbacks only, so that its parent is
                // the version before it.
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
            "pointer `{pointer}` of model `{}` pointed to nothing before version {version}; name the \
             version to go back to",
            self.name
        ))
    }

    /// Checks that the store has every file of a version and of its ancestors, in its size.
    ///
    /// # Errors
    /// [`Error::Chain`], or [`Error::File`] names the first file that is missing: collected, or
    /// lost.
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

    /// Returns the object name of a file.
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

/// Checks a name. Names become parts of paths, and must not lead elsewhere.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if begins && name.len() <= 100 && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(Error::Name { what, name: name.chars().take(100).collect() })
    }
}
