//! The work of a loader: it reads the registry, loads the versions that the registry names, and
//! publishes them to requests.

mod begin;
mod care;
mod change;
mod lease;
mod merging;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use zillion_device::Workers;
use zillion_registry::{Cache, CacheCounts, Error as RegistryError, Model, VersionId};
use zillion_rows::RowSource as _;
use zillion_scorer::{Error, Servable, published_dense};

use self::merging::Merging;
#[cfg(test)]
pub(in crate::loader) use self::merging::THREAD as MERGE_THREAD;
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

/// The longest time after a look at the registry whose answer was refused.
const LONGEST_LOOK_WAIT: Duration = Duration::from_secs(2);

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
    /// The time when the lease is to be renewed.
    lease_due: Option<Instant>,
    /// The chain hashes that pointers name for versions.
    chains: BTreeMap<VersionId, String>,
    /// The wait after a look whose answer was refused, and its end.
    look_wait: Option<(Duration, Instant)>,
    /// The open versions whose cached files were all hashed.
    scrubbed: BTreeSet<VersionId>,
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
    merging: Merging,
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
        mut cache: Cache,
        workers: Arc<Workers>,
        metrics: Arc<Metrics>,
        pace: Slices,
    ) -> Self {
        cache.set_merges_later(true);
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
            lease_due: None,
            chains: BTreeMap::new(),
            look_wait: None,
            scrubbed: BTreeSet::new(),
            refusals: Refusals::default(),
            distrusted: BTreeSet::new(),
            stagger: Stagger::default(),
            remembered: None,
            counted: CacheCounts::default(),
            fresh: Vec::new(),
            merging: Merging::default(),
            newest: None,
            began: SystemTime::now(),
        }
    }

    pub(super) fn poll_interval(&self) -> Duration {
        self.config.poll
    }

    /// Reads the registry and loads the versions that its pointers name.
    pub(super) fn poll(&mut self) {
        let open = self.host.open();
        for version in open.versions.values() {
            version.release_idle();
        }
        self.replace_truncated(&open);
        // A damaged or hostile answer costs more than a good one, and seldom becomes better.
        if self.look_wait.is_some_and(|(_, due)| Instant::now() < due) {
            return;
        }
        let Err(error) = self.refresh() else { return };
        let open = self.host.open();
        // A registry that does not answer takes no lease either.
        if !matches!(error, Error::Registry(RegistryError::Store(_))) {
            self.renew_lease(&open, false);
        }
        // What a start without the registry would believe is looked at without it too.
        self.scrub(&open);
        let name = self.model.name();
        self.metrics.loading.record_failure(name, &error);
        let problem = error.to_string();
        if open.problem.as_deref() != Some(problem.as_str()) {
            self.record_refusal(&error);
        }
        self.show_problem(problem, ProblemKind::of(&error));
    }

    /// Writes to the audit log that a version or a move was refused, if that is the reason.
    fn record_refusal(&self, error: &Error) {
        let (name, url) = (self.model.name(), self.model.url());
        record_refused_version(self.config.audit.as_deref(), name, url, error);
    }

    /// Records what a failed look says about the registry.
    fn record_failed_look(&mut self, error: &RegistryError) {
        let wait = match error {
            RegistryError::Store(_) => {
                self.host.lose_contact();
                None
            }
            RegistryError::Expired { .. } | RegistryError::Replayed { .. } => {
                self.host.keep_contact();
                Some(())
            }
            _ => {
                self.host.record_contact();
                Some(())
            }
        };
        self.look_wait = wait.map(|()| {
            let before = self.look_wait.map_or(self.config.poll, |(wait, _)| wait * 2);
            let wait = before.min(LONGEST_LOOK_WAIT.max(self.config.poll));
            (wait, Instant::now() + wait)
        });
    }

    /// Records a panic of this thread outside of a load.
    pub(super) fn record_panic(&mut self, message: &str) {
        self.metrics.loading.record_panic(self.model.name());
        self.cache.reset();
        self.cache.set_offline(false);
        self.watch = Watch::default();
        self.show_problem(format!(
            "the loader of the model has panicked and starts again ({message}); report this defect"
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
        let first = self.traffic_labels();
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        let look = self.watch.look(&self.model, &follow, &first);
        for error in self.watch.take_refused() {
            self.record_refusal(&error.into());
        }
        let Look { current, mut labels, chains } = match look {
            Ok(look) => look,
            Err(error) => {
                self.record_failed_look(&error);
                return Err(error.into());
            }
        };
        self.look_wait = None;
        self.chains = chains;
        let Some(current) = current else {
            return Err(self.describe_nothing(&follow, before.current));
        };
        self.metrics.record_registry_answer(self.model.name());
        self.host.record_contact();
        self.refusals
            .retain(|version| version == current || labels.values().any(|v| *v == version));
        let refused = self.refusals.waiting(current).map(str::to_owned);
        let is_held = refused.is_some() || self.is_left_to_others(&before, current);
        labels
            .retain(|_, version| *version == current || self.refusals.waiting(*version).is_none());
        self.hold_labels(&before, current, is_held, &mut labels);
        let answers = if is_held { before.current } else { Some(current) };
        let is_settled = is_held || (before.problem.is_none() && !self.is_replaced(&before));
        if is_settled && before.current == answers && before.labels == labels {
            self.remember(&follow, &before);
            self.scrub(&before);
            // A version that could not be loaded again waits like any refused one.
            let waits = |version: &VersionId| self.refusals.waiting(*version).is_some();
            if self.distrusted.iter().all(waits) {
                self.renew_lease(&before, false);
                if let Some(problem) = refused {
                    self.show_problem(problem, ProblemKind::default());
                }
                return Ok(());
            }
        }
        self.change(&follow, &before, answers, labels, is_held)?;
        if let Some(problem) = refused {
            self.show_problem(problem, ProblemKind::default());
        }
        Ok(())
    }

    /// Publishes versions to requests, and records their metrics.
    fn publish(&mut self, before: &OpenVersions, open: OpenVersions) {
        self.claim(open.versions.keys().copied().collect(), false);
        self.host.publish(open.clone());
        // The metrics never name a version that does not answer yet.
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
        self.measure(before, &open);
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
                "the registry no longer names a version to serve, so version {current} keeps \
                 answering; publish a version, or set the pointer"
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
            && self.is_named(servable)
        {
            return Ok(servable.clone());
        }
        let began = Instant::now();
        let _span = span!("load", model = self.model.name(), version = version.0).entered();
        self.pace.begin();
        if let Err(error) = self.check_crashes(version, before.current.is_some()) {
            self.refusals.record(version, error.to_string(), self.config.poll);
            return Err(error);
        }
        // A server that ends in the load knows it after its restart.
        let attempt = self.cache.begin_attempt(version);
        let trusted = before.versions.values().filter(|v| !self.distrusted.contains(&v.version()));
        let others: Vec<Arc<Servable>> = trusted.chain(opened.values()).cloned().collect();
        let mut loaded = self.guard(version, |this| {
            this.check_link(version)?;
            this.make_room(version)?;
            this.load(&others, version)
        });
        if let Err(error) = &loaded
            && self.guard(version, |this| Ok(this.mend(version, error))).is_ok_and(|mended| mended)
        {
            loaded = self.guard(version, |this| this.load(&others, version));
        }
        drop(attempt);
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
        let (device, dense) = (self.config.device.as_ref(), self.config.dense);
        let workers = &self.workers;
        let loaded =
            Servable::load_on(device, dense, &self.model, version, others, cache, workers, pace)?;
        if loaded.warmed_rows() > 0 {
            let rows = loaded.warmed_rows();
            tracing::debug!(model = self.model.name(), %version, rows, "read the hot rows");
        }
        let published = published_dense(loaded.manifest());
        if loaded.dense() != published {
            tracing::info!(
                model = self.model.name(),
                %version,
                dense = loaded.dense().name(),
                published = published.name(),
                "the server's number type of dense layers is used instead of the version's"
            );
        }
        Ok(loaded)
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
                "version {version} is refused, because the loader panicked on its contents ({}); \
                 publish a new version, and report this defect",
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
}

/// Returns the name under which the cache keeps the answer about a followed version.
fn followed_name(follow: &Follow) -> String {
    match follow {
        Follow::Latest => "latest".to_owned(),
        Follow::Pointer(pointer) => format!("pointer-{pointer}"),
    }
}
