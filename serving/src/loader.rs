//! Hot loading: a thread that follows the registry and puts versions up.
//!
//! It works in slices: after each it looks how long the slice took, and while requests are open it
//! rests as long as it worked, so that scoring always finds a processor. What it builds is invisible until
//! it is whole; what fails leaves the versions that are up where they are, and is tried again.

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
use zillion_rows::layer::Pace;
use zillion_scorer::{Error, Servable};
use zillion_store::{LAST_WORDS, StoreStop};

use crate::config::{Follow, LoadConfig};
use crate::host::{Host, OpenVersions};
use crate::metrics::Metrics;
use crate::trace::span;

/// Versions between two clean-ups of the cache.
const TRIM_EVERY: u64 = 16;

/// Time between two attempts to load the same version, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The thread that loads one model.
#[derive(Debug)]
pub(crate) struct Loader {
    stop: Arc<AtomicBool>,
    /// Cuts what the thread waits for from the store.
    store_stop: StoreStop,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to follow `model` and to put its versions up in `host`.
    pub(crate) fn start(
        model: Model,
        host: Arc<Host>,
        config: LoadConfig,
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
                    follower.look();
                    std::thread::park_timeout(poll);
                }
                follower.leave();
            })
            .map_err(|e| Error::Refused(format!("cannot start the loader's thread: {e}")))?;
        Ok(Self { stop, store_stop, thread: Some(thread) })
    }

    /// Makes it look at the registry now.
    pub(crate) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A store that hangs must not hang whoever stops: there is time to end the lease, which ends by itself.
        self.store_stop.within(LAST_WORDS);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A loader that panicked has nothing to add, and a panic while dropping would abort.
            let _ = thread.join();
        }
    }
}

/// What the loader's thread owns.
struct Follower {
    model: Model,
    host: Arc<Host>,
    config: LoadConfig,
    cache: Cache,
    workers: Arc<Workers>,
    metrics: Arc<Metrics>,
    pace: Slices,
    /// Versions that were current, the newest last.
    recent: Vec<VersionId>,
    /// Versions put up so far.
    loads: u64,
    /// What the registry was told last, and when.
    leased: Option<(Vec<VersionId>, Instant)>,
    /// The version that could not be loaded, when it is tried again, and how long it was waited before.
    failed: Option<(VersionId, Instant, Duration)>,
    /// What of the cache's counts the metrics have.
    counted: CacheCounts,
    /// Versions that were loaded and not put up yet.
    fresh: Vec<Arc<Servable>>,
    /// The greatest number that was ever put up, and when this thread began: each version is measured once.
    newest: Option<VersionId>,
    began: SystemTime,
}

impl Follower {
    /// Looks at the registry and does what follows from it.
    fn look(&mut self) {
        let name = self.model.name().to_owned();
        match self.refresh() {
            Ok(()) => {}
            Err(error) => {
                self.fresh.clear();
                self.metrics.loading.failed(&name, &error);
                let before = self.host.open();
                let problem = error.to_string();
                if before.problem.as_deref() != Some(problem.as_str()) {
                    tracing::error!(model = name, "{problem}");
                    self.metrics.load_failed(&name);
                }
                self.host.put_up(OpenVersions { problem: Some(problem), ..(*before).clone() });
            }
        }
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let mut labels = BTreeMap::new();
        for pointer in self.model.pointers()? {
            match self.model.pointer(&pointer) {
                Ok(moved) => _ = labels.insert(pointer, moved.to.version),
                // It has gone since it was listed: what follows from that is said below.
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
                    "the registry does not say any more which version is meant; version {current} goes on answering"
                ),
            };
            return Err(Error::Refused(format!("{what}: registry `{}`", self.model.url())));
        };
        self.metrics.looked(self.model.name());
        if before.problem.is_none() && before.current == Some(current) && before.labels == labels {
            return self.renew_lease(&before, false);
        }
        if self.failed.as_ref().is_some_and(|&(v, at, _)| v == current && Instant::now() < at) {
            // Trying takes reading and hashing its files: what is wrong with them is seldom mended at once.
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
        // Files that are about to be opened must not be collected meanwhile.
        self.lease(wanted.iter().copied().collect())?;
        let mut versions = BTreeMap::new();
        let mut first_problem = None;
        for &version in wanted.iter().rev() {
            match self.open(&before, &versions, version) {
                Ok(servable) => drop(versions.insert(version, servable)),
                // A pointer or an old version that cannot be opened is no reason to keep the current out.
                Err(error) if version == current => {
                    self.wait_longer(current);
                    return Err(error);
                }
                Err(error) => {
                    self.metrics.loading.failed(self.model.name(), &error);
                    self.recent.retain(|&recent| recent != version);
                    first_problem.get_or_insert(error.to_string());
                }
            }
        }
        let layers = versions.get(&current).map_or(0, |v| v.rows().layers().len());
        self.metrics.versions(self.model.name(), current.0, versions.len(), layers);
        if before.current != Some(current) {
            let from = before.current.map(|version| version.0);
            let name = self.model.name();
            tracing::info!(model = name, version = current.0, from, "this version answers now");
            if before.current > Some(current) {
                self.metrics.loading.rolled_back(name);
            }
        }
        labels.retain(|_, version| versions.contains_key(version));
        self.failed = None;
        let open =
            OpenVersions { current: Some(current), labels, versions, ..OpenVersions::default() };
        self.host.put_up(open.clone());
        self.measure(&before, &open);
        drop(before);
        if let Some(problem) = first_problem {
            tracing::warn!(model = self.model.name(), "{problem}");
        }
        self.renew_lease(&open, true)?;
        self.trim()
    }

    /// Measures what was put up.
    fn measure(&mut self, before: &OpenVersions, open: &OpenVersions) {
        self.fresh.sort_by_key(|servable| servable.version());
        for servable in std::mem::take(&mut self.fresh) {
            // What was published before this server was there has waited for it, and an old version that is loaded
            // again was servable long ago.
            let is_new = Some(servable.version()) > self.newest;
            if is_new && servable.manifest().published() >= self.began {
                self.metrics.loading.became_servable(&servable);
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
            self.metrics.loading.current(&new, &gone);
        }
        self.measure_cache();
    }

    fn measure_cache(&mut self) {
        let now = self.cache.counts();
        self.pace.begin();
        // A folder that somebody is removing is measured next time.
        let size = self.cache.size(&mut self.pace).ok();
        self.metrics.loading.cache(self.model.name(), self.counted, now, size);
        self.counted = now;
    }

    /// Tries a version that could not be loaded less and less often.
    fn wait_longer(&mut self, version: VersionId) {
        let before = self.failed.take().filter(|&(failed, ..)| failed == version);
        let wait = before.map_or(self.config.poll, |(_, _, wait)| wait * 2).min(LONGEST_WAIT);
        self.failed = Some((version, Instant::now() + wait, wait));
    }

    /// A version, loaded unless it is.
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
        self.metrics.loaded(self.model.name(), began.elapsed());
        self.metrics.loading.loaded(self.model.name());
        let servable = Arc::new(servable);
        self.fresh.push(servable.clone());
        Ok(servable)
    }

    fn renew_lease(&mut self, open: &OpenVersions, changed: bool) -> Result<(), Error> {
        let due = |at: &Instant| at.elapsed() * 3 > self.config.lease;
        if changed || self.leased.as_ref().is_none_or(|(_, at)| due(at)) {
            self.lease(open.versions.keys().copied().collect())?;
        }
        Ok(())
    }

    fn lease(&mut self, versions: Vec<VersionId>) -> Result<(), Error> {
        self.model.lease(&self.config.server, versions.clone(), self.config.lease)?;
        self.leased = Some((versions, Instant::now()));
        Ok(())
    }

    /// Removes from the cache, now and then, what no open or recent version reads.
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

    fn leave(&mut self) {
        if let Err(error) = self.model.end_lease(&self.config.server) {
            // It runs out by itself.
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }
}

/// Rests between slices while requests are open.
#[derive(Debug)]
struct Slices {
    began: Instant,
    /// Processor time of this thread then.
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

impl Pace for Slices {
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
