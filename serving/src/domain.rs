//! The domain of the server: its models by name, and the scoring of requests. Every protocol is
//! an adapter of the domain.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use prometheus::Registry as MetricsRegistry;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use zillion_access::Principal;
use zillion_device::{Files, Workers};
use zillion_registry::Registry;
use zillion_scorer::{ScoringDevice, Servable};

use crate::admission::{Admitted, Caller, Head, Outcome, Scoring, Turned};
use crate::audit::Audit;
use crate::budget::{HeldBytes, Holder};
use crate::config::{Follow, Limits, ServeConfig};
use crate::device_metrics::DeviceMetrics;
use crate::error::{Result, ServeError};
use crate::host::{Host, Resolved, Selector};
use crate::metrics::Metrics;
use crate::repository::{Indexed, Repository};
use crate::request_log::{RequestLog, Sample, Sampling};
use crate::scored::{Finish, Scored, Shadow, Step};
use crate::statistics::{Begun, triton_series};
use crate::store_metrics::store_metrics;
use crate::traffic::Traffic;

/// The models of a server, its limits, and the pool that scores requests.
#[derive(Debug)]
pub struct Domain {
    repository: Repository,
    scoring: Scoring,
    limits: RwLock<Limits>,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    model_control: bool,
    /// The semaphore that lets one client at a time read the whole registry.
    control: Arc<Semaphore>,
    audit: Option<Audit>,
    traffic: Traffic,
    request_log: Option<Arc<RequestLog>>,
    /// The GPU that computes the scores; `None` on processors.
    device: Option<Arc<ScoringDevice>>,
}

/// The versions of a request, and the choice of the request log.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The version that is to answer.
    version: Resolved,
    /// The version that scores the rows beside the answer.
    shadow: Option<Arc<Servable>>,
    sampling: Option<Sampling>,
}

impl Domain {
    /// Starts to load the models of `config` from `registry`, and returns at once: see
    /// [`Domain::is_ready`].
    ///
    /// # Errors
    /// Returns an error if a model has an invalid name, a cache folder cannot be created,
    /// or a thread cannot be started.
    pub fn start(
        config: &ServeConfig,
        registry: &Registry,
        files: &Files,
        all_metrics: &MetricsRegistry,
    ) -> Result<Self, ServeError> {
        let internal = |e: String| ServeError::Internal(e);
        let metrics = Arc::new(Metrics::new(all_metrics).map_err(|e| internal(e.to_string()))?);
        // The caller does not work in the pool, so that the pool needs one thread more than it has
        // workers.
        let threads = NonZeroUsize::new(config.threads + 1).unwrap_or(NonZeroUsize::MIN);
        let workers = Arc::new(Workers::new(threads).map_err(|e| internal(e.to_string()))?);
        let scoring = Scoring::new(workers.clone(), config.threads, metrics.clone());
        let busy = scoring.open();
        let repository =
            Repository::start(config, registry, files, workers, busy, metrics.clone())?;
        let models: Vec<String> = config.models.iter().map(|(model, _)| model.clone()).collect();
        let (server, log) = (&config.server, &config.request_log);
        let request_log = RequestLog::start(log, server, &models, files, &metrics.request_log)?;
        store_metrics(registry.store().clone())
            .and_then(|series| all_metrics.register(Box::new(series)))
            .and_then(|()| triton_series(repository.hosts().clone()))
            .and_then(|series| all_metrics.register(Box::new(series)))
            .map_err(|e| internal(e.to_string()))?;
        DeviceMetrics::new(config.device.clone())
            .and_then(|series| all_metrics.register(Box::new(series)))
            .map_err(|e| internal(e.to_string()))?;
        Ok(Self {
            repository,
            scoring,
            limits: RwLock::new(config.limits),
            metrics,
            draining: AtomicBool::new(false),
            model_control: config.model_control,
            control: Arc::new(Semaphore::new(1)),
            audit: config.audit.clone().map(Audit::start).transpose()?,
            traffic: Traffic::new(config.traffic.clone()),
            request_log,
            device: config.device.clone(),
        })
    }

    /// Returns whether every model of the configuration has a version that answers and is not older
    /// than the configuration allows, the device that scores has not failed, and the server is not
    /// stopping.
    pub fn is_ready(&self) -> bool {
        let loaded = |host: &Arc<Host>| !host.is_required() || host.is_ready();
        !self.is_draining() && !self.has_failed_device() && self.hosts().iter().all(loaded)
    }

    /// Returns whether the device that scores has failed. Only a new start of the server helps.
    pub(crate) fn has_failed_device(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.has_failed())
    }

    /// Returns whether the server is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns all metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// Returns an error if a series cannot be written.
    pub fn metrics_text(&self) -> Result<String> {
        self.metrics.set_ready(self.is_ready());
        let (waiting, work, bytes) = self.scoring.load();
        self.metrics.set_load(waiting, work, bytes);
        let log_bytes = self.request_log.as_ref().map_or(0, |log| log.waiting_bytes());
        self.metrics.request_log.set_queue_bytes(log_bytes);
        for host in self.hosts() {
            self.metrics.loading.set_age(host.name(), host.registry_age(), host.is_stale());
        }
        self.metrics.text().map_err(|e| ServeError::Internal(e.to_string()))
    }

    /// Makes the server report that it is not ready, so that new requests go to another
    /// server. Open requests are still answered.
    ///
    /// All loaders and the requests of clients to the registry are told to stop, so that none of
    /// them is waited for later.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.repository.stop();
    }

    /// Ends the request log, if there is one: writes what waits, and completes the open files.
    /// Requests that are answered later are not logged. Returns whether all was written within some
    /// seconds.
    ///
    /// Blocks, and must not run on a network thread.
    pub fn end_request_log(&self) -> bool {
        self.request_log.as_ref().is_none_or(|log| log.end())
    }

    /// Returns the models, in ascending order of their names.
    pub fn hosts(&self) -> Vec<Arc<Host>> {
        self.repository.hosts().all()
    }

    /// Returns the current limits of requests.
    pub fn limits(&self) -> Limits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the limits for requests that arrive after this call. The number of
    /// connections is fixed when the server begins to listen.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Returns the metrics of the server.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the model of a name.
    ///
    /// # Errors
    /// Returns [`ServeError::UnknownModel`] if the server does not have the model.
    pub fn host(&self, model: &str) -> Result<Arc<Host>> {
        self.repository.hosts().get(model).ok_or_else(|| self.repository.unknown_model(model))
    }

    /// Starts to serve a model of the registry, or makes a served model follow another
    /// version. The call returns before the version is loaded, and the readiness of the
    /// server does not depend on this load. The current version answers until the loader
    /// has the requested one.
    ///
    /// Blocks while another model is being loaded or unloaded, and must not run on a network
    /// thread.
    ///
    /// # Errors
    /// Returns an error if the name is invalid, the cache folder cannot be created, or a
    /// thread cannot be started.
    pub fn load(&self, model: &str, follow: Follow) -> Result<Arc<Host>> {
        self.repository.load(model, follow).map(|(host, _)| host)
    }

    /// Stops serving a model: requests that have begun are answered, later requests find no
    /// model of this name, and the lease of the model in the registry ends.
    ///
    /// Blocks until the loader of the model has stopped. A load that has begun ends first.
    /// Must not run on a network thread.
    ///
    /// # Errors
    /// Returns [`ServeError::UnknownModel`] if the server does not have the model.
    pub fn unload(&self, model: &str) -> Result<()> {
        self.repository.unload(model)
    }

    /// Lists the models of the registry and of the server, in ascending order of their names. A
    /// model with loaded versions appears once for each of them.
    ///
    /// Reads the registry, and therefore must not run on a network thread.
    ///
    /// # Errors
    /// Returns an error if the registry cannot be read.
    pub fn index(&self) -> Result<Vec<Indexed>> {
        self.repository.index()
    }

    /// Returns the audit log, if the server writes one.
    pub(crate) fn audit_log(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// Returns whether clients may load and unload models.
    pub fn has_model_control(&self) -> bool {
        self.model_control
    }

    /// Begins a request of a client to the registry, which ends after `time` or when the server
    /// stops.
    pub(crate) fn begin_control(&self, time: Duration) {
        self.repository.begin_control(time);
    }

    /// Waits until no other client is reading the registry.
    pub(crate) async fn control_turn(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.control.clone().acquire_owned().await
    }

    /// Loads a model that exists in the registry, and makes it follow its default version.
    /// Returns the model, and whether this call has added it to the server.
    pub(crate) fn load_known(&self, model: &str) -> Result<(Arc<Host>, bool)> {
        self.repository.check(model)?;
        self.repository.load(model, self.repository.default_follow(model))
    }

    /// Checks that the server has room for any request, before the model of the request is known.
    ///
    /// # Errors
    /// Returns [`ServeError::Overloaded`] if twice the work that may wait is waiting.
    pub(crate) fn check_crowded(&self) -> Result<()> {
        self.scoring.check_crowded(&self.limits())
    }

    /// Returns whether a burst of large requests has ended since the last call, so that the memory
    /// that it needed can be returned to the system.
    pub fn has_burst_ended(&self) -> bool {
        self.scoring.has_burst_ended()
    }

    /// Returns a claim of a holder on no bytes of the budget of bytes in flight.
    pub(crate) fn hold_bytes(&self, holder: Holder<'_>) -> HeldBytes {
        self.scoring.hold_bytes(holder)
    }

    /// Chooses the version that is to answer a request, and the version that scores its rows beside
    /// the answer. A request of a canary whose version is not loaded is answered by the usual
    /// version.
    ///
    /// # Errors
    /// Returns an error if the version that the request asks for is not loaded.
    pub(crate) fn resolve(
        &self,
        host: &Arc<Host>,
        selector: &Selector,
        headers: &HeaderMap,
    ) -> Result<Chosen> {
        let dealt = self.traffic.deal(host.name(), selector, headers);
        let loaded = |label: String| host.resolve(&Selector::Label(label)).ok();
        let version = match dealt.canary.and_then(loaded) {
            Some(canary) => canary,
            None => host.resolve(selector)?,
        };
        let shadow = dealt.shadow.and_then(loaded).map(|shadow| shadow.servable);
        let shadow = shadow.filter(|shadow| shadow.version() != version.servable.version());
        let sampling = self.request_log.as_ref().and_then(|log| log.begin(host.name(), headers));
        Ok(Chosen { version, shadow, sampling })
    }

    /// Counts a request in the quota of its principal, before its body is received.
    ///
    /// # Errors
    /// Returns [`ServeError::Quota`] if the quota is used up.
    pub(crate) fn enter(&self, principal: &Arc<Principal>) -> Result<Arc<Caller>> {
        self.scoring.enter(principal)
    }

    /// Admits a request by its head, before its body is received.
    ///
    /// # Errors
    /// Returns [`ServeError::Overloaded`] if the request must come again later, and
    /// [`ServeError::TooLarge`] if its body is larger than the quota allows.
    pub(crate) fn admit(&self, head: &Head<'_>) -> Result<Admitted> {
        self.scoring.admit(head, &self.limits())
    }

    /// Runs the work of a request against one version, on this thread or on the pool: `work` reads
    /// the body, scores its rows by [`Scored::score_then`], and writes the answer. It is called a
    /// second time if the work turns out to be too long for this thread. The body has `bytes`
    /// bytes, and may be packed. Returns the lines of the request log too, if the request belongs
    /// to its sample.
    ///
    /// # Errors
    /// Returns [`ServeError::Overloaded`] if too much work waits, [`ServeError::Deadline`] if the
    /// time of the request is over, and the error of `work` if it fails.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        chosen: Chosen,
        admitted: &Admitted,
        (bytes, is_packed): (usize, bool),
        mut work: impl FnMut(&Scored) -> Result<Step<T>> + Send + 'static,
    ) -> Result<(T, Option<Sample>)> {
        let Chosen { version, shadow, sampling } = chosen;
        let statistics = version.statistics.clone();
        let begun = Begun::now(&statistics);
        let (limits, metrics) = (self.limits(), self.metrics.clone());
        let (caller, limit) = (admitted.caller.clone(), admitted.limit);
        let small = admitted.small.clone();
        let mut scored = Scored {
            version,
            limits,
            metrics,
            spent: Cell::default(),
            caller,
            limit,
            deadline: Instant::now(),
            inline: None,
            gathers: false,
            values: Cell::new(None),
            is_handed_over: Cell::new(false),
            shadow: shadow.map(|servable| Shadow { servable, scoring: self.scoring.clone() }),
            sampling,
            sample: RefCell::new(None),
        };
        let mut finish: Option<Finish<T>> = None;
        let work = move |turned: &Turned| {
            let step = match turned.joined.take().zip(finish.take()) {
                Some((joined, finish)) => finish(&scored, joined).map(Step::Done),
                None => {
                    scored.begin_turn(turned, &small);
                    work(&scored)
                }
            };
            if scored.is_handed_over.get() {
                return Outcome::HandedOver;
            }
            let done = match step {
                Ok(Step::Read(rows, later)) => {
                    finish = Some(later);
                    return Outcome::Read(rows);
                }
                Ok(Step::Done(done)) => Ok((done, scored.spent.get(), scored.sample.take())),
                Err(error) => Err(error),
            };
            Outcome::Done(done, scored.values.get())
        };
        let run = self.scoring.run(admitted, (bytes, is_packed), &limits, work);
        let (done, spent, sample) = run.await?;
        begun.finish(&spent);
        Ok((done, sample))
    }
}
