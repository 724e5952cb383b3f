//! Merges of a run's chain of versions to a new base, in a thread beside the publications.
//!
//! The thread reads the layers of the chain from the registry, writes the merged layer to a folder
//! of the run, and copies it to the registry. The publisher then publishes it as a base
//! ([`zillion_registry::Model::publish_compaction`]). Which chain is merged, and when the result is
//! published, is decided by the [`schedule`](super::schedule).
//!
//! # Concurrency
//! The thread has a low priority and a store of its own, because the threads of a store inherit the
//! priority of the thread that starts them. The layers that a merge reads belong to a version in
//! use, which no collection touches. Files that it has copied belong to no version until the base
//! is published, so the publisher begins no collection from the permission to copy on.
//!
//! # Crash consistency
//! A killed merge leaves files in its folder, which the next start removes, and files in the
//! registry, which a later collection removes. The run that is started again makes the same merge
//! from its beginning.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zillion_device::Files;
use zillion_device::machine::lower_thread_priority;
use zillion_registry::{Cache, Link, Model, VersionManifest};
use zillion_rows::layer::{LayerManifest, Throttle};
use zillion_store::{LAST_WORDS, StoreStop};

use crate::error::{Error, Result};

/// The name of the folder for the files of a merge.
const FOLDER: &str = "compaction";

/// A function that opens the model in a store of its own.
pub(super) type OpenModel = Arc<dyn Fn() -> Result<Model> + Send + Sync>;

/// The counts of merges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompactionCounts {
    /// The number of merges that were published as a base.
    pub published: u64,
    /// The number of merges that have failed. The next one joins a longer chain.
    pub failed: u64,
    /// The number of merges that were given up, because the run went on from another version.
    pub dropped: u64,
    /// The number of bytes of the bases that merges have made.
    pub bytes: u64,
    /// The time that publications have waited for merges.
    pub waited: Duration,
}

/// The merges of a publisher, of which at most one runs.
pub(super) struct Compactor {
    open: OpenModel,
    folder: PathBuf,
    files: Files,
    running: Option<Running>,
    pub(super) counts: CompactionCounts,
}

/// A merge that was begun and not ended.
struct Running {
    /// The newest version of the chain that is merged.
    of: Link,
    /// The permission to copy the files to the registry; absent: it was given.
    permission: Option<Sender<()>>,
    is_merged: Arc<AtomicBool>,
    stop: Stop,
    thread: JoinHandle<Result<LayerManifest>>,
}

/// The switch that ends a merge early.
#[derive(Clone, Debug, Default)]
struct Stop {
    is_set: Arc<AtomicBool>,
    store: StoreStop,
}

impl Throttle for Stop {
    fn piece(&mut self) {}

    fn is_stopped(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}

impl Compactor {
    /// Creates the merges of a run with this folder. Removes the files of a killed merge, which
    /// can be as large as the tables.
    pub(super) fn new(open: OpenModel, run_folder: &Path, files: Files) -> Self {
        let folder = run_folder.join(FOLDER);
        if let Err(error) = clear(&files, &folder) {
            tracing::debug!("the files of a killed merge stay until the next one: {error}");
        }
        Self { open, folder, files, running: None, counts: CompactionCounts::default() }
    }

    /// Begins to merge a chain, unless this merge was begun before. Gives up the merge of another
    /// chain.
    ///
    /// # Errors
    /// Returns an error if the system starts no thread.
    pub(super) fn begin(&mut self, chain: &[Arc<VersionManifest>]) -> Result<()> {
        let Some(newest) = chain.last() else { return Ok(()) };
        let of = newest.link();
        if self.running.as_ref().is_some_and(|running| running.of == of) {
            return Ok(());
        }
        self.give_up();
        let (permission, permitted) = channel();
        let stop = Stop::default();
        let is_merged = Arc::new(AtomicBool::new(false));
        let merge = Merge {
            open: self.open.clone(),
            chain: chain.to_vec(),
            folder: self.folder.clone(),
            files: self.files.clone(),
            stop: stop.clone(),
            is_merged: is_merged.clone(),
            permitted,
        };
        let thread = std::thread::Builder::new()
            .name("zillion-compact".to_owned())
            .spawn(move || merge.run())
            .map_err(Error::io("cannot start a thread for", &self.folder))?;
        self.running = Some(Running { of, permission: Some(permission), is_merged, stop, thread });
        Ok(())
    }

    /// Returns whether a merge has ended and waits for the permission to copy its files.
    pub(super) fn wants_permission(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|r| r.permission.is_some() && r.is_merged.load(Ordering::Acquire))
    }

    /// Returns whether a merge may copy files to the registry, or has done so.
    pub(super) fn is_permitted(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.permission.is_none())
    }

    /// Lets the merge copy its files to the registry. No collection may run from now on until the
    /// merge has ended and its base was published.
    pub(super) fn permit(&mut self) {
        if let Some(permission) = self.running.as_mut().and_then(|r| r.permission.take()) {
            // A thread that has failed does not wait for the permission any more.
            let _ = permission.send(());
        }
    }

    /// Waits for the merge that was begun, and returns its layer, whose files the registry has.
    ///
    /// # Errors
    /// Returns the error of the merge.
    pub(super) fn finish(&mut self) -> Result<LayerManifest> {
        self.permit();
        let began = Instant::now();
        let joined = self.running.take().map(|running| running.thread.join());
        self.counts.waited += began.elapsed();
        match joined {
            Some(Ok(merged)) => merged,
            Some(Err(_)) => Err(Error::MergePanicked),
            None => Err(zillion_rows::Error::Stopped.into()),
        }
    }

    /// Ends a merge that is not needed any more.
    pub(super) fn give_up(&mut self) {
        let Some(Running { of, permission, stop, thread, .. }) = self.running.take() else {
            return;
        };
        tracing::debug!("the merge of the chain of version {} is given up", of.version);
        stop.is_set.store(true, Ordering::Relaxed);
        // A store that hangs must not keep the run from its end.
        stop.store.within(LAST_WORDS);
        drop(permission);
        // An error or a panic of a merge that nobody needs has no effect.
        let _ = thread.join();
        self.counts.dropped += 1;
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The work of the thread of a merge.
struct Merge {
    open: OpenModel,
    chain: Vec<Arc<VersionManifest>>,
    folder: PathBuf,
    files: Files,
    stop: Stop,
    is_merged: Arc<AtomicBool>,
    permitted: Receiver<()>,
}

impl Merge {
    fn run(mut self) -> Result<LayerManifest> {
        // A system that refuses gives the thread the priority of the others.
        let _ = lower_thread_priority();
        clear(&self.files, &self.folder)?;
        let merged = self.merge();
        if let Err(error) = clear(&self.files, &self.folder) {
            tracing::debug!("the files of a merge stay until the next one: {error}");
        }
        merged
    }

    fn merge(&mut self) -> Result<LayerManifest> {
        let model = (self.open)()?.with_stop(self.stop.store.clone());
        let mut cache = Cache::open(&self.folder, model.name(), self.files.clone())?;
        let layer = cache.merge_chain(&model, &self.chain, &mut self.stop)?;
        self.is_merged.store(true, Ordering::Release);
        if self.permitted.recv().is_err() {
            return Err(zillion_rows::Error::Stopped.into());
        }
        model.upload_layer(&layer, cache.folder(), &mut self.stop)?;
        Ok(layer)
    }
}

/// Removes the folder of a merge, if there is one.
fn clear(files: &Files, folder: &Path) -> Result<()> {
    match folder.exists() {
        true => Ok(files.remove_dir(folder)?),
        false => Ok(()),
    }
}
