//! One model's versions in a server: which are open, which answers, and how new ones come in.
//!
//! # Invariants
//! A request takes one [`Servable`] and keeps it to its end, so that its rows, its parameters and its graph
//! are of one version. What it takes is there whole: a version is put up after it has loaded and its
//! parity rows have been replayed.
//!
//! # Concurrency
//! One thread per model loads (see [`crate::loader`]); requests read a shared list of versions that is replaced
//! whole. A version that left the list lives until the last request lets go of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use zillion_registry::VersionId;
use zillion_scorer::Servable;

use crate::config::Follow;
use crate::error::{Result, ServeError};
use crate::statistics::VersionStatistics;

/// Which version a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The one that answers by default.
    Default,
    /// By number.
    Version(VersionId),
    /// By pointer.
    Label(String),
}

/// The versions that are open, at one moment.
#[derive(Clone, Debug, Default)]
pub struct OpenVersions {
    /// The version that answers by default.
    pub current: Option<VersionId>,
    /// Where pointers stand.
    pub labels: BTreeMap<String, VersionId>,
    /// What is loaded.
    pub versions: BTreeMap<VersionId, Arc<Servable>>,
    /// What their requests came to, of each of them.
    pub statistics: BTreeMap<VersionId, Arc<VersionStatistics>>,
    /// Why the newest could not be loaded, if it could not.
    pub problem: Option<String>,
}

/// A version that answers one request, from its first byte to its last.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The model.
    pub host: Arc<Host>,
    /// The loaded version.
    pub servable: Arc<Servable>,
    /// The counters of the version's requests.
    pub statistics: Arc<VersionStatistics>,
}

/// A model that is served.
#[derive(Debug)]
pub struct Host {
    name: String,
    /// The server is not ready without it.
    is_required: bool,
    /// Which version is to answer by default.
    follow: Mutex<Follow>,
    open: RwLock<Arc<OpenVersions>>,
}

impl Host {
    pub(crate) fn new(name: &str, follow: Follow, is_required: bool) -> Self {
        let (name, follow) = (name.to_owned(), Mutex::new(follow));
        Self { name, is_required, follow, open: RwLock::default() }
    }

    /// Whether the server is not ready as long as this model has no version.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Which version is to answer by default.
    pub fn follow(&self) -> Follow {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says it anew; what answers stays until the loader has looked.
    pub(crate) fn set_follow(&self, follow: Follow) {
        *self.follow.lock().unwrap_or_else(PoisonError::into_inner) = follow;
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is open now.
    pub fn open(&self) -> Arc<OpenVersions> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what is open. Requests that have begun keep what they have; versions that stay keep their
    /// statistics.
    pub(crate) fn put_up(&self, mut open: OpenVersions) {
        let before = self.open();
        let of = |version: &VersionId| before.statistics.get(version).cloned().unwrap_or_default();
        open.statistics = open.versions.keys().map(|version| (*version, of(version))).collect();
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(open);
    }

    /// Returns the version that a request asks for. A request resolves its version once and keeps it.
    ///
    /// # Errors
    /// [`ServeError::NotReady`] while nothing is loaded, [`ServeError::UnknownVersion`].
    pub fn resolve(self: &Arc<Self>, selector: &Selector) -> Result<Resolved> {
        let open = self.open();
        let Some(current) = open.current else {
            let why = open.problem.as_deref().unwrap_or("no version has been published yet");
            return Err(ServeError::NotReady(format!(
                "no version is loaded: {why}: model `{}`",
                self.name
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
                model: self.name.clone(),
                version: asked,
                loaded: loaded.join(", "),
            }
        })
    }

    /// A version with statistics and without anything else, for tests of what collects them.
    #[cfg(test)]
    pub(crate) fn set_statistics(&self, version: VersionId, statistics: Arc<VersionStatistics>) {
        let statistics = BTreeMap::from([(version, statistics)]);
        let open = OpenVersions { statistics, ..OpenVersions::default() };
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(open);
    }
}
