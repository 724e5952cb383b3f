//! The loaded version of a model, which computes scores from raw rows. Loading verifies the parity
//! rows of the version.

mod dense;
mod engine;
mod joined;

use std::sync::Arc;
use std::time::Instant;

use zillion_device::{Workers, mmap};
use zillion_feature::{Batch, Encoder, LabelKind, LookupPlan, RawColumns, Schema};
use zillion_nn::zoo::LOGITS;
use zillion_nn::{Cost, DenseType, Graph, PackedParams, Params};
use zillion_registry::{Cache, Model, VersionFile, VersionId, VersionManifest};
use zillion_rows::layer::{Layer, LayerFile, LayerSource, Throttle};

pub use self::dense::published_dense;
use self::dense::{check_onnx, choose_dense, read_dense};
use self::engine::{Engine, is_same_engine};
use crate::damage::DamageWatch;
use crate::device::ScoringDevice;
use crate::device::engine::DeviceVersion;
use crate::device::merged::Prepared;
use crate::error::{Error, Result};
use crate::items::{LoadedItems, load_items};
use crate::late::{LateCheck, check_time};
use crate::nearest::Choice;
use crate::onnx::OnnxModel;
use crate::parity::ParityRows;
use crate::retrieval::{Retrievable, Retrieved};
use crate::scratch::{Scratch, request_size};
use crate::warm::warm;

/// A loaded version. Several threads can compute scores with it at the same time.
#[derive(Debug)]
pub struct Servable {
    manifest: Arc<VersionManifest>,
    engine: Arc<Engine>,
    rows: LayerSource,
    params: Arc<Params>,
    /// The version on the device that computes its scores; `None` on processors.
    on_device: Option<Arc<DeviceVersion>>,
    /// The weights of `params` in the layout that products read.
    packed: Arc<PackedParams>,
    /// The ONNX model that computes the scores from the outputs of the graph, if there is one.
    onnx: Option<Arc<OnnxModel>>,
    retrievable: Option<Arc<Retrievable>>,
    warmed_rows: u64,
    watch: DamageWatch,
}

/// The scores of the rows of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowScores {
    /// The log odds of each task, in the order of [`Servable::tasks`].
    pub logits: Vec<Vec<f32>>,
    /// The number of unique keys that have no row. They are scored as unknown keys.
    pub missing: u64,
    /// The number of keys of rows that a side table does not contain, summed over all side tables.
    pub missing_side_rows: u64,
}

impl Servable {
    /// Loads a version as [`Servable::load_as`] does, and computes dense layers in f32, as training
    /// does.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Servable::load_as`].
    pub fn load<'a>(
        model: &Model,
        version: VersionId,
        others: impl IntoIterator<Item = &'a Self>,
        cache: &mut Cache,
        workers: &Arc<Workers>,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        Self::load_as(Some(DenseType::F32), model, version, others, cache, workers, pace)
    }

    /// Loads a version: verifies its chain of files, fetches the files into the cache, maps its
    /// rows, and replays its parity rows. `dense` is the number type in which the version computes
    /// dense layers; without one, the version chooses it. The vectors of users for retrieval are
    /// computed in f32. `others` are versions that are already loaded. If a part of the new version
    /// equals a part of one of them, both versions share it.
    ///
    /// # Errors
    /// Returns an error for the first part of the version that is missing or damaged, or for the
    /// first parity row with a score that differs from the trainer's score by more than the number
    /// type allows.
    pub fn load_as<'a>(
        dense: Option<DenseType>,
        model: &Model,
        version: VersionId,
        others: impl IntoIterator<Item = &'a Self>,
        cache: &mut Cache,
        workers: &Arc<Workers>,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        Self::load_on(None, dense, model, version, others, cache, workers, pace)
    }

    /// Loads a version as [`Servable::load_as`] does. With a `device`, the device computes the
    /// scores, in f32 alone, and the parity rows are replayed there. The vectors of users for
    /// retrieval are computed on processors.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Servable::load_as`], an error if dense layers are
    /// not in f32, and the errors of the device.
    #[expect(clippy::too_many_arguments, reason = "the parts of a server that a version needs")]
    pub fn load_on<'a>(
        device: Option<&Arc<ScoringDevice>>,
        dense: Option<DenseType>,
        model: &Model,
        version: VersionId,
        others: impl IntoIterator<Item = &'a Self>,
        cache: &mut Cache,
        workers: &Arc<Workers>,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        if let Some(dense) = dense.filter(|dense| device.is_some() && !dense.is_exact()) {
            return Err(Error::Refused(format!(
                "version {version} is not loaded, because a device computes dense layers in f32 \
                 alone, not in {dense}; set `dense` to \"f32\", or serve it on processors"
            )));
        }
        let faults = mmap::faults();
        let chain = cache.chain(model, version)?;
        if let Some(manifest) = chain.last() {
            check_onnx(manifest, device.is_some(), dense)?;
        }
        pace.piece();
        let rows = cache.rows(model, &chain, workers, pace)?;
        let manifest = chain.last().cloned();
        let manifest = manifest.expect("a chain has at least the version itself in it");
        let dense = match dense {
            Some(dense) => dense,
            // A device computes f32 alone, which is exact for every version.
            None if device.is_some() => DenseType::F32,
            None => choose_dense(&manifest)?,
        };
        let others: Vec<&Self> =
            others.into_iter().filter(|o| is_same_engine(&o.manifest, &manifest)).collect();
        let same = others.first();
        let engine = match same {
            Some(other) => other.engine.clone(),
            None => Arc::new(Engine::load(model, device, &manifest, cache, workers, pace)?),
        };
        let bytes = read(model, &manifest.dense, cache, pace)?;
        let (params, onnx) = read_dense(&engine, &manifest, &bytes, pace)?;
        pace.piece();
        let packed = engine.pack(dense, &params, pace)?;
        let parity = ParityRows::from_json(&read(model, &manifest.parity, cache, pace)?)?;
        pace.piece();
        let same_items = others.iter().find(|o| o.manifest.items == manifest.items);
        let retrievable = match (&manifest.items, same_items) {
            (None, _) => None,
            // Versions whose items have not changed share their vectors.
            (Some(_), Some(other)) => other.retrievable.clone(),
            (Some(file), None) => {
                let loaded: Vec<LoadedItems<'_>> =
                    others.iter().filter_map(|o| o.items()).collect();
                let mut read =
                    |file: &VersionFile, pace: &mut dyn Throttle| read(model, file, cache, pace);
                let items = load_items(file, &chain, &loaded, &mut read, pace)?;
                let (encoder, scorer) = (&engine.encoder, engine.user_scorer()?);
                Some(Arc::new(Retrievable::new(items, encoder, scorer, pace)?))
            }
        };
        let watch = DamageWatch::new();
        let known: Vec<Layer> = others.iter().flat_map(|o| o.rows.layers().to_vec()).collect();
        let warmed_rows = warm(&rows, &known, pace)?;
        let on_device = match &engine.on_device {
            Some(on_device) => {
                Some(Arc::new(on_device.load(params.clone(), rows.clone(), pace)?))
            }
            None => None,
        };
        let servable = Self {
            manifest,
            engine,
            rows,
            params,
            on_device,
            packed,
            onnx,
            retrievable,
            warmed_rows,
            watch,
        };
        let score = |row: &RawColumns<'_>| Ok(servable.score(1, row)?.logits);
        parity.replay(version, servable.tasks(), dense, score, pace)?;
        // Small files are mapped only while they are read here, so a fault of another version looks
        // like a fault of these files. The load is then refused, and is tried again.
        if mmap::faults() != faults {
            return Err(Error::Damaged { version });
        }
        Ok(servable)
    }

    /// Returns the manifest of the version.
    pub fn manifest(&self) -> &VersionManifest {
        &self.manifest
    }

    /// Returns the id of the version.
    pub fn version(&self) -> VersionId {
        self.manifest.version
    }

    /// Returns the encoder that makes batches from raw rows.
    pub fn encoder(&self) -> &Encoder {
        &self.engine.encoder
    }

    /// Returns the dense parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the number type in which dense layers are computed.
    pub fn dense(&self) -> DenseType {
        self.packed.dense()
    }

    /// Returns the number of bytes of the packed weights, which the version has beside its
    /// parameters.
    pub fn packed_bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// Returns the source from which scoring reads the embedding rows.
    pub fn rows(&self) -> &LayerSource {
        &self.rows
    }

    /// Returns the number of rows of hot keys that were read while the version was loaded.
    pub fn warmed_rows(&self) -> u64 {
        self.warmed_rows
    }

    /// Returns whether a mapped file of the rows has lost pages. The version then computes no more
    /// scores and must be loaded again from whole files.
    pub fn is_damaged(&self) -> bool {
        self.watch.is_damaged(&self.rows)
    }

    /// Returns the names of the scores, in the order of [`RowScores::logits`]. They are the names
    /// of the graph's tasks, and the first one is the name of the first label. A retrieval model
    /// without labels has a single score with the name `score`, which is not a probability.
    pub fn tasks(&self) -> &[String] {
        &self.engine.tasks
    }

    /// Returns whether the scores are compared with labels, so that they have predictions. The
    /// scores of a retrieval model without labels have none.
    pub fn has_predictions(&self) -> bool {
        !self.encoder().schema().labels.is_empty()
    }

    /// Returns whether the first label has probabilities: of 1, or of its classes.
    pub fn has_probabilities(&self) -> bool {
        self.has_predictions() && !self.kind_of_task(0).is_number()
    }

    /// Returns the names of the classes, if the label has classes. Their scores are the tasks.
    pub fn classes(&self) -> Option<Vec<String>> {
        let labels = &self.encoder().schema().labels;
        labels.iter().find_map(|label| Some(label.classes.as_ref()?.names()))
    }

    /// Returns the kind of the label of a task, which decides what a score predicts.
    pub fn kind_of_task(&self, task: usize) -> LabelKind {
        let name = self.tasks().get(task);
        let labels = &self.encoder().schema().labels;
        if let Some(label) = labels.iter().find(|label| label.kind == LabelKind::Class) {
            // Such a label is the only one.
            return label.kind;
        }
        let label = labels.iter().find(|label| Some(&label.name) == name);
        // The tasks of a model that have no label of their own name are probabilities.
        label.map(|label| label.kind).unwrap_or_default()
    }

    /// Computes the scores of `rows` raw rows.
    ///
    /// # Errors
    /// Returns an error if an input does not fit the model, or if the model cannot be computed.
    pub fn score(&self, rows: usize, columns: &RawColumns<'_>) -> Result<RowScores> {
        self.score_unless(rows, columns, None)
    }

    /// Scores raw rows, and stops when `is_late` returns `true`. The check is made between the
    /// stages, which are the encoding, the plan, the lookup and the model, and before each tile of
    /// rows.
    ///
    /// # Errors
    /// Returns [`Error::Late`] if the work was stopped. Returns an error if an input does not fit
    /// the model, or if the model cannot be computed.
    pub fn score_unless(
        &self,
        rows: usize,
        columns: &RawColumns<'_>,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<RowScores> {
        check_time(is_late)?;
        self.score_encoded(&self.encoder().encode(rows, columns)?, is_late)
    }

    /// Computes the scores of a batch that [`Servable::encoder`] has made.
    ///
    /// # Errors
    /// Returns an error if the model cannot be computed.
    pub fn score_batch(&self, batch: &Batch) -> Result<RowScores> {
        self.score_encoded(batch, None)
    }

    /// Scores a batch that [`Servable::encoder`] has made, and stops when `is_late` returns `true`,
    /// as in [`Servable::score_unless`].
    ///
    /// # Errors
    /// Returns [`Error::Late`] if the work was stopped, and another error if the model cannot be
    /// computed.
    pub fn score_batch_unless(&self, batch: &Batch, is_late: LateCheck<'_>) -> Result<RowScores> {
        self.score_encoded(batch, Some(is_late))
    }

    /// Returns the cost of the dense model for a batch. What is computed once for all rows is
    /// counted once.
    ///
    /// # Errors
    /// Returns an error if the model cannot be planned.
    pub fn cost(&self, batch: &Batch) -> Result<Cost> {
        let cost = self.engine.programs.cost(batch)?;
        let further = self.onnx.as_ref().map_or(0, |onnx| onnx.flops(batch.rows));
        Ok(Cost { flops: cost.flops.saturating_add(further), ..cost })
    }

    /// Returns the items that the version can retrieve, or `None` if it has none.
    pub fn retrievable(&self) -> Option<&Retrievable> {
        self.retrievable.as_deref()
    }

    /// Returns the items of the version with their file.
    fn items(&self) -> Option<LoadedItems<'_>> {
        Some((self.manifest.items.as_ref()?, self.retrievable.as_ref()?.items()))
    }

    /// Returns the items with the highest scores for a user, the best first. `columns` has one row
    /// with the inputs of the user's tower, `k` is the largest number of items, `exact` asks for an
    /// exact or an approximate search, or leaves the choice to the number of items, and `choice`
    /// says which items may be returned. The search stops when `is_late` returns `true`.
    ///
    /// # Errors
    /// Returns [`Error::NoItems`] if the version has no items, [`Error::Late`] if the work was
    /// stopped, and another error if an input does not fit the model or if the model cannot be
    /// computed.
    pub fn retrieve(
        &self,
        columns: &RawColumns<'_>,
        k: usize,
        exact: Option<bool>,
        choice: Choice,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<Retrieved> {
        let Some(retrievable) = &self.retrievable else {
            return Err(Error::NoItems { version: self.version() });
        };
        check_time(is_late)?;
        let batch = retrievable.encode(columns)?;
        let mut scratch = match retrievable.take_scratch() {
            Some(scratch) => scratch,
            None => Scratch::new(self.engine.user_scorer()?),
        };
        let Scratch { scorer, plan, .. } = &mut scratch;
        let lookups = LookupPlan::for_scoring(&batch, self.encoder().schema(), plan);
        let mut rows = self.rows.clone();
        let scores = scorer.score_unless(&batch, &lookups, &mut rows, &self.params, is_late);
        let user = scores.map(|scores| scores.outputs.first().map_or(Vec::new(), |v| v.to_vec()));
        retrievable.put_scratch(scratch, &batch);
        if self.is_damaged() {
            return Err(Error::Damaged { version: self.version() });
        }
        let workers = &self.engine.workers;
        let (found, is_exact) = retrievable.find(&user?, k, exact, choice, workers, is_late)?;
        Ok(Retrieved { found, missing_side_rows: batch.side_missing.iter().sum(), is_exact })
    }

    /// Releases the memory of buffers that recent requests did not need, and looks whether the
    /// device has failed. On processors, every request releases memory too, so a server needs to
    /// call this function only while it gets no requests.
    pub fn release_idle(&self) {
        let now = Instant::now();
        self.engine.scratches.release_idle(now);
        if let Some(on_device) = &self.on_device {
            on_device.release_idle(now);
        }
        if let Some(retrievable) = &self.retrievable {
            retrievable.release_idle();
        }
    }

    fn score_encoded(&self, batch: &Batch, is_late: Option<LateCheck<'_>>) -> Result<RowScores> {
        check_time(is_late)?;
        let mut scratch = self.engine.take_scratch()?;
        let scores = self.score_with(&mut scratch, batch, is_late);
        self.engine.scratches.put(scratch, request_size(batch), Instant::now());
        scores
    }

    fn score_with(
        &self,
        scratch: &mut Scratch,
        batch: &Batch,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<RowScores> {
        let Scratch { scorer, plan, .. } = scratch;
        let lookups = LookupPlan::for_scoring(batch, self.encoder().schema(), plan);
        if let Some(version) = &self.on_device {
            let request = Prepared::new(batch, &lookups, version.strides())?;
            let scores = version.score(request, is_late);
            if self.is_damaged() {
                return Err(Error::Damaged { version: self.version() });
            }
            let scores = scores?;
            return Ok(RowScores {
                logits: scores.outputs,
                missing: scores.missing,
                missing_side_rows: batch.side_missing.iter().sum(),
            });
        }
        let mut rows = self.rows.clone();
        scorer.set_packed(Some(self.packed.clone()));
        scorer.set_onnx(self.onnx.clone());
        let scores = scorer.score_unless(batch, &lookups, &mut rows, &self.params, is_late);
        if self.is_damaged() {
            return Err(Error::Damaged { version: self.version() });
        }
        let scores = scores?;
        Ok(RowScores {
            logits: scores.outputs.iter().map(|logits| logits.to_vec()).collect(),
            missing: scores.missing,
            missing_side_rows: batch.side_missing.iter().sum(),
        })
    }
}

fn read(
    model: &Model,
    file: &VersionFile,
    cache: &Cache,
    pace: &mut dyn Throttle,
) -> Result<bytes::Bytes> {
    let described = LayerFile { blake3: file.blake3.clone(), bytes: file.bytes };
    Ok(cache.read(model, &file.name(), &described, pace)?)
}

/// Returns the names of a graph's scores.
pub fn task_names(graph: &Graph, schema: &Schema) -> Vec<String> {
    let first = schema.labels.first().and_then(|label| label.task_names().into_iter().next());
    let first = first.unwrap_or_else(|| "score".to_owned());
    let task = |(name, _): &(String, _)| match name.strip_prefix(LOGITS)? {
        "" => Some(first.clone()),
        rest => rest.strip_prefix('/').map(str::to_owned),
    };
    graph.outputs.iter().filter_map(task).collect()
}
