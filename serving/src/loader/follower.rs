//! The work of a loader: it reads the registry, loads the versions that the registry names, and
//! publishes them to requests.

mod care;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zillion_device::Workers;
use zillion_registry::{Cache, CacheCounts, Error as RegistryError, Model, Remembered, VersionId};
use zillion_rows::RowSource as _;
use zillion_scorer::{Error, Servable};
use zillion_store::StoreStop;

use super::describe_panic;
use super::refusals::Refusals;
use super::slices::{Slices, is_stop};
use super::stagger::Stagger;
use super::watch::{Look, Watch};
use crate::config::{Follow, ServeConfig};
use crate::host::{Host, OpenVersions};
use crate::metrics::Metrics;
use crate::problem::ProblemKind;
use crate::refused_version::record_refused_version;
use crate::trace::span;

/// The duration of a lease on loaded versions. A server renews its lease after a third of this time
/// at the latest.
const LEASE: Duration = Duration::from_secs(300);

type Versions = BTreeMap<VersionId, Arc<Servable>>;

/// The state of the loader's thread.
pub(super) struct Follower {
    model: Model,
    host: Arc<Host>,
    config: Arc<ServeConfig>,
    cache: Cache,
    workers: Arc<Workers>,
    metrics: Arc<Metrics>,
    pace: Slices,
    watch: Watch,
    /// The versions that were current, the newest last.
    recent: Vec<VersionId>,
    /// The number of loads that have changed the published versions so far.
    loads: u64,
    /// The time of the last lease.
    leased: Option<Instant>,
    refusals: Refusals,
    /// The open versions that were loaded from files that have changed on the disk.
    distrusted: BTreeSet<VersionId>,
    stagger: Stagger,
    /// The answer of the registry that the cache has, and the time when it was written.
    remembered: Option<(Look, Instant)>,
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
    pub(super) fn new(
        model: Model,
        host: Arc<Host>,
        config: Arc<ServeConfig>,
        cache: Cache,
        workers: Arc<Workers>,
        metrics: Arc<Metrics>,
        pace: Slices,
    ) -> Self {
        Self {
            model,
            host,
            config,
            cache,
            workers,
            metrics,
            pace,
            watch: Watch::default(),
            recent: Vec::new(),
            loads: 0,
            leased: None,
            refusals: Refusals::default(),
            distrusted: BTreeSet::new(),
            stagger: Stagger::default(),
            remembered: None,
            counted: CacheCounts::default(),
            fresh: Vec::new(),
            newest: None,
            began: SystemTime::now(),
        }
    }

    pub(super) fn poll_interval(&self) -> Duration {
        self.config.poll
    }

    /// Loads the versions that the registry named last, if it does not answer in time. Requests are
    /// answered from them until the registry answers.
    pub(super) fn begin_from_cache(&mut self) {
        let follow = self.host.follow();
        let Some(last) = self.cache.recall(&followed_name(&follow)) else { return };
        let quick = StoreStop::default();
        quick.within(self.config.registry_wait);
        let model = self.model.with_stop(quick);
        let mut watch = Watch::default();
        if watch.look(&model, &follow).is_ok_and(|look| look.current.is_some()) {
            self.watch = watch;
            return;
        }
        let age = UNIX_EPOCH + Duration::from_millis(last.seen_ms);
        self.host.begin_stale(SystemTime::now().duration_since(age).unwrap_or_default());
        self.cache.set_offline(true);
        let opened = self.open_remembered(&last);
        self.cache.set_offline(false);
        self.refusals = Refusals::default();
        match opened {
            Ok(open) => {
                tracing::warn!(
                    model = self.model.name(),
                    "the registry does not answer, so that versions of the cache are served"
                );
                self.recent.push(last.current);
                self.publish(&OpenVersions::default(), open);
            }
            Err(error) => {
                self.fresh.clear();
                let name = self.model.name();
                tracing::warn!(model = name, "the version in the cache cannot be served: {error}");
            }
        }
    }

    fn open_remembered(&mut self, last: &Remembered) -> Result<OpenVersions, Error> {
        let before = self.host.open();
        self.claim([last.current].into(), true);
        let mut versions = BTreeMap::new();
        let current = self.open(&before, &versions, last.current)?;
        versions.insert(last.current, current);
        for &version in last.labels.values() {
            if versions.contains_key(&version) {
                continue;
            }
            // A version of another pointer is left out, as it would be with the registry.
            if let Ok(servable) = self.open(&before, &versions, version) {
                versions.insert(version, servable);
            }
        }
        let mut labels = last.labels.clone();
        labels.retain(|_, version| versions.contains_key(version));
        Ok(OpenVersions {
            current: Some(last.current),
            labels,
            versions,
            ..OpenVersions::default()
        })
    }

    /// Reads the registry and loads the versions that its pointers name.
    pub(super) fn poll(&mut self) {
        for version in self.host.open().versions.values() {
            version.release_idle();
        }
        let Err(error) = self.refresh() else { return };
        let name = self.model.name();
        self.metrics.loading.record_failure(name, &error);
        let problem = error.to_string();
        if self.host.open().problem.as_deref() != Some(problem.as_str()) {
            record_refused_version(self.config.audit.as_deref(), name, self.model.url(), &error);
        }
        self.show_problem(problem, ProblemKind::of(&error));
    }

    /// Records a panic of this thread outside of a load.
    pub(super) fn record_panic(&mut self, message: &str) {
        self.metrics.loading.record_panic(self.model.name());
        self.cache.reset();
        self.watch = Watch::default();
        self.show_problem(format!(
            "the loader of the model has met a defect and begins again: {message}; report the defect"
        ), ProblemKind::default());
    }

    /// Shows a problem beside the versions that answer.
    fn show_problem(&mut self, problem: String, problem_kind: ProblemKind) {
        self.fresh.clear();
        let before = self.host.open();
        if before.problem.as_deref() != Some(problem.as_str()) {
            let name = self.model.name();
            tracing::error!(model = name, "{problem}");
            self.metrics.record_load_failure(name);
            self.host.publish(OpenVersions {
                problem: Some(problem),
                problem_kind,
                ..(*before).clone()
            });
        }
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let follow = self.host.follow();
        let before = self.host.open();
        let look = self.watch.look(&self.model, &follow).inspect_err(|_| self.host.lose_contact());
        let Look { current, mut labels } = look?;
        let Some(current) = current else {
            return Err(self.describe_nothing(&follow, before.current));
        };
        self.metrics.record_registry_answer(self.model.name());
        self.host.record_contact();
        self.refusals
            .retain(|version| version == current || labels.values().any(|v| *v == version));
        if let Some(problem) = self.refusals.waiting(current).map(str::to_owned) {
            self.remember(&follow, &before);
            self.show_problem(problem, ProblemKind::default());
            return Ok(());
        }
        labels.retain(|_, version| self.refusals.waiting(*version).is_none());
        if before.problem.is_none() && before.current == Some(current) && before.labels == labels {
            self.remember(&follow, &before);
            self.scrub(&before)?;
            if self.distrusted.is_empty() {
                return self.renew_lease(&before, false);
            }
        }
        let is_new = before.current.is_some() && !before.versions.contains_key(&current);
        if is_new && !self.may_begin(current) {
            return self.renew_lease(&before, false);
        }
        let wanted = self.choose_versions(&before, current, &labels);
        // The lease comes first, so that files are not collected while they are being opened.
        self.lease(wanted.iter().copied().collect())?;
        self.claim(before.versions.keys().chain(&wanted).copied().collect(), true);
        let opened = self.open_all(&before, &wanted, current);
        if opened.is_err() {
            self.claim(before.versions.keys().copied().collect(), false);
        }
        let (versions, first_problem) = opened?;
        labels.retain(|_, version| versions.contains_key(version));
        let open =
            OpenVersions { current: Some(current), labels, versions, ..OpenVersions::default() };
        self.distrusted.clear();
        self.publish(&before, open.clone());
        self.remember(&follow, &open);
        if before.current != Some(current)
            && let Some(servable) = open.versions.get(&current)
        {
            self.prove(servable.manifest());
        }
        drop(before);
        if let Some(problem) = first_problem {
            tracing::warn!(model = self.model.name(), "{problem}");
        }
        self.renew_lease(&open, true)?;
        self.trim()
    }

    /// Publishes versions to requests, and records their metrics.
    fn publish(&mut self, before: &OpenVersions, open: OpenVersions) {
        let name = self.model.name();
        if let Some(current) = open.current {
            let layers = open.versions.get(&current).map_or(0, |v| v.rows().layers().len());
            self.metrics.record_versions(name, current.0, open.versions.len(), layers);
            if before.current != Some(current) {
                let from = before.current.map(|version| version.0);
                let version = current.0;
                tracing::info!(model = name, version, from, "this version answers now");
            }
            if before.current > Some(current) {
                self.metrics.loading.record_rollback(name);
            }
        }
        self.claim(open.versions.keys().copied().collect(), false);
        self.host.publish(open.clone());
        self.measure(before, &open);
    }

    /// Chooses the versions to keep open: the current one, those of pointers, and recent ones.
    fn choose_versions(
        &mut self,
        before: &OpenVersions,
        current: VersionId,
        labels: &BTreeMap<String, VersionId>,
    ) -> BTreeSet<VersionId> {
        if self.recent.last() != Some(&current) {
            self.recent.retain(|&version| version != current);
            self.recent.push(current);
            let surplus = self.recent.len().saturating_sub(self.config.retain_cached + 1);
            self.recent.drain(..surplus);
        }
        let open_ones = self.recent.len().saturating_sub(self.config.retain + 1);
        let stay = self.recent[open_ones..].iter().filter(|&v| before.versions.contains_key(v));
        labels.values().chain(stay).copied().chain([current]).collect()
    }

    /// Opens the wanted versions. Returns them with the first problem of a version that is not the
    /// current one.
    ///
    /// # Errors
    /// Returns an error if the current version cannot be loaded.
    fn open_all(
        &mut self,
        before: &OpenVersions,
        wanted: &BTreeSet<VersionId>,
        current: VersionId,
    ) -> Result<(Versions, Option<String>), Error> {
        let mut versions = BTreeMap::new();
        let mut first_problem = None;
        for &version in wanted.iter().rev() {
            match self.open(before, &versions, version) {
                Ok(servable) => drop(versions.insert(version, servable)),
                // An error of another pointer or of an old version does not keep the current
                // version out.
                Err(error) if version == current => return Err(error),
                Err(error) => {
                    self.metrics.loading.record_failure(self.model.name(), &error);
                    self.recent.retain(|&recent| recent != version);
                    first_problem.get_or_insert(error.to_string());
                }
            }
        }
        Ok((versions, first_problem))
    }

    fn describe_nothing(&self, follow: &Follow, served: Option<VersionId>) -> Error {
        let what = match (follow, served) {
            (Follow::Latest, None) => {
                return RegistryError::NoModel { model: self.model.name().to_owned() }.into();
            }
            (Follow::Pointer(pointer), None) => {
                return RegistryError::NoPointer { pointer: pointer.clone() }.into();
            }
            (_, Some(current)) => format!(
                "the registry no longer names a version to serve; version {current} keeps answering"
            ),
        };
        Error::Refused(format!("registry `{}`: {what}", self.model.url()))
    }

    /// Returns a version, and loads it first if it is not loaded yet. A version that cannot be
    /// loaded is refused for a while.
    fn open(
        &mut self,
        before: &OpenVersions,
        opened: &Versions,
        version: VersionId,
    ) -> Result<Arc<Servable>, Error> {
        if let Some(servable) = before.versions.get(&version)
            && !self.distrusted.contains(&version)
        {
            return Ok(servable.clone());
        }
        let began = Instant::now();
        let _span = span!("load", model = self.model.name(), version = version.0).entered();
        self.pace.begin();
        let trusted = before.versions.values().filter(|v| !self.distrusted.contains(&v.version()));
        let others: Vec<Arc<Servable>> = trusted.chain(opened.values()).cloned().collect();
        let mut loaded = self.guard(version, |this| {
            this.make_room(version)?;
            this.load(&others, version)
        });
        if let Err(error) = &loaded
            && self.guard(version, |this| Ok(this.mend(version, error))).is_ok_and(|mended| mended)
        {
            loaded = self.guard(version, |this| this.load(&others, version));
        }
        match loaded {
            Ok(servable) => {
                self.refusals.forget(version);
                self.metrics.record_load(self.model.name(), began.elapsed());
                self.metrics.loading.record_load(self.model.name());
                let servable = Arc::new(servable);
                self.fresh.push(servable.clone());
                Ok(servable)
            }
            Err(error) => {
                self.refusals.record(version, error.to_string(), self.config.poll);
                Err(error)
            }
        }
    }

    fn load(&mut self, others: &[Arc<Servable>], version: VersionId) -> Result<Servable, Error> {
        // No contents of a version are known that make a loader panic, so that a test asks for one.
        #[cfg(test)]
        assert!(self.config.server != format!("panic-at-version-{version}"), "a test wants it");
        let others = others.iter().map(Arc::as_ref);
        let (cache, pace) = (&mut self.cache, &mut self.pace);
        Servable::load(&self.model, version, others, cache, &self.workers, pace)
    }

    /// Runs work on a version. A panic refuses the version: its contents come from outside.
    fn guard<T>(
        &mut self,
        version: VersionId,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.unwrap_or_else(|payload| {
            if is_stop(payload.as_ref()) {
                resume_unwind(payload);
            }
            self.cache.reset();
            self.metrics.loading.record_panic(self.model.name());
            Err(Error::Refused(format!(
                "version {version} is refused, because its contents made the loader panic: {}; publish a new version, \
                 and report the defect",
                describe_panic(payload.as_ref())
            )))
        })
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

    pub(super) fn end_lease(&mut self) {
        if let Err(error) = self.model.end_lease(&self.config.server) {
            // The lease runs out by itself.
            tracing::warn!(model = self.model.name(), "{error}");
        }
    }
}

/// Returns the name under which the cache keeps the answer about a followed version.
fn followed_name(follow: &Follow) -> String {
    match follow {
        Follow::Latest => "latest".to_owned(),
        Follow::Pointer(pointer) => format!("pointer-{pointer}"),
    }
}
