//! Which models the server has: from the start, by its configuration, or because somebody asked.
//!
//! # Concurrency
//! Requests read a map that is locked for as long as a name takes to find. Loading and unloading are one at
//! a time and may block for as long as a loader's present work; they belong on no network thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use zillion_device::{Files, Workers};
use zillion_registry::{Registry, STABLE, VersionId};

use crate::config::{Follow, LoadConfig, ServeConfig};
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::loader::Loader;
use crate::metrics::Metrics;

/// How often a server says anew which versions it has open, at least: a third of this.
const LEASE: Duration = Duration::from_secs(300);

/// The models of a server by name.
#[derive(Debug, Default)]
pub(crate) struct Hosts(RwLock<BTreeMap<String, Arc<Host>>>);

impl Hosts {
    /// All of them, in ascending order.
    pub(crate) fn all(&self) -> Vec<Arc<Host>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn get(&self, model: &str) -> Option<Arc<Host>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    pub(crate) fn insert(&self, host: Arc<Host>) {
        let mut hosts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        hosts.insert(host.name().to_owned(), host);
    }

    pub(crate) fn remove(&self, model: &str) -> Option<Arc<Host>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(model)
    }
}

/// A model of the registry, and how it is in this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// Its name.
    pub name: String,
    /// The version, of those that are open.
    pub version: Option<VersionId>,
    /// Whether it can be asked.
    pub state: ModelState,
    /// Why not, or what is wrong with the newest version; empty where there is nothing to say.
    pub reason: String,
}

/// Whether a model can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// It can.
    Ready,
    /// Soon.
    Loading,
    /// It cannot: it was not loaded, or could not be.
    Unavailable,
}

impl ModelState {
    /// The protocol's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Loading => "LOADING",
            Self::Unavailable => "UNAVAILABLE",
        }
    }
}

/// The models and what loads them.
pub(crate) struct Repository {
    hosts: Arc<Hosts>,
    /// Locked by whoever loads or unloads; they stop with the server.
    loaders: Mutex<BTreeMap<String, Loader>>,
    /// What was asked for at the start.
    configured: BTreeMap<String, Follow>,
    registry: Registry,
    load: LoadConfig,
    files: Files,
    workers: Arc<Workers>,
    busy: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Repository {
    /// Starts to load the models of `config`.
    pub(crate) fn start(
        config: &ServeConfig,
        registry: &Registry,
        files: &Files,
        workers: Arc<Workers>,
        busy: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let repository = Self {
            hosts: Arc::default(),
            loaders: Mutex::default(),
            configured: config.models.iter().cloned().collect(),
            registry: registry.clone(),
            load: LoadConfig {
                cache: config.cache.clone(),
                poll: config.poll,
                retain: config.retain,
                retain_cached: config.retain_cached,
                lease: LEASE,
                server: config.server.clone(),
            },
            files: files.clone(),
            workers,
            busy,
            metrics,
        };
        for (name, follow) in &config.models {
            repository.begin(&mut repository.loaders(), name, follow.clone(), true)?;
        }
        Ok(repository)
    }

    pub(crate) fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    /// What a model followed at the start, or `stable`.
    pub(crate) fn usual(&self, model: &str) -> Follow {
        let stable = || Follow::Pointer(STABLE.to_owned());
        self.configured.get(model).cloned().unwrap_or_else(stable)
    }

    /// See [`Domain::load`](crate::Domain::load). Also says whether the model is new here.
    pub(crate) fn load(&self, model: &str, follow: Follow) -> Result<(Arc<Host>, bool)> {
        let mut loaders = self.loaders();
        if let Some(host) = self.hosts.get(model) {
            if host.follow() != follow {
                host.set_follow(follow);
            }
            if let Some(loader) = loaders.get(model) {
                loader.wake();
            }
            return Ok((host, false));
        }
        let host = self.begin(&mut loaders, model, follow, false)?;
        Ok((host, true))
    }

    /// See [`Domain::unload`](crate::Domain::unload).
    pub(crate) fn unload(&self, model: &str) -> Result<()> {
        let mut loaders = self.loaders();
        if self.hosts.remove(model).is_none() {
            return Err(self.unknown(model));
        }
        // Ends its lease too; whoever loads the model again waits for that.
        drop(loaders.remove(model));
        self.metrics.forget(model);
        tracing::info!(model, "this model is not served any more");
        Ok(())
    }

    /// See [`Domain::index`](crate::Domain::index).
    pub(crate) fn index(&self) -> Result<Vec<Indexed>> {
        let mut names: BTreeSet<String> = self.names()?.into_iter().collect();
        names.extend(self.hosts.all().iter().map(|host| host.name().to_owned()));
        Ok(names.into_iter().flat_map(|name| self.indexed(name)).collect())
    }

    /// Whether the registry has a model of this name.
    pub(crate) fn check(&self, model: &str) -> Result<()> {
        let names = self.names()?;
        if names.iter().any(|name| name == model) {
            return Ok(());
        }
        let model = model.chars().take(100).collect();
        Err(ServeError::NotInRegistry { model, has: listed(&names) })
    }

    pub(crate) fn unknown(&self, model: &str) -> ServeError {
        let names: Vec<String> = self.hosts.all().iter().map(|h| h.name().to_owned()).collect();
        let model = model.chars().take(100).collect();
        ServeError::UnknownModel { model, serves: listed(&names) }
    }

    fn indexed(&self, name: String) -> Vec<Indexed> {
        let Some(host) = self.hosts.get(&name) else {
            let (state, reason) = (ModelState::Unavailable, "not loaded".to_owned());
            return vec![Indexed { name, version: None, state, reason }];
        };
        let open = host.open();
        let problem = open.problem.clone();
        if open.versions.is_empty() {
            let loading = problem.is_none();
            let state = if loading { ModelState::Loading } else { ModelState::Unavailable };
            let reason = problem.unwrap_or_default();
            return vec![Indexed { name, version: None, state, reason }];
        }
        let ready = |&version: &VersionId| {
            // What keeps a newer version out is said where one looks for it.
            let reason = problem.clone().filter(|_| open.current == Some(version));
            let (version, reason) = (Some(version), reason.unwrap_or_default());
            Indexed { name: name.clone(), version, state: ModelState::Ready, reason }
        };
        open.versions.keys().map(ready).collect()
    }

    fn names(&self) -> Result<Vec<String>> {
        self.registry.models().map_err(|e| ServeError::NotReady(e.to_string()))
    }

    fn begin(
        &self,
        loaders: &mut BTreeMap<String, Loader>,
        name: &str,
        follow: Follow,
        is_required: bool,
    ) -> Result<Arc<Host>> {
        let model = self.registry.model(name).map_err(|e| ServeError::Malformed(e.to_string()))?;
        let host = Arc::new(Host::new(name, follow, is_required));
        self.metrics.begin(name);
        let loader = Loader::start(
            model,
            host.clone(),
            self.load.clone(),
            self.files.clone(),
            self.workers.clone(),
            self.busy.clone(),
            self.metrics.clone(),
        );
        loaders.insert(name.to_owned(), loader.map_err(|e| ServeError::Internal(e.to_string()))?);
        self.hosts.insert(host.clone());
        Ok(host)
    }

    fn loaders(&self) -> MutexGuard<'_, BTreeMap<String, Loader>> {
        self.loaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Names for people: none, or all of them up to a length.
fn listed(names: &[String]) -> String {
    const MOST: usize = 20;
    let mut shown: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    if names.len() > MOST {
        shown.push(format!("{} more", names.len() - MOST));
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}
