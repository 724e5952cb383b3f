//! A registry of models, and one model's versions and pointers.
//!
//! ```text
//! <model>/versions/<…>/<number>.json        manifests: a version is there when its manifest is
//! <model>/pointers/<pointer>/<…>/<n>.json   the log of each pointer's moves
//! <model>/files/<ab>/<blake3>.<kind>        everything else, under the hash of its bytes
//! <model>/pins/<version>.json               versions that garbage collection leaves alone
//! <model>/leases/<server>.json              versions that a running server has open
//! ```
//!
//! # Crash consistency
//! Files go first and the manifest last, by create-if-absent: a publisher that dies leaves files that
//! nothing names, which garbage collection removes. Nothing is ever changed in place.

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
    /// The registry at a URL: a folder that is there, `file:///…`, or a bucket (`s3://bucket/prefix`, `gs://…`,
    /// `az://…`) with the credentials of the process.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Store::open(url, files)?, clock })
    }

    /// The same, made if it is not there: for those who publish.
    ///
    /// # Errors
    /// As [`Store::create_at`].
    pub fn create(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Store::create_at(url, files)?, clock })
    }

    /// [`Registry::open`] with other credentials and settings than the process has.
    ///
    /// # Errors
    /// As [`Store::open_in`].
    pub fn open_in(
        environment: &Environment,
        url: &str,
        files: Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Ok(Self { store: Store::open_in(environment, url, files)?, clock })
    }

    /// [`Registry::create`] with other credentials and settings than the process has.
    ///
    /// # Errors
    /// As [`Store::create_in`].
    pub fn create_in(
        environment: &Environment,
        url: &str,
        files: Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Ok(Self { store: Store::create_in(environment, url, files)?, clock })
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A model by its name, which need not have a version yet.
    ///
    /// # Errors
    /// A name that is none.
    pub fn model(&self, name: &str) -> Result<Model> {
        check_name("model", name)?;
        Ok(Model {
            name: name.to_owned(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            versions: Numbered::new(self.store.clone(), format!("{name}/versions")),
        })
    }

    /// The names of all models, in ascending order.
    ///
    /// # Errors
    /// Where the store refuses.
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
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The store that it lies in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where its registry is.
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// The same model, whose operations on the store `stop` cuts short.
    #[must_use]
    pub fn with_stop(&self, stop: StoreStop) -> Self {
        let store = self.store.with_stop(stop);
        let versions = Numbered::new(store.clone(), format!("{}/versions", self.name));
        Self { name: self.name.clone(), store, clock: self.clock.clone(), versions }
    }

    /// The number that was published last.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn latest(&self) -> Result<Option<VersionId>> {
        Ok(self.versions.last()?.map(VersionId))
    }

    /// A version's manifest, verified against its own hash.
    ///
    /// # Errors
    /// [`Error::NoVersion`], or [`Error::Manifest`] for one that was changed.
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

    /// Up to `limit` versions below `end`, the newest first; the first page has no `end`.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn page(&self, end: Option<VersionId>, limit: usize) -> Result<Vec<VersionId>> {
        let Some(last) = self.versions.last()? else { return Ok(Vec::new()) };
        let end = end.map_or(last + 1, |end| end.0.min(last + 1));
        Ok(self.versions.page(end, limit)?.into_iter().map(VersionId).collect())
    }

    /// A version and those that it stands on, the base first.
    ///
    /// # Errors
    /// [`Error::Chain`] names the version whose parent is missing, is another than it says, or has
    /// another schema.
    pub fn chain(&self, version: VersionId) -> Result<Vec<Arc<VersionManifest>>> {
        self.chain_by(version, |version| self.version(version).map(Arc::new))
    }

    /// [`Model::chain`] with manifests from wherever the caller keeps them.
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
                return Err(broken(format!("its parent, version {}, is not there", link.version)));
            }
            Err(other) => return Err(other),
        };
        if parent.chain != link.chain {
            return Err(broken(format!(
                "it stands on a version {} with the hash {}, and the one that is there has {}",
                link.version, link.chain, parent.chain
            )));
        }
        if parent.schema_hash != newest.schema_hash {
            let version = link.version;
            return Err(broken(format!(
                "version {version}, which it stands on, has another schema"
            )));
        }
        Ok(parent)
    }

    /// Where a pointer stands.
    ///
    /// # Errors
    /// [`Error::NoPointer`] if it was never set.
    pub fn pointer(&self, pointer: &str) -> Result<PointerMove> {
        let last = self.pointer_log(pointer)?.last()?;
        last.ok_or_else(|| Error::NoPointer { pointer: pointer.to_owned() })
    }

    /// Up to `limit` of a pointer's moves before number `end`, the newest first.
    ///
    /// # Errors
    /// Where the store refuses.
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

    /// The names of all pointers that were set, in ascending order.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn pointers(&self) -> Result<Vec<String>> {
        Ok(self.store.list(&format!("{}/pointers", self.name))?.folders)
    }

    /// Moves a pointer to a version, whose chain must hold. Returns the move; where it stands there already, the
    /// one that brought it.
    ///
    /// # Errors
    /// A version that is not there, or [`Error::PointerMoved`] where somebody else was first.
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
        // Where it stands already is no move: the log stays a history that can be gone back in.
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

    /// Moves a pointer back: to `to`, or to where it stood before it was moved to where it stands.
    ///
    /// # Errors
    /// As [`Model::promote`]; a pointer that stood nowhere before.
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
            None => self.stood_before(pointer, &now)?,
        };
        if to == now.to.version {
            return Err(Error::Refused(format!(
                "it stands on version {to} already: pointer `{pointer}`"
            )));
        }
        self.promote(pointer, to, MoveKind::Rollback, by, note)
    }

    /// Where a pointer stood before it came, not by a rollback, to where it stands now: rolling back twice
    /// goes back two versions.
    fn stood_before(&self, pointer: &str, now: &PointerMove) -> Result<VersionId> {
        const PAGE: usize = 64;
        let mut end = None;
        loop {
            let page = self.moves(pointer, end, PAGE)?;
            let came =
                |entry: &&PointerMove| entry.to == now.to && entry.kind != MoveKind::Rollback;
            if let Some(entry) = page.iter().find(came) {
                return entry.from.ok_or_else(|| self.nothing_before(now.to.version));
            }
            match page.last() {
                Some(oldest) if oldest.number > 1 => end = Some(oldest.number),
                // An operator rolled back to a version that the pointer had never stood on.
                _ => {
                    let parent = self.version(now.to.version)?.parent;
                    let before = parent.map(|parent| parent.version);
                    return before.ok_or_else(|| self.nothing_before(now.to.version));
                }
            }
        }
    }

    fn nothing_before(&self, version: VersionId) -> Error {
        Error::Refused(format!(
            "the pointer stood nowhere before version {version}; name a version with `--to`: model `{}`",
            self.name
        ))
    }

    /// Whether every file of a version and of all that it stands on is in the store, in its size.
    ///
    /// # Errors
    /// [`Error::Chain`], or [`Error::File`] names the first file that is not there: collected, or lost.
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
                    "a file of version {of}, which version {version} needs, is not there any more (collected by gc, \
                     or lost)"
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

    /// The name of a file's object.
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

/// Names go into paths: nothing that could lead elsewhere.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if begins && name.len() <= 100 && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(Error::Name { what, name: name.chars().take(100).collect() })
    }
}
