//! The source of versions: tables that are trained with random gradients, and whose changes are
//! published.
//!
//! Versions are made in the same way as in a training run. If the lists of changes reach back to
//! the dirty epoch of the parent, a delta is written from these lists. Otherwise all rows are
//! compared with the rows of the parent.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use zillion_device::{Files, Workers};
use zillion_embedding::Rates;
use zillion_feature::random::{combine, mix64, unit_f32};
use zillion_feature::{FeatureKey, RowBuffer, Step};
use zillion_ps::TableAccess;
use zillion_ps::{LocalClient, Publishing, PulledRows, PushMode, Since, StepClient};
use zillion_registry::{Cache, Model, MoveKind, STABLE, VersionId, VersionManifest};
use zillion_rows::DEFAULT_SHARDS;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{Layer, LayerManifest, Unthrottled, difference};

use crate::criteo::Criteo;
use crate::embedding::BATCH_VALUES;
use zillion_console::{compute_pool, durable_files};

/// The number of dirty epochs for which changes are listed. It is larger than in a training run
/// because of the rollback over many versions.
const TRACKED: usize = 256;

/// A model that is trained and published.
pub(crate) struct Feed {
    model: Model,
    criteo: Criteo,
    client: LocalClient,
    workers: Arc<Workers>,
    files: Files,
    folder: PathBuf,
    rows: u64,
    step: u64,
    /// For each version, the dirty epoch that ended when the version was published.
    epochs: HashMap<VersionId, u32>,
    /// The parent of the next version, or `None` before the base has been published.
    parent: Option<VersionManifest>,
}

impl Feed {
    /// Creates a feed. Its table contains all ids from 0 to `rows - 1`.
    pub(crate) fn new(model: &Model, rows: u64, folder: &Path) -> Result<Self> {
        // This process uses only one thread, because the server needs the other processors.
        let workers = compute_pool(Some(NonZeroUsize::MIN))?;
        let criteo = Criteo::new(rows, &workers)?;
        let client = LocalClient::new(criteo.job.tables.clone(), DEFAULT_SHARDS, workers.clone())?;
        let mut feed = Self {
            model: model.clone(),
            criteo,
            client,
            workers,
            files: durable_files()?,
            folder: folder.join("feed"),
            rows,
            step: 0,
            epochs: HashMap::new(),
            parent: None,
        };
        feed.push(0..rows)?;
        feed.client.track_changes(TRACKED)?;
        Ok(feed)
    }

    /// Publishes all rows as a base, and moves the pointer to it.
    pub(crate) fn publish_base(&mut self) -> Result<VersionId> {
        self.publish(|feed, folder| {
            let layer = feed.client.write_layer(Since::Base, folder, &feed.files)?;
            layer.context("the tables wrote no base")
        })
    }

    /// Trains on `keys` random rows, publishes the changes since the parent as a delta, and moves
    /// the pointer to it.
    pub(crate) fn publish_delta(&mut self, keys: usize) -> Result<VersionId> {
        let (seed, rows) = (self.step, self.rows);
        self.push((0..keys as u64).map(|i| mix64(combine(seed, i)) % rows))?;
        // A training step also changes the dense parameters, so this step changes them too.
        for (_, values) in self.criteo.params.iter_mut() {
            for (at, value) in (0..).zip(values) {
                *value += 1e-4 * (unit_f32(mix64(combine(seed, at)) as u32) - 0.5);
            }
        }
        self.publish(Self::write_changes)
    }

    /// Sets the parent of the next version, even if other versions have been published after it.
    pub(crate) fn set_parent(&mut self, version: VersionId) -> Result<()> {
        self.parent = Some(self.model.version(version)?);
        Ok(())
    }

    fn publish(
        &mut self,
        write: impl FnOnce(&mut Self, &Path) -> Result<LayerManifest>,
    ) -> Result<VersionId> {
        let folder = self.folder.join("rows");
        self.files.create_dir(&folder)?;
        let layer = write(self, &folder)?;
        let epoch = self.client.end_dirty_epoch()?;
        let parent = self.parent.as_ref().map(VersionManifest::link);
        let mut rows = PulledRows::new(&mut self.client);
        let draft = self.criteo.draft(parent, layer, &folder, &mut rows, self.step)?;
        let version = self.model.publish(draft)?;
        self.files.remove_dir(&self.folder)?;
        let number = version.version;
        self.epochs.insert(number, epoch);
        self.parent = Some(version);
        self.model.promote(STABLE, number, MoveKind::Publish, "bench", None)?;
        Ok(number)
    }

    /// Writes the layer with the rows that changed since the parent, and returns its manifest.
    fn write_changes(&mut self, folder: &Path) -> Result<LayerManifest> {
        let parent = self.parent.as_ref().context("a delta needs a parent version")?.version;
        if let Some(&epoch) = self.epochs.get(&parent)
            && let Some(layer) =
                self.client.write_layer(Since::Epoch(epoch), folder, &self.files)?
        {
            return Ok(layer);
        }
        eprintln!("the changes since version {parent} are not listed any more; comparing all rows");
        let whole = self.folder.join("whole");
        self.files.create_dir(&whole)?;
        let all = self.client.write_layer(Since::Base, &whole, &self.files)?;
        let all = all.context("the tables wrote no base")?;
        let layouts = self.criteo.layouts();
        let new = Layer::open(whole.as_path(), &all, &layouts)?;
        let cache = self.folder.join("cache");
        let mut cache = Cache::open(&cache, self.model.name(), self.files.clone())?;
        let chain = cache.chain(&self.model, parent)?;
        let old = cache.rows(&self.model, &chain, &self.workers, &mut Unthrottled)?;
        let old: Vec<&Layer> = old.layers().iter().collect();
        Ok(difference(&self.files, folder, &layouts, &old, &new, &mut Unthrottled)?)
    }

    /// Trains on ids in several steps. Each id has a different gradient.
    fn push(&mut self, ids: impl Iterator<Item = u64>) -> Result<()> {
        let mut ids = ids.peekable();
        let stride = self.client.layouts()[0].stride;
        while ids.peek().is_some() {
            let keys: Vec<FeatureKey> =
                ids.by_ref().take(BATCH_VALUES).map(|id| FeatureKey::from_i64(id as i64)).collect();
            let plan = Arc::new(plan_of(&[keys]));
            let mut gradients = RowBuffer::default();
            gradients.reshape([(plan.tables[0].keys.len(), stride)].into_iter());
            self.step += 1;
            for (at, gradient) in (0..).zip(&mut gradients.tables[0].values) {
                *gradient = 0.02 * unit_f32(mix64(combine(self.step, at)) as u32) - 0.01;
            }
            self.client.begin_step(Step(self.step), Rates { scale: 1.0 })?;
            self.client.push(&plan, gradients, PushMode::Apply)?;
            self.client.sweep()?;
        }
        Ok(())
    }
}
