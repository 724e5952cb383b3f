//! What every protocol is an adapter of: models by name, and requests that become answers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prometheus::Registry as MetricsRegistry;
use zillion_device::{Files, Workers};
use zillion_feature::RawColumns;
use zillion_registry::{Registry, Servable};

use crate::config::{Limits, ServeConfig};
use crate::error::{Result, ServeError};
use crate::host::{Host, Selector};
use crate::loader::{LoadConfig, Loader};
use crate::metrics::{Metrics, Stage};
use crate::score::{Answer, Scoring};
use crate::trace::span;

/// How often a server says anew which versions it has open, at least: a third of this.
const LEASE: Duration = Duration::from_secs(300);

/// The models of a server.
#[derive(Debug)]
pub struct Domain {
    hosts: BTreeMap<String, Arc<Host>>,
    scoring: Scoring,
    limits: Limits,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    /// Stop with the domain.
    _loaders: Vec<Loader>,
}

/// Raw rows of a request.
#[derive(Debug)]
pub struct RowsRequest<'a> {
    /// How many rows.
    pub rows: usize,
    /// Their inputs.
    pub columns: RawColumns<'a>,
    /// The outputs that are wanted; none: the probabilities.
    pub outputs: Vec<String>,
}

impl Domain {
    /// Starts to load the models of `config` from `registry`. Returns at once: see [`Domain::is_ready`].
    ///
    /// # Errors
    /// A model's name that is none, a cache folder that cannot be made, threads that the system refuses.
    pub fn start(
        config: &ServeConfig,
        registry: &Registry,
        files: &Files,
        metrics: &MetricsRegistry,
    ) -> Result<Self, ServeError> {
        let internal = |e: String| ServeError::Internal(e);
        let metrics = Arc::new(Metrics::new(metrics).map_err(|e| internal(e.to_string()))?);
        // Nobody joins the pool's phases from outside: its own threads are all there are.
        let threads = NonZeroUsize::new(config.threads + 1).unwrap_or(NonZeroUsize::MIN);
        let workers = Arc::new(Workers::new(threads).map_err(|e| internal(e.to_string()))?);
        let limits = config.limits;
        let scoring =
            Scoring::new(workers.clone(), limits.waiting, limits.request_time, metrics.clone());
        let mut hosts = BTreeMap::new();
        let mut loaders = Vec::new();
        for (name, follow) in &config.models {
            let model = registry.model(name).map_err(|e| internal(e.to_string()))?;
            let host = Arc::new(Host::new(name));
            metrics.begin(name);
            let load = LoadConfig {
                follow: follow.clone(),
                cache: config.cache.clone(),
                poll: config.poll,
                retain: config.retain,
                retain_cached: config.retain_cached,
                lease: LEASE,
                server: config.server.clone(),
            };
            let loader = Loader::start(
                model,
                host.clone(),
                load,
                files.clone(),
                workers.clone(),
                scoring.open(),
                metrics.clone(),
            );
            loaders.push(loader.map_err(|e| internal(e.to_string()))?);
            hosts.insert(name.clone(), host);
        }
        let draining = AtomicBool::new(false);
        Ok(Self { hosts, scoring, limits, metrics, draining, _loaders: loaders })
    }

    /// Whether every model has a version that answers, and the server is not stopping.
    pub fn is_ready(&self) -> bool {
        let loaded = |host: &Arc<Host>| host.open().current.is_some();
        !self.draining.load(Ordering::Relaxed) && self.hosts.values().all(loaded)
    }

    /// What it measures, in Prometheus' text format.
    ///
    /// # Errors
    /// A series that cannot be written.
    pub fn metrics_text(&self) -> Result<String> {
        self.metrics.set_ready(self.is_ready());
        self.metrics.text().map_err(|e| ServeError::Internal(e.to_string()))
    }

    /// From now on the server is not ready: open requests end, new ones go elsewhere.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The models.
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.hosts.values()
    }

    /// What the server takes.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What it measures.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// A model by name.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`].
    pub fn host(&self, model: &str) -> Result<&Arc<Host>> {
        self.hosts.get(model).ok_or_else(|| {
            let serves: Vec<String> = self.hosts.keys().map(|name| format!("`{name}`")).collect();
            let model = model.chars().take(100).collect();
            ServeError::UnknownModel { model, serves: serves.join(", ") }
        })
    }

    /// Does a request's work on the pool, against one version: `work` reads the body, calls
    /// [`Scored::score`], and writes the answer.
    ///
    /// # Errors
    /// No such model or version, too many requests, no time left, or what `work` refuses.
    pub async fn request<T: Send + 'static>(
        &self,
        model: &str,
        selector: &Selector,
        work: impl FnOnce(&Scored) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let host = self.host(model)?.clone();
        let servable = host.resolve(selector)?;
        let scored = Scored { servable, limits: self.limits, metrics: self.metrics.clone(), host };
        self.scoring.run(move || work(&scored)).await
    }
}

/// A request's version, and what is counted of its work.
pub struct Scored {
    servable: Arc<Servable>,
    limits: Limits,
    metrics: Arc<Metrics>,
    host: Arc<Host>,
}

impl Scored {
    /// The version that answers.
    pub fn servable(&self) -> &Servable {
        &self.servable
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        self.host.name()
    }

    /// Times a stage of the work.
    pub fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let _span = span!("stage", otel.name = stage.name()).entered();
        let began = Instant::now();
        let done = work();
        self.metrics.stage(stage, began.elapsed());
        done
    }

    /// Scores rows.
    ///
    /// # Errors
    /// More rows or values than the server takes, none at all, or what does not fit the model.
    pub fn score(&self, request: &RowsRequest<'_>) -> Result<Answer> {
        let too_large = |what, limit, setting| ServeError::TooLarge { what, limit, setting };
        if request.rows == 0 {
            return Err(ServeError::Malformed("the request has no rows".to_owned()));
        }
        if request.rows > self.limits.rows {
            return Err(too_large("the number of rows", self.limits.rows, "--max-rows"));
        }
        let values: usize = request.columns.values().map(|column| column.values.len()).sum();
        // What one row gives for all rows is there as often as there are rows.
        let shared = request.columns.values().filter(|column| column.is_shared);
        let shared: usize = shared.map(|column| column.values.len()).sum();
        let values = values.saturating_add(shared.saturating_mul(request.rows));
        if values > self.limits.values {
            return Err(too_large("the number of values", self.limits.values, "--max-values"));
        }
        let scores = self.timed(Stage::Score, || {
            self.servable.score(request.rows, &request.columns).map_err(|error| match error {
                zillion_registry::Error::Input(input) => ServeError::Input(input),
                other => ServeError::Scoring(other),
            })
        })?;
        let rows = request.rows as u64;
        self.metrics.scored(self.host.name(), rows, scores.missing, scores.missing_side_rows);
        Answer::choose(&self.servable, scores, &request.outputs)
    }
}
