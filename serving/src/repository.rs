//! The models of the server: those of its configuration, and those that clients have loaded.
//!
//! # Concurrency
//! Requests read a map, which is locked only while a name is searched. Models are loaded and
//! unloaded one at a time. This may block until a loader has finished its current work, so that
//! it must not run on a network thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use zillion_device::{Files, Workers};
use zillion_registry::{Registry, STABLE, VersionId};
use zillion_store::StoreStop;

use crate::config::{Follow, ServeConfig};
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::loader::Loader;
use crate::metrics::Metrics;

/// The models of a server by name.
#[derive(Debug, Default)]
pub(crate) struct Hosts(RwLock<BTreeMap<String, Arc<Host>>>);

impl Hosts {
    /// Returns all models, in ascending order of their names.
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

/// A model of the registry, and its state in this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// The name of the model.
    pub name: String,
    /// The number of the loaded version, if one is loaded.
    pub version: Option<VersionId>,
    /// The state of the model in this server.
    pub state: ModelState,
    /// The reason why the model cannot answer, or why its newest version is not loaded. Empty if
    /// there is none.
    pub reason: String,
}

/// The state of a model in this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// The model is loaded and answers requests.
    Ready,
    /// The version is being loaded and does not answer requests yet.
    Loading,
    /// The model was not loaded, or could not be loaded.
    Unavailable,
}

impl ModelState {
    /// Returns the name of the state in the protocols.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Loading => "LOADING",
            Self::Unavailable => "UNAVAILABLE",
        }
    }
}

/// The models of a server, and the threads that load them.
pub(crate) struct Repository {
    hosts: Arc<Hosts>,
    /// The loaders of the models, locked while a model is loaded or unloaded. The loaders stop with
    /// the server.
    loaders: Mutex<BTreeMap<String, Loader>>,
    /// The signal that ends the present request of a client to the registry, and whether the server
    /// is stopping.
    control: Mutex<(StoreStop, bool)>,
    config: Arc<ServeConfig>,
    registry: Registry,
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
            control: Mutex::default(),
            config: Arc::new(config.clone()),
            registry: registry.clone(),
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

    /// Returns the version that the configuration names for a model, or else the pointer
    /// `stable`.
    pub(crate) fn default_follow(&self, model: &str) -> Follow {
        let own = self.config.models.iter().rfind(|(name, _)| name == model);
        own.map_or_else(|| Follow::Pointer(STABLE.to_owned()), |(_, follow)| follow.clone())
    }

    /// Loads a model as [`Domain::load`](crate::Domain::load) does. Returns the model, and
    /// whether this call has added it.
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

    /// Unloads a model as [`Domain::unload`](crate::Domain::unload) does.
    pub(crate) fn unload(&self, model: &str) -> Result<()> {
        let mut loaders = self.loaders();
        if self.hosts.remove(model).is_none() {
            return Err(self.unknown_model(model));
        }
        // This ends the lease too, and a client that loads the model again waits for that.
        drop(loaders.remove(model));
        self.metrics.forget(model);
        tracing::info!(model, "this model is no longer served");
        Ok(())
    }

    /// Lists the models as [`Domain::index`](crate::Domain::index) does.
    pub(crate) fn index(&self) -> Result<Vec<Indexed>> {
        let mut names: BTreeSet<String> = self.names()?.into_iter().collect();
        names.extend(self.hosts.all().iter().map(|host| host.name().to_owned()));
        Ok(names.into_iter().flat_map(|name| self.index_model(name)).collect())
    }

    /// Checks that the registry has a model of this name.
    pub(crate) fn check(&self, model: &str) -> Result<()> {
        let names = self.names()?;
        if names.iter().any(|name| name == model) {
            return Ok(());
        }
        let model = model.chars().take(100).collect();
        Err(ServeError::NotInRegistry { model, has: list_names(&names) })
    }

    pub(crate) fn unknown_model(&self, model: &str) -> ServeError {
        let names: Vec<String> = self.hosts.all().iter().map(|h| h.name().to_owned()).collect();
        let model = model.chars().take(100).collect();
        ServeError::UnknownModel { model, serves: list_names(&names) }
    }

    fn index_model(&self, name: String) -> Vec<Indexed> {
        let Some(host) = self.hosts.get(&name) else {
            let (state, reason) = (ModelState::Unavailable, "not loaded".to_owned());
            return vec![Indexed { name, version: None, state, reason }];
        };
        let open = host.open();
        let reasons = host.describe_staleness().into_iter().chain(open.problem.clone());
        let problem = Some(reasons.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty());
        if open.versions.is_empty() {
            let loading = problem.is_none();
            let state = if loading { ModelState::Loading } else { ModelState::Unavailable };
            let reason = problem.unwrap_or_default();
            return vec![Indexed { name, version: None, state, reason }];
        }
        let ready = |&version: &VersionId| {
            // The problem of a newer version is shown at the version that answers instead of it.
            let reason = problem.clone().filter(|_| open.current == Some(version));
            let (version, reason) = (Some(version), reason.unwrap_or_default());
            Indexed { name: name.clone(), version, state: ModelState::Ready, reason }
        };
        open.versions.keys().map(ready).collect()
    }

    fn names(&self) -> Result<Vec<String>> {
        let stop = self.control().0.clone();
        let registry = self.registry.with_stop(stop);
        registry.models().map_err(|e| ServeError::NotReady(e.to_string()))
    }

    /// Begins a request of a client to the registry, which ends after `time` or when the server
    /// stops. There is one such request at a time.
    pub(crate) fn begin_control(&self, time: Duration) {
        let mut control = self.control();
        control.0 = StoreStop::default();
        control.0.within(if control.1 { Duration::ZERO } else { time });
    }

    /// Tells all loaders to stop, and ends the present request of a client to the registry, without
    /// waiting for them.
    pub(crate) fn stop(&self) {
        let mut control = self.control();
        control.1 = true;
        control.0.within(Duration::ZERO);
        drop(control);
        // Another thread that loads or unloads a model waits for a loader. It must not be waited
        // for here, and the end of the server stops the loaders again.
        if let Ok(mut loaders) = self.loaders.try_lock() {
            loaders.values_mut().for_each(Loader::stop);
        }
    }

    fn control(&self) -> MutexGuard<'_, (StoreStop, bool)> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(
        &self,
        loaders: &mut BTreeMap<String, Loader>,
        name: &str,
        follow: Follow,
        is_required: bool,
    ) -> Result<Arc<Host>> {
        let model = self.registry.model(name).map_err(|e| ServeError::Malformed(e.to_string()))?;
        if self.control().1 {
            return Err(ServeError::NotReady(
                "the server is stopping; send the request to another server".to_owned(),
            ));
        }
        let host = Arc::new(Host::new(name, follow, is_required, self.config.max_stale));
        self.metrics.begin(name);
        let loader = Loader::start(
            model,
            host.clone(),
            self.config.clone(),
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

impl Drop for Repository {
    fn drop(&mut self) {
        // All loaders stop at the same time, and each is then waited for.
        self.stop();
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Formats names for an error: `none`, up to 20 names, or the number of more names.
fn list_names(names: &[String]) -> String {
    const MOST: usize = 20;
    match names.len() {
        0 => "none".to_owned(),
        count if count > MOST => format!("{count} models"),
        _ => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_lists_few_models() {
        let names = |count: usize| (0..count).map(|i| format!("m{i}")).collect::<Vec<_>>();
        assert_eq!(list_names(&names(0)), "none");
        assert_eq!(list_names(&names(2)), "`m0`, `m1`");
        assert!(list_names(&names(20)).ends_with("`m19`"));
        assert_eq!(list_names(&names(21)), "21 models");
    }
}
