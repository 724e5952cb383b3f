//! The publisher of a run's versions, which writes them and moves the pointer.

mod compaction;
mod layers;
mod onnx_file;
mod repetition;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::{Clock, Files, Workers};
use zillion_feature::{Encoder, Schema, Statistics};
use zillion_nn::{Graph, Params, Settings};
use zillion_ps::Publishing;
use zillion_reader::{DataConfig, SideTables};
use zillion_registry::{
    Chain, Draft, Error as RegistryError, FrameDraft, Link, Model, MoveKind, NewFrame, Origin,
    PointerMove, STABLE, ScoreSettings, VersionFile, VersionId, VersionManifest, write_side,
};
use zillion_rows::TableSpec;
use zillion_scorer::{ParityRows, Scorer};

use super::RunId;
use super::branch::Branch;
use super::catalogue::Catalogue;
use super::collector::Collector;
use super::compactor::{Compactor, OpenModel};
use super::dense::{DenseCadence, Trained};
use super::earlier::Earlier;
use super::item_files::{ItemFiles, are_same};
use super::onnx::Scored;
use super::owner::name_run;
use super::parity::Parity;
use super::places::Places;
use super::published::{InputChange, Published};
use super::registry::open_registry;
use super::rounding::{check_rounding, warn_of_clamped};
use crate::error::{Error, Result};
use crate::job::{Job, PublishConfig};
use crate::trace_span::span;
use layers::Rows;
pub(crate) use repetition::Repeated;

/// The number of newest versions for which the tables track the later changes. After a rollback to
/// one of these versions, the next delta needs no comparison of all rows.
pub(crate) const REMEMBERED: usize = 16;

/// The name of the folder for the files of a version that is being made.
const FOLDER: &str = "publish";

/// The options of one publication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// Whether the version must be a base, even if a delta is possible.
    pub(crate) base: bool,
    /// Whether a command requests this version. The pointer then moves to the version, even if the
    /// pointer was moved after the version was published.
    pub(crate) is_command: bool,
    /// Whether the version has the dense parameters of the present state, whatever the job says
    /// about their cadence.
    pub(crate) new_dense: bool,
}

/// A publisher of the versions of a run.
pub(crate) struct Publisher {
    model: Model,
    config: PublishConfig,
    run: RunId,
    files: Files,
    folder: PathBuf,
    workers: Arc<Workers>,
    scorer: Scorer,
    encoder: Encoder,
    parity: Parity,
    /// The names of the scores of a parity row.
    tasks: Vec<String>,
    /// The items that versions can retrieve; absent: none.
    catalogue: Option<Catalogue>,
    item_files: ItemFiles,
    schema: Schema,
    tables: Vec<TableSpec>,
    /// The contents that are the same in all versions of this publisher.
    frame: Arc<NewFrame>,
    dense: DenseCadence,
    graph: Graph,
    /// The ONNX file that is the dense model of the next version, if versions have one.
    onnx: Option<Vec<u8>>,
    /// Whether the run repeats its log, so that a version that is there has the rows of the run.
    repeats_versions: bool,
    /// The versions that this publisher made, from the oldest to the newest, each with its last
    /// dirty epoch.
    known: Vec<(VersionId, u32)>,
    /// The versions of the run after the last publication, or `None` if they must be read.
    branch: Option<Branch>,
    /// The versions that a repetition of the log has not reached yet; absent before its first look.
    earlier: Option<Earlier>,
    /// The version that a run over streams has published or found last.
    newest: Option<Link>,
    /// The places where the run has published.
    places: Places,
    /// The removal of old versions, if the job asks for it.
    collector: Option<Collector>,
    /// The merges that make new bases; absent: a publication writes a base itself.
    compactor: Option<Compactor>,
}

/// The arguments of [`Publisher::open`].
pub(crate) struct Opening<'a> {
    pub(crate) job: &'a Job,
    pub(crate) config: &'a PublishConfig,
    pub(crate) run: RunId,
    pub(crate) run_folder: &'a Path,
    /// The version that the run had published or found last before the checkpoint from which it
    /// goes on, if that is known.
    pub(crate) newest: Option<Link>,
    pub(crate) statistics: &'a Statistics,
    pub(crate) sides: &'a SideTables,
    pub(crate) files: &'a Files,
    pub(crate) workers: &'a Arc<Workers>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the dense model of the versions is an ONNX file (see [`Publisher::set_onnx`]).
    pub(crate) has_onnx: bool,
    /// Whether new bases are made by merges beside the publications, which needs the room of the
    /// tables on the disk of the run.
    pub(crate) compacts: bool,
}

impl Publisher {
    /// Opens a publisher of a run's versions. Reads the parity rows, and does not change the
    /// registry.
    pub(crate) fn open(opening: Opening<'_>) -> Result<Self> {
        let open = model_opener(&opening);
        let Opening { job, config, run, run_folder, statistics, sides, files, workers, .. } =
            opening;
        let model = open()?;
        let collector = match Collector::of(config)? {
            Some(collector) => Some(collector.with_model(open()?)),
            None => None,
        };
        let compactor =
            opening.compacts.then(|| Compactor::new(open.clone(), run_folder, files.scratch()));
        let encoder =
            Encoder::new(&job.schema, statistics, sides.tables()).map_err(Error::Schema)?;
        // The parity rows of endless data are its newest rows.
        let parity = match job.has_parity_in_streams() {
            true => Parity::empty(),
            false => Parity::read(job, &encoder, config.parity_rows.get())?,
        };
        let train = &job.train;
        let (lanes, tile_rows) = (train.lanes.get(), train.tile_rows.get());
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let onnx = opening.has_onnx;
        let Scored { graph, scorer, tasks } = Scored::of(job, onnx, settings, workers)?;
        let catalogue = match &config.items {
            Some(items) => Some(Catalogue::open(job, items, &encoder, &graph, settings, workers)?),
            None => None,
        };
        let folder = run_folder.join(FOLDER);
        let written = sides.tables().iter().map(|side| write_side(&job.schema, side));
        let frame = NewFrame::new(FrameDraft {
            schema: job.schema.clone(),
            tables: job.tables.clone(),
            statistics: statistics.clone(),
            graph: graph.to_json()?,
            settings: ScoreSettings { lanes, tile_rows, dense: config.rounded_dense(), onnx },
            sides: written.collect::<Result<_, _>>()?,
        })?;
        Ok(Self {
            model,
            config: config.clone(),
            run,
            // Every file that is written here is copied into the registry, or can be made again.
            files: files.scratch(),
            folder,
            workers: workers.clone(),
            scorer,
            encoder,
            parity,
            tasks,
            catalogue,
            item_files: ItemFiles::default(),
            schema: job.schema.clone(),
            tables: job.tables.clone(),
            frame: Arc::new(frame),
            dense: DenseCadence::new(config.dense_every, graph.params.clone()),
            graph,
            onnx: None,
            repeats_versions: !job.streams.is_empty(),
            known: Vec::new(),
            branch: None,
            earlier: None,
            newest: opening.newest,
            places: Places::read(run_folder, files)?,
            collector,
            compactor,
        })
    }

    /// Takes the parity rows of further versions from the first rows of a file.
    pub(crate) fn use_parity_rows(&mut self, data: &DataConfig, file: &Path) -> Result<()> {
        let rows = self.config.parity_rows.get();
        self.parity = Parity::of_file(data, &self.schema, &self.encoder, file, rows)?;
        Ok(())
    }

    /// Scores the parity rows with the rows of tables and with dense parameters.
    pub(super) fn score_parity_rows(
        &mut self,
        rows: &mut dyn Publishing,
        params: &Params,
    ) -> Result<ParityRows> {
        self.parity.score(&mut self.scorer, &self.tables, rows.row_source()?.as_mut(), params)
    }

    /// Returns the names of the scores of a parity row, in order.
    pub(super) fn tasks(&self) -> &[String] {
        &self.tasks
    }

    /// Publishes the state of the step in `origin`, unless that step was published before. Moves
    /// the pointer to the version. The publisher sets the run and the dirty epoch of `origin`.
    pub(crate) fn publish(
        &mut self,
        origin: Origin,
        rows: &mut dyn Publishing,
        params: &Params,
        wish: Wish,
    ) -> Result<Published> {
        let _span = span!("publish", step = origin.step).entered();
        let trained = Trained::of(params, self.onnx.as_deref())?;
        let pointer = self.config.pointer().unwrap_or(STABLE).to_owned();
        // A publication that fails leaves no branch, so that the next one reads everything.
        let mut branch = Branch::open(self.branch.take(), &self.model, &self.run, &pointer)?;
        let is_of_streams = self.repeats_versions && !wish.is_command;
        if is_of_streams {
            self.check_owner_of(&mut branch)?;
        }
        let existing = self.find_existing(&mut branch, origin.step, rows, &trained, wish)?;
        if let Some(version) = existing {
            if self.repeats_versions {
                // The rows are those of the version, so the next delta has the changes since now.
                self.know(version.version, rows.end_dirty_epoch()?);
            }
            let moved = match wish.is_command {
                true => self.point_to(&version, branch.last_move())?,
                false => self.point_to_existing(&version)?,
            };
            if is_of_streams {
                self.note_published(&version);
            }
            let newest = branch.newest().filter(|_| wish.is_command);
            let inputs = InputChange::since(&self.model, newest, &version, &self.schema);
            return Ok(Published { inputs, ..self.finish(branch, version, moved, true) });
        }
        let chain = match wish.base {
            true => None,
            false => branch.chain_to_continue(&self.model, &self.run, &pointer)?,
        };
        let chain = self.choose_base(&mut branch, chain);
        let parent = chain.as_ref().map(Chain::versions);
        let newest = branch.newest();
        let outcome = self.publish_new(origin, rows, trained, (parent, newest), wish);
        // The files are in the registry now, or will be made again.
        let cleared = self.clear();
        let version = Arc::new(outcome?);
        cleared?;
        // The version is a base if the changes since the parent were not known.
        branch.push(chain.filter(|_| !version.is_base()), version.clone());
        let moved = self.point_to(&version, branch.last_move())?;
        self.count_publication(version.clone());
        if is_of_streams {
            self.note_published(&version);
        }
        let inputs = InputChange::since(&self.model, newest, &version, &self.schema);
        Ok(Published { inputs, ..self.finish(branch, version, moved, false) })
    }

    /// Keeps the branch for the next publication, and returns the outcome of this one.
    fn finish(
        &mut self,
        mut branch: Branch,
        version: Arc<VersionManifest>,
        moved: Option<PointerMove>,
        was_there: bool,
    ) -> Published {
        if let Some(moved) = &moved {
            branch.record_move(moved);
        }
        let deltas = branch.count_deltas();
        self.branch = Some(branch);
        self.describe(version, moved, was_there, deltas)
    }

    fn describe(
        &self,
        version: Arc<VersionManifest>,
        moved: Option<PointerMove>,
        was_there: bool,
        deltas: Option<u64>,
    ) -> Published {
        let store = self.model.store().stats().sums();
        let compactions = self.compactor.as_ref().map(|compactor| compactor.counts);
        let compactions = compactions.unwrap_or_default();
        Published { version, moved, was_there, store, inputs: None, deltas, compactions }
    }

    /// Finds the version of a step that was published from the present state. Returns `None` if
    /// there is none.
    fn find_existing(
        &mut self,
        branch: &mut Branch,
        step: u64,
        rows: &mut dyn Publishing,
        trained: &Trained<'_>,
        wish: Wish,
    ) -> Result<Option<Arc<VersionManifest>>> {
        for version in branch.of_step(&self.model, step)? {
            if self.is_of_state(&version, rows, trained, wish)?
                && self.model.check_files(version.version).is_ok()
            {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Returns whether a version of the present step was published from the present state.
    fn is_of_state(
        &mut self,
        version: &VersionManifest,
        rows: &mut dyn Publishing,
        trained: &Trained<'_>,
        wish: Wish,
    ) -> Result<bool> {
        // Runs that begin from the same checkpoint share a run id and step numbers. Their weights
        // differ.
        let later = version.origin.later_dense.as_ref();
        let is_trained = match later {
            None => version.dense == trained.file,
            Some(hash) => *hash == trained.file.blake3 && !wish.new_dense,
        };
        if !is_trained || (wish.base && !version.is_base()) {
            return Ok(false);
        }
        let Self { parity, scorer, dense, model, tables, catalogue, config, .. } = self;
        if version.items.is_some() != catalogue.is_some()
            || version.frame.settings.dense != config.rounded_dense()
        {
            return Ok(false);
        }
        let params = match later {
            None => trained.params,
            Some(_) => dense.params(model, &version.dense)?,
        };
        let mut source = rows.row_source()?;
        let parity = parity.score(scorer, tables, source.as_mut(), params)?.to_json();
        if version.parity != VersionFile::of("json", &parity) {
            return Ok(false);
        }
        // A run that repeats its log finds its version, even if the file of the items has changed
        // since. A command publishes the items of now.
        match (catalogue, &version.items) {
            (Some(catalogue), Some(items)) if wish.is_command => {
                let now = catalogue.compute(tables, source.as_mut(), params)?;
                are_same(model, items, &now)
            }
            _ => Ok(true),
        }
    }

    /// Writes a version that continues `chain`, or a base if there is none. `newest` is the newest
    /// version of any run, if one is known.
    fn publish_new(
        &mut self,
        origin: Origin,
        rows: &mut dyn Publishing,
        trained: Trained<'_>,
        (chain, newest): (Option<&[Arc<VersionManifest>]>, Option<VersionId>),
        wish: Wish,
    ) -> Result<VersionManifest> {
        self.clear()?;
        self.files.create_dir(self.layer_folder())?;
        let Rows { layer, folder, is_base } = self.rows(chain, rows)?;
        warn_of_clamped(&layer);
        let chain = chain.filter(|_| !is_base);
        let parent = chain.and_then(|chain| chain.last());
        // The version is scored with the parameters that it will have.
        let Self { parity, scorer, dense, model, tables, catalogue, item_files, .. } = self;
        let (config, tasks) = (&self.config, &self.tasks);
        let older = parent.filter(|_| !wish.new_dense && !dense.is_due(chain));
        let params = match older {
            None => trained.params,
            Some(parent) => dense.params(model, &parent.dense)?,
        };
        let exact = parity.score(scorer, tables, rows.row_source()?.as_mut(), params)?;
        if !config.dense.is_exact() {
            scorer.set_packed(Some(scorer.pack(config.dense, params, &mut || ())));
            let rounded = parity.score(scorer, tables, rows.row_source()?.as_mut(), params);
            scorer.set_packed(None);
            check_rounding(config.dense, tasks, &exact, &rounded?)?;
        }
        let parity = exact.to_json();
        let items = match catalogue {
            Some(catalogue) => {
                let items = catalogue.compute(tables, rows.row_source()?.as_mut(), params)?;
                Some(item_files.draft(model, chain, items)?)
            }
            None => None,
        };
        let later_dense = older.filter(|parent| parent.dense != trained.file);
        let later_dense = later_dense.map(|_| trained.file.blake3.clone());
        let epoch = rows.end_dirty_epoch()?;
        let is_new = older.is_none();
        let draft = Draft {
            parent: parent.map(|parent| parent.link()),
            frame: self.frame.clone(),
            layer,
            folder,
            dense: is_new.then_some(trained.bytes),
            parity,
            items,
            origin: Origin { run: self.run.0.clone(), dirty_epoch: epoch, later_dense, ..origin },
        };
        if let (Some(link), None) = (&draft.parent, self.config.pointer()) {
            self.model.check_usable(link.version)?;
        }
        let version = self.model.publish_after(newest, draft)?;
        if is_new {
            self.dense.keep(trained.file, trained.params);
        }
        self.know(version.version, epoch);
        Ok(version)
    }

    /// Remembers the last dirty epoch of a version of this run.
    fn know(&mut self, version: VersionId, epoch: u32) {
        self.known.push((version, epoch));
        let surplus = self.known.len().saturating_sub(REMEMBERED);
        self.known.drain(..surplus);
    }

    /// Moves the pointer to a version that this run published earlier, because the run may have
    /// been killed before the move. If the pointer has been moved since the publication, it is not
    /// changed.
    fn point_to_existing(&self, version: &VersionManifest) -> Result<Option<PointerMove>> {
        let Some(pointer) = self.config.pointer() else { return Ok(None) };
        match self.model.pointer(pointer) {
            Ok(last) if last.at_ms >= version.published_ms => Ok(None),
            Ok(last) => {
                if self.repeats_versions {
                    self.check_pointer()?;
                }
                self.point_to(version, Some(&last))
            }
            Err(RegistryError::NoPointer { .. }) => self.point_to(version, None),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves the pointer to a version, given that `known` was a move of it.
    fn point_to(
        &self,
        version: &VersionManifest,
        known: Option<&PointerMove>,
    ) -> Result<Option<PointerMove>> {
        let Some(pointer) = self.config.pointer() else { return Ok(None) };
        let by = name_run(&self.run);
        let (id, kind) = (version.version, MoveKind::Publish);
        Ok(Some(self.model.promote_after(known, pointer, id, kind, &by, None)?))
    }

    /// Returns the folder for the files of the version's layer.
    fn layer_folder(&self) -> PathBuf {
        self.folder.join("rows")
    }

    fn clear(&self) -> Result<()> {
        if self.folder.exists() {
            self.files.remove_dir(&self.folder)?;
        }
        Ok(())
    }
}

/// Returns a function that opens the model of a publisher, each time in a store of its own.
fn model_opener(opening: &Opening<'_>) -> OpenModel {
    let (config, files) = (opening.config.clone(), opening.files.clone());
    let clock = opening.clock.clone();
    let name = config.model.clone().unwrap_or_else(|| opening.job.name.clone());
    Arc::new(move || Ok(open_registry(&config, &files, clock.clone())?.model(&name)?))
}

#[cfg(test)]
mod tests;
