//! A registry of models, and the versions and pointers of one model.
//!
//! ```text
//! <model>/versions/<…>/<number>.json        manifests: a version exists when its manifest does
//! <model>/pointers/<pointer>/<…>/<n>.json   the log of each pointer's moves
//! <model>/files/<ab>/<blake3>.<kind>        everything else, named by the hash of its bytes
//! <model>/pins/<version>.json               versions that garbage collection leaves alone
//! <model>/leases/<server>.json              versions that a running server has loaded
//! <model>/proofs/<version>.json             notes that a server has served a version
//! ```
//!
//! # Crash consistency
//! The files of a version are written first. The manifest is written last, by create-if-absent. If
//! a publisher is killed, garbage collection removes its files that no manifest names. Objects are
//! never changed in place.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_access::TrustedKeys;
use zillion_device::{Clock, Files};
use zillion_store::{Environment, Store, StoreStop, fan_out};

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::frames::Frames;
use crate::manifest_scan::Scan;
use crate::numbered::Numbered;
use crate::pointer::{PointerLog, PointerMove};
use crate::reference::{Link, MAX_MANIFEST_BYTES, VersionFile, VersionId};
use crate::remembered::can_begin;
use crate::trust::{Signer, Trust};
use crate::version::VersionManifest;

/// The largest number of versions of a chain. A publisher makes chains of a few hundred.
pub(crate) const MAX_CHAIN: usize = 4096;

/// The largest number of bytes of the manifests and the frames of a chain: those of a large base,
/// and of a thousand deltas of 100 kB each.
const MAX_CHAIN_BYTES: u64 = 128 << 20;

/// The pointer that servers follow by default.
pub const STABLE: &str = "stable";
/// The pointer to a version that gets a part of the traffic for a trial.
pub const CANARY: &str = "canary";

/// A registry of models in a store.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    clock: Arc<dyn Clock>,
    trust: Trust,
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

    /// Opens the registry at a URL for a server that can begin without it: if `cache` holds what
    /// a server has served before for one of `models`, the registry is not asked whether it exists
    /// and is accessible.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`], or only those of [`Store::attach_in`] if the cache
    /// suffices.
    pub fn open_for_server<'a>(
        url: &str,
        files: Files,
        clock: Arc<dyn Clock>,
        cache: &Path,
        models: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let environment = Environment::process();
        // A new model must not keep the others from the versions of the cache.
        let store = if models.into_iter().any(|model| can_begin(cache, model)) {
            Store::attach_in(&environment, url, files)?
        } else {
            Store::open_in(&environment, url, files)?
        };
        Ok(Self::new(store, clock))
    }

    /// Makes the registry of a store that is open.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, trust: Trust::default() }
    }

    /// Returns the same registry with trusted keys: versions and pointer moves that none of them
    /// signed are refused.
    #[must_use]
    pub fn with_trusted_keys(self, keys: TrustedKeys) -> Self {
        Self { trust: self.trust.with_keys(keys), ..self }
    }

    /// Returns the same registry with a key that signs its new versions and pointer moves.
    #[must_use]
    pub fn with_signer(self, signer: Signer) -> Self {
        Self { trust: self.trust.with_signer(signer), ..self }
    }

    /// Returns the store of the registry.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the same registry with operations on the store that `stop` can end early.
    #[must_use]
    pub fn with_stop(&self, stop: StoreStop) -> Self {
        Self { store: self.store.with_stop(stop), ..self.clone() }
    }

    /// Returns the model with this name, which may not have a version yet.
    ///
    /// # Errors
    /// Returns an error if the name is not allowed.
    pub fn model(&self, name: &str) -> Result<Model> {
        check_name("model", name)?;
        Ok(Model {
            name: name.to_owned(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            versions: version_log(&self.store, name),
            trust: self.trust.clone(),
            frames: Frames::default(),
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

/// The bytes of the manifests and of the frames of a chain. A frame counts once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChainBytes {
    sum: u64,
    frames: BTreeSet<String>,
}

impl ChainBytes {
    /// Adds a version whose manifest has `bytes` bytes.
    pub(crate) fn add(&mut self, version: &VersionManifest, bytes: u64) {
        self.sum = self.sum.saturating_add(bytes);
        if let Some(file) = &version.frame_file
            && !self.frames.contains(&file.blake3)
        {
            self.frames.insert(file.blake3.clone());
            self.sum = self.sum.saturating_add(file.bytes);
        }
    }

    /// Returns whether readers refuse the chain.
    pub(crate) fn is_too_large(&self) -> bool {
        self.sum > MAX_CHAIN_BYTES
    }
}

/// One model of a registry.
#[derive(Clone)]
pub struct Model {
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) versions: Numbered,
    pub(crate) trust: Trust,
    pub(crate) frames: Frames,
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
        let versions = version_log(&store, &self.name);
        Self { store, versions, ..self.clone() }
    }

    /// Returns the number of the version that was published last, or `None` if there is no version.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn latest(&self) -> Result<Option<VersionId>> {
        Ok(self.versions.last()?.map(VersionId))
    }

    /// Returns the number of the version that was published last, given that `known` was published.
    /// Costs one request if it still is the last.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn latest_since(&self, known: VersionId) -> Result<Option<VersionId>> {
        Ok(self.versions.last_since(known.0)?.map(VersionId))
    }

    /// Reads the manifest of a version, and verifies it against its own hash and, if there are
    /// trusted keys, its signature.
    ///
    /// # Errors
    /// Returns [`Error::NoVersion`] if there is no such version, [`Error::Manifest`] if the
    /// manifest was changed, or [`Error::Access`] if no trusted key signed it.
    pub fn version(&self, version: VersionId) -> Result<VersionManifest> {
        self.read_version(version).map(|(manifest, _)| manifest)
    }

    /// Reads a manifest like [`Model::version`]. Returns it with the number of its bytes.
    pub(crate) fn read_version(&self, version: VersionId) -> Result<(VersionManifest, u64)> {
        let parse = |bytes: &[u8]| self.parse_version(version, bytes, |file| self.frame(file));
        match self.versions.get(version.0)? {
            Some(bytes) => Ok((parse(&bytes)?, bytes.len() as u64)),
            None if self.latest()?.is_none() => Err(Error::NoModel { model: self.name.clone() }),
            None => Err(Error::NoVersion { model: self.name.clone(), version }),
        }
    }

    /// Reads a manifest from the bytes of its object or of its copy, and verifies it. `frame` reads
    /// the frame that the manifest names.
    pub(crate) fn parse_version(
        &self,
        version: VersionId,
        bytes: &[u8],
        frame: impl FnOnce(&VersionFile) -> Result<Arc<Frame>>,
    ) -> Result<VersionManifest> {
        let name = self.versions.name(version.0);
        if self.trust.has_keys() {
            // What no trusted key signed does not get the memory of a parsed manifest.
            let refuse = |reason| Error::Manifest { path: name.clone(), reason };
            let scan = Scan::of(bytes).map_err(refuse)?;
            self.trust.check_scan(&self.name, version, &scan)?;
        }
        let manifest = VersionManifest::parse(&name, &self.name, version, bytes, frame)?;
        self.trust.check_version(&manifest)?;
        Ok(manifest)
    }

    /// Reads the frame in a file of this model, unless it was read before.
    fn frame(&self, file: &VersionFile) -> Result<Arc<Frame>> {
        let object = self.file_object(&file.name());
        let path = self.store.local_path(&object).unwrap_or_else(|| object.clone().into());
        self.frames.get_or_read(file, path.clone(), || {
            let bytes = self.store.get_at_most(&object, MAX_MANIFEST_BYTES)?;
            let reason = "the frame of the version is missing, because it was lost or removed";
            bytes.ok_or_else(|| Error::File { path, reason: reason.to_owned() })
        })
    }

    /// Returns up to `limit` versions below `end`, the newest first. The first page has no `end`.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn page(&self, end: Option<VersionId>, limit: usize) -> Result<Vec<VersionId>> {
        let Some(last) = self.versions.last()? else { return Ok(Vec::new()) };
        let end = end.map_or(u64::MAX, |end| end.0).min(last.saturating_add(1));
        Ok(self.versions.page(end, limit)?.into_iter().map(VersionId).collect())
    }

    /// Returns a version and its ancestors, the base first.
    ///
    /// # Errors
    /// Returns [`Error::Chain`] if the parent of a version is missing, has a different hash, or has
    /// a different schema.
    pub fn chain(&self, version: VersionId) -> Result<Vec<Arc<VersionManifest>>> {
        self.chain_by(version, |version| {
            self.read_version(version).map(|(manifest, bytes)| (Arc::new(manifest), bytes))
        })
    }

    /// Returns the chain of a version like [`Model::chain`]. `manifest` reads the manifests, and
    /// the numbers of their bytes.
    pub(crate) fn chain_by(
        &self,
        version: VersionId,
        mut manifest: impl FnMut(VersionId) -> Result<(Arc<VersionManifest>, u64)>,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        let (newest, bytes) = manifest(version)?;
        let mut sum = ChainBytes::default();
        sum.add(&newest, bytes);
        let mut chain = vec![newest.clone()];
        let mut child = newest.clone();
        while let Some(link) = child.parent.clone() {
            let (parent, bytes) = self.read_parent(&child, &link, &newest, &mut manifest)?;
            sum.add(&parent, bytes);
            chain.push(parent.clone());
            if chain.len() > MAX_CHAIN || sum.is_too_large() {
                let reason = format!(
                    "the version has more than {MAX_CHAIN} ancestors, or their manifests and frames have \
                     more than {MAX_CHAIN_BYTES} bytes; publish a new base"
                );
                return Err(Error::Chain { model: self.name.clone(), version, reason });
            }
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
        manifest: &mut impl FnMut(VersionId) -> Result<(Arc<VersionManifest>, u64)>,
    ) -> Result<(Arc<VersionManifest>, u64)> {
        let broken = |reason: String| Error::Chain {
            model: self.name.clone(),
            version: child.version,
            reason,
        };
        let (parent, bytes) = match manifest(link.version) {
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
                "the manifest names version {} with hash {} as its parent, but that version has \
                 hash {}; publish a new base",
                link.version, link.chain, parent.chain
            )));
        }
        if parent.frame.schema_hash != newest.frame.schema_hash {
            let version = link.version;
            return Err(broken(format!(
                "the parent, version {version}, has a different schema; publish a new base"
            )));
        }
        Ok((parent, bytes))
    }

    /// Returns the last move of a pointer. If there are trusted keys, one of them must have signed
    /// the move, which must still be valid.
    ///
    /// # Errors
    /// Returns [`Error::NoPointer`] if the pointer was never set, [`Error::Access`] if no trusted
    /// key signed the move, [`Error::Expired`] if its validity has ended, or [`Error::Replayed`] if
    /// a later move was taken before.
    pub fn pointer(&self, pointer: &str) -> Result<PointerMove> {
        let last = self.last_move(pointer)?;
        self.check_last_move(pointer, &last)?;
        Ok(last)
    }

    /// Returns the last move of a pointer as it was written.
    pub(crate) fn last_move(&self, pointer: &str) -> Result<PointerMove> {
        let last = self.pointer_log(pointer)?.last()?;
        last.ok_or_else(|| Error::NoPointer { pointer: pointer.to_owned() })
    }

    /// Returns the last move of a pointer, given that `known` was its last move earlier. Costs one
    /// request if it still is.
    ///
    /// # Errors
    /// Returns [`Error::NoPointer`] if the pointer has no move any more.
    pub fn pointer_since(&self, pointer: &str, known: &PointerMove) -> Result<PointerMove> {
        let last = self.pointer_log(pointer)?.last_since(known)?;
        let last = last.ok_or_else(|| Error::NoPointer { pointer: pointer.to_owned() })?;
        // A move that has not changed can have expired.
        self.check_last_move(pointer, &last)?;
        Ok(last)
    }

    /// Returns up to `limit` moves of a pointer before number `end`, the newest first, as they were
    /// written: their signatures are not verified.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn moves(&self, pointer: &str, end: Option<u64>, limit: usize) -> Result<Vec<PointerMove>> {
        let log = self.pointer_log(pointer)?;
        match log.last()? {
            None => Ok(Vec::new()),
            Some(last) => {
                let end = end.unwrap_or(u64::MAX).min(last.number.saturating_add(1));
                log.page(end, limit)
            }
        }
    }

    /// Returns the names of all pointers that were set, in ascending order. A folder whose name no
    /// pointer can have is left out.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn pointers(&self) -> Result<Vec<String>> {
        let folders = self.store.list(&format!("{}/pointers", self.name))?.folders;
        Ok(folders.into_iter().filter(|name| check_name("pointer", name).is_ok()).collect())
    }

    pub(crate) fn pointer_log(&self, pointer: &str) -> Result<PointerLog> {
        check_name("pointer", pointer)?;
        Ok(PointerLog::new(self.store.clone(), &self.name, pointer))
    }

    /// Returns the name of the object that contains a file.
    pub(crate) fn file_object(&self, name: &str) -> String {
        fan_out(&self.files_folder(), name)
    }

    /// Returns the name of the folder of the files of all versions. A file is named by the hash of
    /// its bytes, and divided among folders by `zillion_store::fan_out`.
    pub fn files_folder(&self) -> String {
        format!("{}/files", self.name)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let since = self.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.clock.wall()
    }
}

fn version_log(store: &Store, model: &str) -> Numbered {
    Numbered::new(store.clone(), format!("{model}/versions"), MAX_MANIFEST_BYTES)
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
