//! The cache of a model's versions: a local folder with their files. Each file is fetched once,
//! hashed once, and then mapped.
//!
//! ```text
//! <cache>/<model>/files/<blake3>.<kind>     files of versions and of merges, always complete
//! <cache>/<model>/merges/<from>-<to>.json   the files of the merge of a run of deltas
//! <cache>/<model>/manifests/<version>.json  copies of manifests, for a start without the registry
//! ```
//!
//! # Crash consistency
//! A file gets its name after its hash was verified, and a merge gets its entry after its files are
//! synced. An interrupted fetch or merge leaves only files whose names are never read. The folder
//! can be removed while no process uses it, because all its files can be fetched or merged again.
//!
//! # Concurrency
//! Several processes can share a cache. Names follow from contents, so at worst two processes do
//! the same work. A process claims the versions that it has open, and no other process removes
//! their files (see [`claim`]).

mod attempts;
mod claim;
mod fetch;
mod manifests;
mod merging;
mod places;
mod records;
mod repair;
#[cfg(test)]
mod tests;
mod trim;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

pub use attempts::{Attempt, Crashes};
use claim::Claims;
pub use merging::LayerMerge;
use places::Copies;
use zillion_device::{DeviceError, Files, Workers, mmap};
use zillion_rows::TableLayout;
use zillion_rows::layer::{Layer, LayerFile, LayerManifest, LayerSource, OpenPack, Throttle};

use crate::error::{Error, Result};
use crate::frames::Frames;
use crate::model::Model;
use crate::reference::VersionId;
use crate::remembered::{self, Remembered};
use crate::version::{VersionLayer, VersionManifest};

/// The number of bytes that are hashed or copied between two calls of [`Throttle::piece`]. This
/// takes about 0.1 ms, or three times as long if the pages are touched for the first time.
const PIECE_BYTES: usize = 64 << 10;
/// The age after which an unfinished file is considered a leftover of a killed process.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);

/// The number of files that are listed between two calls of [`Throttle::piece`].
const LISTED_AT_ONCE: usize = 64;
/// The number of characters that the name of a merge takes from a chain hash.
const LINK_LETTERS: usize = 24;

/// A cache of the versions of one model.
#[derive(Debug)]
pub struct Cache {
    model: String,
    files_dir: PathBuf,
    merges_dir: PathBuf,
    manifests_dir: PathBuf,
    answers_dir: PathBuf,
    attempts_dir: PathBuf,
    files: Files,
    claims: Claims,
    /// The files that were hashed since the cache was opened.
    scrubbed: BTreeSet<String>,
    /// The chain whose files are being hashed, and those that were not hashed yet.
    unscrubbed: (String, Vec<(String, u64)>),
    /// Whether the registry is not asked.
    is_offline: bool,
    /// Whether files are copied into memory instead of being mapped.
    in_memory: bool,
    /// Whether lookups read records in memory instead of the mapped files.
    has_records: bool,
    /// Whether versions are opened before their layers are merged.
    merges_later: bool,
    /// The time when the merge began that runs beside this cache.
    merging_since: Option<SystemTime>,
    /// The versions that this process claims, and the time since when it is loading others.
    claimed: (BTreeSet<VersionId>, Option<SystemTime>),
    /// The open layers, by the name of the run of versions that each layer has the rows of.
    open: HashMap<String, Layer>,
    /// The manifests that were read before, and the numbers of their bytes. They never change.
    manifests: BTreeMap<VersionId, (Arc<VersionManifest>, u64)>,
    /// The frames of manifests that other processes have kept.
    frames: Frames,
    fetched_files: AtomicU64,
    fetched_bytes: AtomicU64,
    merges: u64,
    merged_bytes: u64,
}

/// The counts of the work of a cache since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// The number of files that were fetched. A fetch copies a file, or links it if the store is on
    /// the same disk.
    pub fetched_files: u64,
    /// The number of bytes of the fetched files.
    pub fetched_bytes: u64,
    /// The number of merges, each of which joins a run of layers to one layer.
    pub merges: u64,
    /// The number of bytes that merges wrote.
    pub merged_bytes: u64,
}

/// The size of the folder of a cache. It includes the files that other processes wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// The number of files that belong to versions or merges.
    pub files: u64,
    /// The number of bytes of these files.
    pub bytes: u64,
}

impl Cache {
    /// Opens the cache of `model` in `folder`. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn open(folder: &Path, model: &str, files: Files) -> Result<Self> {
        let files_dir = folder.join(model).join("files");
        let merges_dir = folder.join(model).join("merges");
        files.create_dir(&files_dir)?;
        files.create_dir(&merges_dir)?;
        Ok(Self {
            model: model.to_owned(),
            files_dir,
            merges_dir,
            manifests_dir: folder.join(model).join("manifests"),
            answers_dir: remembered::folder(folder, model),
            attempts_dir: folder.join(model).join("attempts"),
            files,
            claims: Claims::new(&folder.join(model)),
            scrubbed: BTreeSet::new(),
            unscrubbed: Default::default(),
            is_offline: false,
            in_memory: false,
            has_records: false,
            merges_later: false,
            merging_since: None,
            claimed: Default::default(),
            open: HashMap::new(),
            manifests: BTreeMap::new(),
            frames: Frames::default(),
            fetched_files: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            merges: 0,
            merged_bytes: 0,
        })
    }

    /// Makes the cache copy files into memory, or map them. A copy stays whole if the disk fails or
    /// the file is truncated.
    pub fn set_in_memory(&mut self, in_memory: bool) {
        self.in_memory = in_memory;
    }

    /// Makes the cache load versions without the registry, from what it has already, or with it.
    pub fn set_offline(&mut self, is_offline: bool) {
        self.is_offline = is_offline;
    }

    /// Claims the versions that this process has open, so that no process that shares the cache
    /// removes their files. With `is_loading`, no file that is newer than the claim is removed
    /// either.
    ///
    /// # Errors
    /// Returns an error if the claim cannot be written.
    pub fn claim(&mut self, versions: BTreeSet<VersionId>, is_loading: bool) -> Result<()> {
        self.claimed = (versions, is_loading.then(SystemTime::now));
        self.write_claim()
    }

    /// Writes the claim of this process. The files of a merge that runs belong to no version yet.
    fn write_claim(&mut self) -> Result<()> {
        let (versions, loading_since) = &self.claimed;
        let since = [*loading_since, self.merging_since].into_iter().flatten().min();
        self.claims.set(versions.clone(), since)
    }

    /// Keeps the last answer of the registry about `followed`, the name of a pointer or of another
    /// rule, for a start without the registry.
    ///
    /// # Errors
    /// Returns an error if the answer cannot be written.
    pub fn remember(&self, followed: &str, answer: &Remembered) -> Result<()> {
        answer.write(&self.files, &self.answers_dir, followed)
    }

    /// Returns the last answer of the registry about `followed`, if the cache has it.
    pub fn recall(&self, followed: &str) -> Option<Remembered> {
        Remembered::read(&self.answers_dir, followed)
    }

    /// Returns the counts since the cache was opened.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            fetched_files: self.fetched_files.load(Ordering::Relaxed),
            fetched_bytes: self.fetched_bytes.load(Ordering::Relaxed),
            merges: self.merges,
            merged_bytes: self.merged_bytes,
        }
    }

    /// Counts the files in the folder and their bytes.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be listed.
    pub fn size(&self, pace: &mut dyn Throttle) -> Result<CacheSize> {
        let mut size = CacheSize::default();
        for (number, name) in list_names(&self.files_dir)?.into_iter().enumerate() {
            if number % LISTED_AT_ONCE == 0 {
                pace.piece();
            }
            // A file that was removed meanwhile does not count.
            if let Ok(metadata) = fs::metadata(self.files_dir.join(name)) {
                size.files += 1;
                size.bytes += metadata.len();
            }
        }
        Ok(size)
    }

    /// Returns the folder of the files that belong to versions and merges.
    pub fn folder(&self) -> &Path {
        &self.files_dir
    }

    /// Returns the rows of the last version of `chain`, which [`Model::chain`] has returned.
    /// Fetches the files, merges them to a few layers unless this was done before or is done later
    /// (see [`Cache::set_merges_later`]), and maps them.
    ///
    /// # Errors
    /// Returns [`Error::File`] for a file that is missing or damaged.
    pub fn rows(
        &mut self,
        model: &Model,
        chain: &[Arc<VersionManifest>],
        workers: &Arc<Workers>,
        pace: &mut dyn Throttle,
    ) -> Result<LayerSource> {
        let Some(newest) = chain.last() else {
            return Err(Error::Refused(
                "the chain of versions is empty; give at least one version".to_owned(),
            ));
        };
        self.close_faulted();
        let layouts = newest.layouts();
        let mut layers = Vec::new();
        for run in self.choose_runs(chain)? {
            let layer = self.open_run(model, chain, run.clone(), &layouts, pace)?;
            layers.push(self.with_records(layer, chain, &run, pace)?);
        }
        Ok(LayerSource::new(&newest.frame.tables, layers, workers.clone())?)
    }

    /// Returns the layer of one version. It does not contain the rows of the version's ancestors.
    ///
    /// # Errors
    /// Returns the errors of [`Cache::rows`].
    pub fn layer(
        &mut self,
        model: &Model,
        version: &VersionManifest,
        pace: &mut dyn Throttle,
    ) -> Result<Layer> {
        self.open_single(model, version, &version.layouts(), pace)
    }

    /// Fetches a file of a version, verifies its hash, and maps it.
    ///
    /// # Errors
    /// Returns the errors of [`Cache::rows`].
    pub fn read(
        &self,
        model: &Model,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<bytes::Bytes> {
        if self.fetch(model, name, file, pace)? {
            pace.piece();
            self.files.sync_dir(&self.files_dir)?;
            pace.waited();
        }
        self.place_in_memory(&self.files_dir.join(name), pace)
    }

    /// Maps a file, or copies it into memory if the cache does so.
    fn place_in_memory(&self, path: &Path, pace: &mut dyn Throttle) -> Result<bytes::Bytes> {
        Ok(if self.in_memory { mmap::copy(path, &mut || pace.piece())? } else { mmap::map(path)? })
    }

    /// Returns whether the folder has a file of this name and size.
    fn has(&self, name: &str, bytes: u64) -> bool {
        let found = fs::symlink_metadata(self.files_dir.join(name));
        found.is_ok_and(|found| found.is_file() && found.len() == bytes)
    }

    /// Opens one run of a chain as one layer. The run is merged unless this was done before.
    fn open_run(
        &mut self,
        model: &Model,
        chain: &[Arc<VersionManifest>],
        run: Range<usize>,
        layouts: &[TableLayout],
        pace: &mut dyn Throttle,
    ) -> Result<Layer> {
        if run.len() == 1 {
            return self.open_single(model, &chain[run.start], layouts, pace);
        }
        let name = run_name(chain, &run);
        if let Some(layer) = self.open.get(&name) {
            return Ok(layer.clone());
        }
        if let Some(layer) = self.open_merge(&name, layouts, pace)? {
            return Ok(layer);
        }
        let merge = self.prepare_merge(model, chain, run, layouts, pace)?;
        let manifest = merge.run(pace)?;
        self.record_merge(&manifest);
        let layer = self.open_layer(&manifest, layouts, pace)?;
        self.open.insert(name, layer.clone());
        Ok(layer)
    }

    /// Closes the open layers with a mapped file that has lost pages, so that the files are opened
    /// again.
    fn close_faulted(&mut self) {
        let ranges = mmap::faulted_ranges();
        self.open.retain(|_, layer| !layer.overlaps(&ranges));
    }

    /// Opens an existing merge. Returns `None` if there is no such merge, or if it is incomplete.
    fn open_merge(
        &mut self,
        name: &str,
        layouts: &[TableLayout],
        pace: &mut dyn Throttle,
    ) -> Result<Option<Layer>> {
        if let Some(layer) = self.open.get(name) {
            return Ok(Some(layer.clone()));
        }
        let path = self.merges_dir.join(format!("{name}.json"));
        let Some(manifest) = self.read_merge(&path)? else { return Ok(None) };
        // A merge that cannot be opened is not an error, because it can be made again.
        let Ok(layer) = self.open_layer(&manifest, layouts, pace) else { return Ok(None) };
        self.open.insert(name.to_owned(), layer.clone());
        Ok(Some(layer))
    }

    fn open_layer(
        &self,
        manifest: &LayerManifest,
        layouts: &[TableLayout],
        pace: &mut dyn Throttle,
    ) -> Result<Layer> {
        Ok(if self.in_memory {
            Layer::open(&Copies::new(&self.files_dir, pace), manifest, layouts)?
        } else {
            Layer::open(self.files_dir.as_path(), manifest, layouts)?
        })
    }

    fn read_merge(&self, path: &Path) -> Result<Option<LayerManifest>> {
        match fs::read(path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DeviceError::file("read", path, error).into()),
        }
    }

    fn open_single(
        &mut self,
        model: &Model,
        version: &VersionManifest,
        layouts: &[TableLayout],
        pace: &mut dyn Throttle,
    ) -> Result<Layer> {
        if let Some(layer) = self.open.get(&version.chain) {
            return Ok(layer.clone());
        }
        let mut is_new = false;
        for (name, file) in version.layer.files() {
            if self.fetch(model, &name, &file, pace)? {
                is_new = true;
                self.scrubbed.insert(name);
            }
        }
        if is_new {
            pace.piece();
            self.files.sync_dir(&self.files_dir)?;
            pace.waited();
        }
        let layer = match &version.layer {
            VersionLayer::Listed(listed) => self.open_layer(listed, layouts, pace)?,
            VersionLayer::Packed(pack) => {
                let path = self.files_dir.join(pack.name());
                let bytes = self.place_in_memory(&path, pace)?;
                let pack = OpenPack::open(path, pack, bytes)?;
                Layer::open(&pack, pack.layer(), layouts)?
            }
        };
        self.open.insert(version.chain.clone(), layer.clone());
        Ok(layer)
    }
}

/// Returns the name of a run of versions. It is made from two chain hashes: that of the version
/// before the run, and that of the last version of the run.
fn run_name(chain: &[Arc<VersionManifest>], run: &Range<usize>) -> String {
    format!("{}-{}", merging::before(chain, run.start), short(&chain[run.end - 1].chain))
}

/// Returns the part of a chain hash that the names of merges have.
fn short(hash: &str) -> String {
    hash.chars().take(LINK_LETTERS).collect()
}

/// Returns the names in a folder in ascending order. Hidden names are left out, because they belong
/// to unfinished files.
fn list_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = list_all_names(folder)?;
    names.retain(|name| !name.starts_with('.'));
    Ok(names)
}

/// Returns all names in a folder in ascending order. A folder that does not exist has no names.
fn list_all_names(folder: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::from(DeviceError::file("list the folder", folder, error));
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.into_string());
    }
    names.sort_unstable();
    Ok(names)
}
