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

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::pointer::{MoveKind, PointerLog, PointerMove};
use crate::store::Store;
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
    /// The registry at a URL: a folder, or `file:///…`.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(url: &str, files: Files, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Store::open(url, files)?, clock })
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
    pub fn chain(&self, version: VersionId) -> Result<Vec<VersionManifest>> {
        let mut chain = vec![self.version(version)?];
        while let Some(link) = chain.last().and_then(|v| v.parent.clone()) {
            chain.push(self.parent(chain.last().map_or(version, |v| v.version), &link, &chain)?);
        }
        chain.reverse();
        Ok(chain)
    }

    fn parent(
        &self,
        child: VersionId,
        link: &Link,
        chain: &[VersionManifest],
    ) -> Result<VersionManifest> {
        let broken =
            |reason: String| Error::Chain { model: self.name.clone(), version: child, reason };
        let parent = match self.version(link.version) {
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
        if let Some(newest) = chain.first()
            && parent.schema_hash != newest.schema_hash
        {
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

    /// Moves a pointer to a version, whose chain must hold.
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

    /// Moves a pointer back: to `to`, or to the parent of where it stands.
    ///
    /// # Errors
    /// As [`Model::promote`]; a version without a parent.
    pub fn rollback(
        &self,
        pointer: &str,
        to: Option<VersionId>,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        let now = self.pointer(pointer)?.to.version;
        let to = match to {
            Some(to) => to,
            None => match self.version(now)?.parent {
                Some(parent) => parent.version,
                None => {
                    return Err(Error::Refused(format!(
                        "version {now} is a base and has no parent to go back to; name a version with `--to`"
                    )));
                }
            },
        };
        self.promote(pointer, to, MoveKind::Rollback, by, note)
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
