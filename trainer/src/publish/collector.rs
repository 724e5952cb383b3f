//! The removal of old versions by their publisher, beside its publications.
//!
//! A run that publishes a version every second fills a registry with objects that nobody needs. So
//! the publisher removes them as [`zillion_registry::Model::collect`] does, in a thread of its own.
//! No publication waits for it. A collection that fails is reported and tried again later: an
//! object that stays too long costs space and nothing else.

use std::sync::Arc;
use std::thread::JoinHandle;

use zillion_config::ConfigError;
use zillion_device::machine::lower_thread_priority;
use zillion_registry::{CollectMemory, Model, Retention, VersionManifest};
use zillion_store::{LAST_WORDS, StoreStop};

use crate::error::Result;
use crate::job::PublishConfig;

/// The smallest age in seconds from which a publisher may remove files.
const LEAST_KEEP_SECONDS: u64 = 60;
/// The divisor of the number of kept versions that gives the publications between two collections.
const DIVISOR: usize = 4;
/// The largest number of publications between two collections.
const MOST_BETWEEN: usize = 1000;

/// The collections of a publisher.
pub(super) struct Collector {
    retention: Retention,
    /// The model in a store of its own; absent: that of the publisher.
    model: Option<Model>,
    /// The versions that were published since the last collection began.
    published: Vec<Arc<VersionManifest>>,
    /// The findings of the last collection.
    memory: CollectMemory,
    running: Option<Running>,
}

/// A collection that runs.
#[derive(Debug)]
struct Running {
    stop: StoreStop,
    thread: JoinHandle<CollectMemory>,
}

impl Collector {
    /// Returns the collections that a job asks for, or `None` if it asks for none.
    ///
    /// # Errors
    /// Returns an error if the job lets files be removed that a publication has just written.
    pub(super) fn of(config: &PublishConfig) -> Result<Option<Self>> {
        if config.keep_versions.is_some() && config.keep_seconds < LEAST_KEEP_SECONDS {
            let problem = format!(
                "must be at least {LEAST_KEEP_SECONDS}, because the files of a version are written \
                 before the version exists"
            );
            return Err(ConfigError::at("publish.keep_seconds", &problem).into());
        }
        Ok(config.retention().map(Self::new))
    }

    pub(super) fn new(retention: Retention) -> Self {
        let memory = CollectMemory::default();
        Self { retention, model: None, published: Vec::new(), memory, running: None }
    }

    /// Lets the collections use a model in a store of its own. The threads of a store have the
    /// priority of the thread that starts them. So a publication would wait for threads of the
    /// collection's low priority if both shared a store.
    pub(super) fn with_model(mut self, model: Model) -> Self {
        self.model = Some(model);
        self
    }

    /// Returns whether no collection runs.
    pub(super) fn is_idle(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.thread.is_finished())
    }

    /// Counts a publication. The next collection then need not read its manifest.
    pub(super) fn count_publication(&mut self, version: Arc<VersionManifest>) {
        self.published.push(version);
    }

    /// Begins a collection if one is due and none runs.
    pub(super) fn begin_if_due(&mut self, model: &Model) {
        let between = (self.retention.keep / DIVISOR).clamp(1, MOST_BETWEEN);
        if self.published.len() < between || !self.is_idle() {
            return;
        }
        self.end();
        let published = std::mem::take(&mut self.published);
        let mut memory = std::mem::take(&mut self.memory);
        let stop = StoreStop::default();
        let model = self.model.as_ref().unwrap_or(model);
        let (model, retention) = (model.with_stop(stop.clone()), self.retention);
        let work = move || {
            // A system that refuses gives the thread the priority of the others.
            let _ = lower_thread_priority();
            match model.collect_again(&mut memory, retention, &published) {
                Ok(done) => tracing::debug!(
                    "removed {} old versions, {} moves and {} files of model `{}`",
                    done.removed_manifests,
                    done.removed_moves,
                    done.removed_files,
                    model.name()
                ),
                Err(error) => tracing::warn!("old versions stay in the registry: {error}"),
            }
            memory
        };
        match std::thread::Builder::new().name("zillion-collect".to_owned()).spawn(work) {
            Ok(thread) => self.running = Some(Running { stop, thread }),
            Err(error) => tracing::warn!("old versions stay in the registry: {error}"),
        }
    }

    /// Waits for the collection that runs.
    pub(super) fn end(&mut self) {
        if let Some(running) = self.running.take() {
            match running.thread.join() {
                Ok(memory) => self.memory = memory,
                Err(_) => {
                    tracing::warn!("a collection of old versions has panicked; report this defect");
                }
            }
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            // A store that hangs must not keep the run from its end.
            running.stop.within(LAST_WORDS);
        }
        self.end();
    }
}
