//! The merges of the versions that answer, which run beside the loader.
//!
//! A version is opened with the layers that it has, so that it does not wait for a merge. Then its
//! missing merges run, one at a time, in a thread of their own. After each merge the version is
//! loaded again, with fewer layers, and takes the place of the same version. Loads of newer
//! versions go on meanwhile. A merge holds one part of its result in memory, beside what a load
//! needs.
//!
//! # Panics
//! A panic of a merge is an error of this merge. The version answers with the layers that it has,
//! and the merge is tried again later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zillion_device::machine::lower_thread_priority;
use zillion_registry::{Attempt, LayerMerge, VersionId};
use zillion_rows::layer::LayerManifest;
use zillion_scorer::{Error, Servable};

use super::care::is_disk_full;
use super::{Follower, describe_panic, is_stop};
use crate::host::OpenVersions;

/// The wait after a merge that has failed.
const RETRY_WAIT: Duration = Duration::from_secs(30);

/// The name of the thread of a merge.
pub(in crate::loader) const THREAD: &str = "zillion-merge";

type Outcome = Result<LayerManifest, Error>;

/// The merge that runs, and the wait after one that has failed.
#[derive(Debug, Default)]
pub(super) struct Merging {
    running: Option<Running>,
    retry_at: Option<Instant>,
    /// The open versions that miss no merge.
    merged: Vec<Weak<Servable>>,
}

/// A merge that runs.
#[derive(Debug)]
struct Running {
    version: VersionId,
    /// The mark by which a restarted server knows that the merge has ended the server.
    _attempt: Option<Attempt>,
    outcome: mpsc::Receiver<Outcome>,
    thread: JoinHandle<()>,
}

impl Drop for Merging {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // The loader was told to stop, which ends the merge too. Its panic was caught.
            let _ = running.thread.join();
        }
    }
}

impl Follower {
    /// Takes the result of a merge, opens versions again that have fewer layers now, and begins the
    /// next merge.
    pub(in crate::loader) fn merge_layers(&mut self) {
        if let Err(error) = self.try_merge_layers() {
            tracing::warn!(model = self.model.name(), "cannot merge layers: {error}");
            self.merging.retry_at = Some(Instant::now() + RETRY_WAIT);
        }
    }

    fn try_merge_layers(&mut self) -> Result<(), Error> {
        if !self.take_outcome()? {
            return Ok(());
        }
        if self.merging.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.merging.retry_at = None;
        let open = self.host.open();
        self.merging.merged.retain(|version| version.strong_count() > 0);
        // A version that only a rollback needs is not worth a merge.
        for version in open.current.iter().chain(open.labels.values()).copied() {
            if self.merge_version(version)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the result of the merge that runs. Returns whether none runs now.
    fn take_outcome(&mut self) -> Result<bool, Error> {
        let Some(running) = &self.merging.running else { return Ok(true) };
        let outcome = match running.outcome.try_recv() {
            Err(mpsc::TryRecvError::Empty) => return Ok(false),
            Ok(outcome) => outcome,
            Err(mpsc::TryRecvError::Disconnected) => {
                Err(Error::Refused("the thread of the merge has ended early".to_owned()))
            }
        };
        let version = running.version;
        if let Some(running) = self.merging.running.take() {
            // The panic of a merge is in its outcome.
            let _ = running.thread.join();
        }
        self.cache.end_merge(outcome.as_ref().ok())?;
        if let Err(error) = &outcome
            && is_disk_full(error)
        {
            // The merge is tried again, whether room was made or not.
            let _ = self.guard(version, |this| Ok(this.mend(version, error)));
        }
        outcome.map(|_| true)
    }

    /// Opens a version again if it has fewer layers now, and begins its next merge. Returns whether
    /// a merge has begun.
    fn merge_version(&mut self, version: VersionId) -> Result<bool, Error> {
        let open = self.host.open();
        let Some(servable) = open.versions.get(&version) else { return Ok(false) };
        let is_merged = |merged: &Weak<Servable>| merged.as_ptr() == Arc::as_ptr(servable);
        if self.merging.merged.iter().any(is_merged) {
            return Ok(false);
        }
        // A version whose files have changed is loaded again from whole files first.
        if servable.is_damaged() || self.distrusted.contains(&version) {
            return Ok(false);
        }
        let chain = self.cache.chain(&self.model, version)?;
        if chain.last().is_none_or(|newest| newest.chain != servable.manifest().chain) {
            return Ok(false);
        }
        self.pace.begin();
        if self.cache.count_layers(&chain)? < servable.rows().layers().len() {
            self.reopen(&open, version)?;
        }
        let merge = self.guard(version, |this| {
            Ok(this.cache.next_merge(&this.model, &chain, &mut this.pace)?)
        })?;
        let Some(merge) = merge else {
            let merged = self.host.open().versions.get(&version).map(Arc::downgrade);
            self.merging.merged.extend(merged);
            return Ok(false);
        };
        match self.start_merge(version, merge) {
            Ok(running) => self.merging.running = Some(running),
            Err(error) => {
                self.cache.end_merge(None)?;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Loads an open version again, with the merges that were made since, and lets the new load
    /// answer. A load that fails leaves the version as it is.
    fn reopen(&mut self, open: &OpenVersions, version: VersionId) -> Result<(), Error> {
        let others: Vec<Arc<Servable>> = open.versions.values().cloned().collect();
        let loaded = self.guard(version, |this| this.load(&others, version));
        let servable = match loaded {
            Ok(servable) => servable,
            Err(error) => {
                // A damaged merge is made again.
                let _ = self.guard(version, |this| Ok(this.mend(version, &error)));
                return Err(error);
            }
        };
        let layers = servable.rows().layers().len();
        tracing::info!(model = self.model.name(), version = version.0, layers, "layers are merged");
        let mut merged = open.clone();
        merged.versions.insert(version, Arc::new(servable));
        self.publish(open, merged);
        Ok(())
    }

    /// Starts the thread of a merge.
    fn start_merge(&self, version: VersionId, merge: LayerMerge) -> Result<Running, Error> {
        let _attempt = self.cache.begin_attempt(version);
        let (metrics, name) = (self.metrics.clone(), self.model.name().to_owned());
        let (sender, outcome) = mpsc::sync_channel(1);
        let mut pace = self.pace.another();
        let loader = std::thread::current();
        let work = move || {
            // A system that refuses gives the merge the priority of the other threads.
            let _ = lower_thread_priority();
            pace.begin();
            let merged = catch_unwind(AssertUnwindSafe(|| merge.run(&mut pace)));
            let outcome: Outcome = match merged {
                Ok(merged) => merged.map_err(Error::from),
                Err(payload) if is_stop(payload.as_ref()) => return,
                Err(payload) => {
                    metrics.loading.record_panic(&name);
                    Err(Error::Refused(format!(
                        "a merge of layers has panicked ({}); report this defect",
                        describe_panic(payload.as_ref())
                    )))
                }
            };
            // A loader that has gone needs no outcome.
            let _ = sender.send(outcome);
            loader.unpark();
        };
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(work);
        let thread = thread.map_err(|e| {
            Error::Refused(format!(
                "cannot start the thread of a merge ({e}); raise the limit of threads of the system"
            ))
        })?;
        Ok(Running { version, _attempt, outcome, thread })
    }
}
