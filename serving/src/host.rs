//! The loaded versions of one model, and the choice of the version that answers a request.
//!
//! # Invariants
//! A request takes one [`Servable`] and keeps it to its end, so that its rows, its parameters
//! and its graph belong to one version. A version is complete before a request can take it: the
//! loader publishes it to requests only after its files are loaded and its parity rows are
//! reproduced.
//!
//! # Concurrency
//! Each model has one thread that loads versions (see [`crate::loader`]). Requests read a
//! shared list of versions, which is replaced as a whole. A version that was removed from the
//! list lives until its last request has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use zillion_registry::VersionId;
use zillion_scorer::Servable;

use crate::admission::Wire;
use crate::config::Follow;
use crate::error::{Result, ServeError};
use crate::problem::ProblemKind;
use crate::queue::Estimates;
use crate::statistics::VersionStatistics;

/// The version that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The version that answers by default.
    Default,
    /// The version of this number.
    Version(VersionId),
    /// The version that this pointer points to.
    Label(String),
}

/// The loaded versions of a model, at one moment.
#[derive(Clone, Debug, Default)]
pub struct OpenVersions {
    /// The version that answers by default.
    pub current: Option<VersionId>,
    /// The version of each pointer, by the name of the pointer.
    pub labels: BTreeMap<String, VersionId>,
    /// The loaded versions by number.
    pub versions: BTreeMap<VersionId, Arc<Servable>>,
    /// The counters of the requests of each loaded version.
    pub statistics: BTreeMap<VersionId, Arc<VersionStatistics>>,
    /// The reason why the newest version could not be loaded, if it could not. Only operators see
    /// it, because it may name folders, buckets and the origin of credentials.
    pub problem: Option<String>,
    /// The kind of the problem.
    pub problem_kind: ProblemKind,
}

impl OpenVersions {
    /// Returns a code for the reason why no version answers.
    pub fn unready_code(&self) -> &'static str {
        match &self.problem {
            Some(_) => self.problem_kind.code(),
            None => "loading",
        }
    }
}

/// A version that answers one request, from its first byte to its last.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The model of the version.
    pub host: Arc<Host>,
    /// The loaded version that answers.
    pub servable: Arc<Servable>,
    /// The counters of the version's requests.
    pub statistics: Arc<VersionStatistics>,
}

/// A model of the server, and its loaded versions.
#[derive(Debug)]
pub struct Host {
    name: Arc<str>,
    /// The estimates of the work of requests, by their protocol.
    estimates: [Arc<Estimates>; Wire::COUNT],
    /// Whether the server is ready only if a version of this model is loaded.
    is_required: bool,
    /// The version that the loader follows, which answers by default.
    follow: Mutex<Follow>,
    open: RwLock<Arc<OpenVersions>>,
}

impl Host {
    pub(crate) fn new(name: &str, follow: Follow, is_required: bool) -> Self {
        let (name, follow) = (name.into(), Mutex::new(follow));
        let estimates = Default::default();
        Self { name, estimates, is_required, follow, open: RwLock::default() }
    }

    /// Returns whether the server is ready only if a version of this model is loaded.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Returns the version that the loader follows, which answers by default.
    pub fn follow(&self) -> Follow {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the version to follow. Versions that are being served stay until the loader has
    /// acted.
    pub(crate) fn set_follow(&self, follow: Follow) {
        *self.follow.lock().unwrap_or_else(PoisonError::into_inner) = follow;
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the model as a shared text.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Returns the estimates of the work of requests of a protocol.
    pub(crate) fn estimates(&self, wire: Wire) -> &Arc<Estimates> {
        &self.estimates[wire as usize]
    }

    /// Returns the versions that are loaded now.
    pub fn open(&self) -> Arc<OpenVersions> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the loaded versions. Requests that have begun keep their version, and versions that
    /// stay keep their counters.
    pub(crate) fn publish(&self, mut open: OpenVersions) {
        let before = self.open();
        let of = |version: &VersionId| before.statistics.get(version).cloned().unwrap_or_default();
        open.statistics = open.versions.keys().map(|version| (*version, of(version))).collect();
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(open);
    }

    /// Returns the version that a request asks for. A request resolves its version once and keeps
    /// it.
    ///
    /// # Errors
    /// Returns [`ServeError::NotReady`] while no version is loaded, and
    /// [`ServeError::UnknownVersion`] if the requested version is not loaded.
    pub fn resolve(self: &Arc<Self>, selector: &Selector) -> Result<Resolved> {
        let open = self.open();
        let Some(current) = open.current else {
            return Err(ServeError::NotReady(format!(
                "no version of model `{}` is loaded: {}; the log of the server and its repository index have more",
                self.name,
                open.unready_code()
            )));
        };
        let (asked, version) = match selector {
            Selector::Default => (current.to_string(), Some(current)),
            Selector::Version(version) => (version.to_string(), Some(*version)),
            Selector::Label(label) => (format!("`{label}`"), open.labels.get(label).copied()),
        };
        let found = version.and_then(|version| {
            let servable = open.versions.get(&version)?.clone();
            let statistics = open.statistics.get(&version).cloned().unwrap_or_default();
            Some(Resolved { host: self.clone(), servable, statistics })
        });
        found.ok_or_else(|| {
            let loaded: Vec<String> = open.versions.keys().map(VersionId::to_string).collect();
            ServeError::UnknownVersion {
                model: self.name.to_string(),
                version: asked,
                loaded: loaded.join(", "),
            }
        })
    }

    /// Sets a version that has counters and nothing else, for tests of the collector.
    #[cfg(test)]
    pub(crate) fn set_statistics(&self, version: VersionId, statistics: Arc<VersionStatistics>) {
        let statistics = BTreeMap::from([(version, statistics)]);
        let open = OpenVersions { statistics, ..OpenVersions::default() };
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(open);
    }
}
