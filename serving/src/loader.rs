//! Hot loading: a thread that follows the registry, and loads versions beside those that answer.
//!
//! The thread works in slices. After each slice it measures the time of the slice, and while
//! requests are open it rests for as long as it worked, so that scoring always finds a free
//! processor. A version is invisible until it is complete. If a version cannot be loaded, the
//! loaded versions stay, and the loader tries again later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use zillion_device::{Files, Workers, thread_time};
use zillion_registry::{
    Cache, CacheCounts, Error as RegistryError, Model, VersionId, VersionManifest,
};
use zillion_rows::RowSource as _;
use zillion_rows::layer::Throttle;
use zillion_scorer::{Error, Servable};
use zillion_store::{LAST_WORDS, StoreStop};

use crate::config::{Follow, ServeConfig};
use crate::host::{Host, OpenVersions};
use crate::metrics::Metrics;
use crate::trace::span;

/// The number of loads between two clean-ups of the cache.
const TRIM_EVERY: u64 = 16;

/// The duration of a lease on loaded versions. A server renews its lease after a third of this time
/// at the latest.
const LEASE: Duration = Duration::from_secs(300);

/// The longest time between two attempts to load the same version.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The handle of the thread that loads the versions of one model.
#[derive(Debug)]
pub(crate) struct Loader {
    stop: Arc<AtomicBool>,
    /// The signal that ends the thread's operations on the store.
    store_stop: StoreStop,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to follow `model` and to publish its versions in `host`.
    pub(crate) fn start(
        model: Model,
        host: Arc<Host>,
        config: Arc<ServeConfig>,
        files: Files,
        workers: Arc<Workers>,
        busy: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let cache = Cache::open(&config.cache, model.name(), files)?;
        let stop = Arc::new(AtomicBool::new(false));
        let store_stop = StoreStop::default();
        let model = model.with_stop(store_stop.clone());
        let pace = Slices::new(busy, metrics.clone());
        let poll = config.poll;
        let mut follower = Follower {
            model,
            host,
            config,
            cache,
            workers,
            metrics,
            pace,
            recent: Vec::new(),
            loads: 0,
            leased: None,
            failed: None,
            counted: CacheCounts::default(),
            fresh: Vec::new(),
            newest: None,
            began: SystemTime::now(),
        };
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("zillion-loader".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    follower.poll();
                    for version in follower.host.open().versions.values() {
                        version.release_idle();
                    }
                    std::thread::park_timeout(poll);
                }
                follower.end_lease();
            })
            .map_err(|e| Error::Refused(format!("cannot start the thread of the loader: {e}")))?;
        Ok(Self { stop, store_stop, thread: Some(thread) })
    }

    /// Wakes the thread, so that it reads the registry now.
    pub(crate) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A store that hangs must not block the server that stops. The time suffices to end the
        // lease, which would also run out by itself.
        self.store_stop.within(LAST_WORDS);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The panic of a loader was reported already, and a panic while dropping would abort
            // the process.
            let _ = thread.join();
        }
    }
}

/// The state of the loader's thread.
struct Follower {
    model: Model,
    host: Arc<Host>,
    config: Arc<ServeConfig>,
    cache: Cache,
    workers: Arc<Workers>,
    metrics: Arc<Metrics>,
    pace: Slices,
    /// The versions that were current, the newest last.
    recent: Vec<VersionId>,
    /// The number of loads that have changed the published versions so far.
    loads: u64,
    /// The time of the last lease.
    leased: Option<Instant>,
    /// The version that could not be loaded, the time of the next attempt, and the length of the
    /// last wait.
    failed: Option<(VersionId, Instant, Duration)>,
    /// The counts of the cache that the metrics already have.
    counted: CacheCounts,
    /// The versions that are loaded and not published to requests yet.
    fresh: Vec<Arc<Servable>>,
    /// The greatest version number that was published to requests so far. Together with
    /// `began` it ensures that each version is measured once.
    newest: Option<VersionId>,
    /// The time when this thread began.
    began: SystemTime,
}

impl Follower {
    /// Reads the registry and loads the versions that its pointers name.
    fn poll(&mut self) {
        let Err(error) = self.refresh() else { return };
        let name = self.model.name();
        self.fresh.clear();
        self.metrics.loading.record_failure(name, &error);
        let before = self.host.open();
        let problem = error.to_string();
        if before.problem.as_deref() != Some(problem.as_str()) {
            tracing::error!(model = name, "{problem}");
            self.metrics.record_load_failure(name);
        }
        self.host.publish(OpenVersions { problem: Some(problem), ..(*before).clone() });
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let mut labels = BTreeMap::new();
        for pointer in self.model.pointers()? {
            match self.model.pointer(&pointer) {
                Ok(moved) => _ = labels.insert(pointer, moved.to.version),
                // The pointer was removed after it was listed. A followed pointer that is missing
                // is handled below.
                Err(RegistryError::NoPointer { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let follow = self.host.follow();
        let current = match &follow {
            Follow::Latest => self.model.latest()?,
            Follow::Pointer(pointer) => labels.get(pointer).copied(),
        };
        let before = self.host.open();
        let Some(current) = current else {
            let what = match (&follow, before.current) {
                (Follow::Latest, None) => "the model has no version yet".to_owned(),
                (Follow::Pointer(pointer), None) => format!("pointer `{pointer}` was never set"),
                (_, Some(current)) => format!(
                    "the registry no longer names a version to serve; version {current} keeps answering"
                ),
            };
            return Err(Error::Refused(format!("registry `{}`: {what}", self.model.url())));
        };
        self.metrics.record_registry_answer(self.model.name());
        if before.problem.is_none() && before.current == Some(current) && before.labels == labels {
            return self.renew_lease(&before, false);
        }
        if self.failed.as_ref().is_some_and(|&(v, at, _)| v == current && Instant::now() < at) {
            // An attempt reads and hashes all files, and a damaged file is seldom repaired at once.
            return Ok(());
        }
        if self.recent.last() != Some(&current) {
            self.recent.retain(|&version| version != current);
            self.recent.push(current);
            let surplus = self.recent.len().saturating_sub(self.config.retain_cached + 1);
            self.recent.drain(..surplus);
        }
        let open_ones = self.recent.len().saturating_sub(self.config.retain + 1);
        let stay = self.recent[open_ones..].iter().filter(|&v| before.versions.contains_key(v));
        let wanted: BTreeSet<VersionId> =
            labels.values().chain(stay).copied().chain([current]).collect();
        // The lease comes first, so that files are not collected while they are being opened.
        self.lease(wanted.iter().copied().collect())?;
        let mut versions = BTreeMap::new();
        let mut first_problem = None;
        for &version in wanted.iter().rev() {
            match self.open(&before, &versions, version) {
                Ok(servable) => drop(versions.insert(version, servable)),
                // An error of another pointer or of an old version does not keep the current
                // version out.
                Err(error) if version == current => {
                    self.wait_longer(current);
                    return Err(error);
                }
                Err(error) => {
                    self.metrics.loading.record_failure(self.model.name(), &error);
                    self.recent.retain(|&recent| recent != version);
                    first_problem.get_or_insert(error.to_string());
                }
            }
        }
        let layers = versions.get(&current).map_or(0, |v| v.rows().layers().len());
        self.metrics.record_versions(self.model.name(), current.0, versions.len(), layers);
        if before.current != Some(current) {
            let from = before.current.map(|version| version.0);
            let name = self.model.name();
            tracing::info!(model = name, version = current.0, from, "this version answers now");
            if before.current > Some(current) {
                self.metrics.loading.record_rollback(name);
            }
        }
        labels.retain(|_, version| versions.contains_key(version));
        self.failed = None;
        let open =
            OpenVersions { current: Some(current), labels, versions, ..OpenVersions::default() };
        self.host.publish(open.clone());
        self.measure(&before, &open);
        drop(before);
        if let Some(problem) = first_problem {
            tracing::warn!(model = self.model.name(), "{problem}");
        }
        self.renew_lease(&open, true)?;
        self.trim()
    }

    /// Records the metrics of the versions that were loaded since the last call.
    fn measure(&mut self, before: &OpenVersions, open: &OpenVersions) {
        self.fresh.sort_by_key(|servable| servable.version());
        for servable in std::mem::take(&mut self.fresh) {
            // A version that is older than this server has waited for it, and an old version that
            // is loaded again was servable long ago. Neither is measured.
            let is_new = Some(servable.version()) > self.newest;
            if is_new && servable.manifest().published() >= self.began {
                self.metrics.loading.record_servable(&servable);
            }
            self.newest = self.newest.max(Some(servable.version()));
        }
        let current = |open: &OpenVersions| open.versions.get(&open.current?).cloned();
        let (old, new) = (current(before), current(open));
        if let Some(new) = new.filter(|new| old.as_ref().is_none_or(|old| !Arc::ptr_eq(old, new))) {
            let tables = |version: &Servable| -> BTreeSet<String> {
                version.rows().tables().iter().map(|table| table.name.clone()).collect()
            };
            let had = old.as_deref().map(tables).unwrap_or_default();
            let gone: Vec<String> = had.difference(&tables(&new)).cloned().collect();
            self.metrics.loading.record_current(&new, &gone);
        }
        self.measure_cache();
    }

    fn measure_cache(&mut self) {
        let now = self.cache.counts();
        self.pace.begin();
        // A folder that is being removed is measured next time.
        let size = self.cache.size(&mut self.pace).ok();
        self.metrics.loading.record_cache(self.model.name(), self.counted, now, size);
        self.counted = now;
    }

    /// Doubles the wait before the next attempt to load a version.
    fn wait_longer(&mut self, version: VersionId) {
        let before = self.failed.take().filter(|&(failed, ..)| failed == version);
        let wait = before.map_or(self.config.poll, |(_, _, wait)| wait * 2).min(LONGEST_WAIT);
        self.failed = Some((version, Instant::now() + wait, wait));
    }

    /// Returns a version, and loads it first if it is not loaded yet.
    fn open(
        &mut self,
        before: &OpenVersions,
        opened: &BTreeMap<VersionId, Arc<Servable>>,
        version: VersionId,
    ) -> Result<Arc<Servable>, Error> {
        if let Some(servable) = before.versions.get(&version) {
            return Ok(servable.clone());
        }
        let began = Instant::now();
        let _span = span!("load", model = self.model.name(), version = version.0).entered();
        self.pace.begin();
        let servable = Servable::load(
            &self.model,
            version,
            before.versions.values().chain(opened.values()).map(Arc::as_ref),
            &mut self.cache,
            &self.workers,
            &mut self.pace,
        )?;
        self.metrics.record_load(self.model.name(), began.elapsed());
        self.metrics.loading.record_load(self.model.name());
        let servable = Arc::new(servable);
        self.fresh.push(servable.clone());
        Ok(servable)
    }

    fn renew_lease(&mut self, open: &OpenVersions, changed: bool) -> Result<(), Error> {
        if changed || self.leased.is_none_or(|at| at.elapsed() * 3 > LEASE) {
            self.lease(open.versions.keys().copied().collect())?;
        }
        Ok(())
    }

    fn lease(&mut self, versions: Vec<VersionId>) -> Result<(), Error> {
        self.model.lease(&self.config.server, versions, LEASE)?;
        self.leased = Some(Instant::now());
        Ok(())
    }

    /// Removes the files that no loaded or recent version reads from the cache, once in
    /// [`TRIM_EVERY`] loads.
    fn trim(&mut self) -> Result<(), Error> {
        self.loads += 1;
        if !self.loads.is_multiple_of(TRIM_EVERY) {
            return Ok(());
        }
        let open = self.host.open();
        let keep: BTreeSet<VersionId> = open.versions.keys().chain(&self.recent).copied().collect();
        let mut chains: Vec<Vec<Arc<VersionManifest>>> = Vec::with_capacity(keep.len());
        for version in keep {
            chains.push(self.cache.chain(&self.model, version)?);
        }
        let chains: Vec<&[Arc<VersionManifest>]> = chains.iter().map(Vec::as_slice).collect();
        Ok(self.cache.trim(&chains).map(drop)?)
    }

    fn end_lease(&mut self) {
        if let Err(error) = self.model.end_lease(&self.config.server) {
            // The lease runs out by itself.
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }
}

/// The throttle of a load, which rests between slices while requests are open.
#[derive(Debug)]
struct Slices {
    began: Instant,
    /// The processor time of this thread when the slice began.
    cpu: Duration,
    busy: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Slices {
    fn new(busy: Arc<AtomicUsize>, metrics: Arc<Metrics>) -> Self {
        Self { began: Instant::now(), cpu: cpu_time(), busy, metrics }
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        self.cpu = cpu_time();
    }
}

impl Throttle for Slices {
    fn piece(&mut self) {
        let took = self.began.elapsed();
        let cpu = cpu_time().saturating_sub(self.cpu);
        self.metrics.load_slice_seconds.observe(took.as_secs_f64());
        self.metrics.load_slice_cpu_seconds.observe(cpu.as_secs_f64());
        if self.busy.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(took);
        }
        self.begin();
    }

    fn waited(&mut self) {
        self.begin();
    }
}

fn cpu_time() -> Duration {
    thread_time().unwrap_or_default()
}
