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
use std::time::{Duration, Instant};

use zillion_registry::VersionId;
use zillion_scorer::Servable;

use crate::config::Follow;
use crate::error::{Result, ServeError};
use crate::problem::ProblemKind;
use crate::queue::{Estimates, SmallWork, Wire};
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
    /// The averages that tell small requests from others, by their protocol.
    small: [Arc<SmallWork>; Wire::COUNT],
    /// Whether the server is ready only if a version of this model is loaded.
    is_required: bool,
    /// The version that the loader follows, which answers by default.
    follow: Mutex<Follow>,
    open: RwLock<Arc<OpenVersions>>,
    contact: Mutex<Contact>,
    /// The age of the registry's last answer above which the model does not count as ready.
    max_stale: Option<Duration>,
}

/// The contact of a model's loader with the registry.
#[derive(Clone, Copy, Debug)]
struct Contact {
    /// The time of the last answer of the registry, or the time when the loader began.
    answered: Instant,
    /// The age that the last answer had at that time.
    age: Duration,
    /// Whether the last look at the registry had no answer.
    is_lost: bool,
}

impl Host {
    pub(crate) fn new(
        name: &str,
        follow: Follow,
        is_required: bool,
        max_stale: Option<Duration>,
    ) -> Self {
        let (name, follow) = (name.into(), Mutex::new(follow));
        let (estimates, small) = Default::default();
        let contact = Contact { answered: Instant::now(), age: Duration::ZERO, is_lost: false };
        let (open, contact) = (RwLock::default(), Mutex::new(contact));
        Self { name, estimates, small, is_required, follow, open, contact, max_stale }
    }

    /// Returns whether the model answers: its version has no damaged file, and the last answer of
    /// the registry is not older than the configuration allows.
    pub fn is_ready(&self) -> bool {
        let open = self.open();
        let current = open.current.and_then(|current| open.versions.get(&current));
        let is_damaged = current.is_some_and(|version| version.is_damaged());
        open.current.is_some() && !is_damaged && !self.is_too_stale()
    }

    /// Returns the time since the last answer of the registry. Before the first answer, it is the
    /// time since the loader began, and since the last answer in the cache if the model was loaded
    /// from there.
    pub fn registry_age(&self) -> Duration {
        let contact = self.contact();
        contact.answered.elapsed().saturating_add(contact.age)
    }

    /// Returns whether the last look at the registry had no answer, or the last answer is older
    /// than the configuration allows.
    pub fn is_stale(&self) -> bool {
        self.contact().is_lost || self.is_too_stale()
    }

    /// Returns whether the last answer of the registry is older than the configuration allows.
    pub fn is_too_stale(&self) -> bool {
        self.max_stale.is_some_and(|most| self.registry_age() > most)
    }

    /// Describes the age of a stale model, or returns `None` if the model is not stale.
    pub fn describe_staleness(&self) -> Option<String> {
        let seconds = self.registry_age().as_secs();
        let text = || format!("stale: the registry has not answered for {seconds} s");
        self.is_stale().then(text)
    }

    /// Records that the model is loaded from the cache, with an answer of this age.
    pub(crate) fn begin_stale(&self, age: Duration) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        *contact = Contact { answered: Instant::now(), age, is_lost: true };
    }

    /// Records that the registry has answered.
    pub(crate) fn record_contact(&self) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        *contact = Contact { answered: Instant::now(), age: Duration::ZERO, is_lost: false };
    }

    /// Records that the registry has not answered.
    pub(crate) fn lose_contact(&self) {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner).is_lost = true;
    }

    /// Records that the registry has answered with nothing newer than before: with a move that is
    /// over, or that was taken already. The contact is not lost, and the age of the last answer
    /// grows, so that a registry that somebody has frozen becomes too stale in the end.
    pub(crate) fn keep_contact(&self) {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner).is_lost = false;
    }

    fn contact(&self) -> Contact {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns the averages that tell small requests of a protocol from others.
    pub(crate) fn small(&self, wire: Wire) -> &Arc<SmallWork> {
        &self.small[wire as usize]
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
                "no version of model `{}` is loaded: {}; wait until it is loaded, or read the \
                 reason in the log of the server",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_its_registry_says_that_it_is_stale() {
        let make = |max_stale| Host::new("m", Follow::Latest, true, max_stale);
        let host = make(None);
        assert_eq!((host.is_stale(), host.describe_staleness()), (false, None));
        host.lose_contact();
        assert!(host.is_stale() && !host.is_too_stale());
        let text = host.describe_staleness().unwrap();
        assert!(text.starts_with("stale: the registry has not answered for"), "{text}");
        host.record_contact();
        assert!(!host.is_stale());
        // An answer without news is contact, and does not make the last answer younger.
        host.begin_stale(Duration::from_secs(7200));
        host.keep_contact();
        assert!(!host.is_stale() && host.registry_age() >= Duration::from_secs(7200));
        // The age of an answer from the cache counts.
        host.begin_stale(Duration::from_secs(7200));
        assert!(host.registry_age() >= Duration::from_secs(7200));
        assert!(host.is_stale() && !host.is_too_stale());
        let host = make(Some(Duration::from_secs(3600)));
        assert!(!host.is_too_stale());
        host.begin_stale(Duration::from_secs(7200));
        assert!(host.is_too_stale() && !host.is_ready());
        host.record_contact();
        assert!(!host.is_too_stale());
    }
}
