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
use std::sync::{Arc, PoisonError, RwLock};

use zillion_registry::{Servable, VersionId};

use crate::error::{Result, ServeError};

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
    /// Why the newest could not be loaded, if it could not.
    pub problem: Option<String>,
}

/// A model that is served.
#[derive(Debug)]
pub struct Host {
    name: String,
    open: RwLock<Arc<OpenVersions>>,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), open: RwLock::default() }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is open now.
    pub fn open(&self) -> Arc<OpenVersions> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what is open. Requests that have begun keep what they have.
    pub(crate) fn put_up(&self, open: OpenVersions) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(open);
    }

    /// The version that a request asks for.
    ///
    /// # Errors
    /// [`ServeError::NotReady`] while nothing is loaded, [`ServeError::UnknownVersion`].
    pub fn resolve(&self, selector: &Selector) -> Result<Arc<Servable>> {
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
        version.and_then(|version| open.versions.get(&version).cloned()).ok_or_else(|| {
            let loaded: Vec<String> = open.versions.keys().map(VersionId::to_string).collect();
            ServeError::UnknownVersion {
                model: self.name.clone(),
                version: asked,
                loaded: loaded.join(", "),
            }
        })
    }
}
