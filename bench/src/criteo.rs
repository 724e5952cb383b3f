//! A model with the shape of Criteo's data, and requests for its scores, for the benchmarks of
//! serving. The model is published as versions without training.
//!
//! The system with which Zillion is compared (the peer, see docs/BENCHMARKS.md) uses the same
//! model: 26 ids that share one table with 16 + 1 floats in each row, 13 numbers, and an MLP with
//! layers of 400, 400 and 400, if the model is a DeepFM. The values of the weights do not influence
//! the time. The places of the rows influence the time, so the rows must be scattered over the
//! table.

mod requests;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use toml::Table;
use zillion_device::Workers;
use zillion_feature::random::{combine, mix64, unit_f32};
use zillion_feature::{
    Batch, Encoder, FeatureKey, LookupPlan, PlanScratch, RawColumns, Statistics,
};
use zillion_nn::{Mode, Params, Settings};
use zillion_registry::{
    Draft, FrameDraft, Link, Model, MoveKind, NewFrame, Origin, STABLE, ScoreSettings,
    VersionManifest,
};
use zillion_rows::layer::{
    Layer, LayerManifest, LayerSource, LayerWriter, Unthrottled, part_count,
};
use zillion_rows::{RowSource, TableLayout, TableSpec};
use zillion_scorer::{ParityRows, Scorer};
use zillion_trainer::Job;

use crate::args::ServeModel;
use crate::load::bodies::row_of;
pub(crate) use requests::{Requests, UserPart};
use zillion_console::{create_registry, durable_files};

/// The name of the model in the registry of a benchmark.
pub const MODEL: &str = "bench";

const IDS: usize = 26;
/// The name of the feature with the user's history, in a model that has one.
const HISTORY: &str = "H";
const NUMBERS: usize = 13;
/// The number of floats in a row: 16 for the vector and one for the linear weight.
const WIDTH: usize = 17;
const SEED: u64 = 1;
/// The number of parity rows of a version.
const PARITY: usize = 64;

/// The form of the model of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// The kind of the model.
    pub(crate) model: ServeModel,
    /// The number of ids in the history of a parity row. With 0, the model has no history.
    pub(crate) history: usize,
}

impl Form {
    /// A DeepFM without a history.
    pub(crate) const USUAL: Self = Self { model: ServeModel::Deepfm, history: 0 };
}

/// The parts of a version other than its rows.
pub(crate) struct Criteo {
    /// The job of the model. It has one table for all ids.
    pub(crate) job: Job,
    graph: Vec<u8>,
    settings: ScoreSettings,
    /// The dense parameters of the next version.
    pub(crate) params: Params,
    statistics: Statistics,
    scorer: Scorer,
    parity: RawColumns<'static>,
    /// The parity rows. Each row is a separate batch, because a server also replays each row
    /// separately.
    parity_rows: Vec<(Batch, LookupPlan)>,
}

impl Criteo {
    /// Returns the model for a table of `rows` rows.
    pub(crate) fn new(rows: u64, workers: &Arc<Workers>) -> Result<Self> {
        Self::of_form(rows, workers, Form::USUAL)
    }

    /// Returns a model of this form for a table of `rows` rows.
    fn of_form(rows: u64, workers: &Arc<Workers>, form: Form) -> Result<Self> {
        let history = form.history;
        let job = job(form).parse::<Table>().context("the job of the benchmark is not valid")?;
        let job = Job::from_value(job.into())?;
        let graph = job.graph(Mode::Infer)?;
        let params = Params::init(&graph.params, SEED);
        let (lanes, tile_rows) = (job.train.lanes.get(), job.train.tile_rows.get());
        let scorer = Scorer::new(
            &graph,
            Settings { lanes, tile_rows, ..Settings::default() },
            workers.clone(),
        )?;
        let statistics = Statistics::default();
        let encoder = Encoder::new(&job.schema, &statistics, &[])?;
        let mut parity = Requests::new(rows, PARITY, 1).get(0).clone();
        if history > 0 {
            parity.insert(HISTORY.into(), requests::history(rows, PARITY, history, 0));
        }
        let mut parity_rows = Vec::with_capacity(PARITY);
        let mut scratch = PlanScratch::default();
        for row in 0..PARITY {
            let one = parity.iter().map(|(name, column)| (name.clone(), row_of(column, row)));
            let batch = encoder.encode(1, &one.collect())?;
            let plan = LookupPlan::build(&batch, &job.schema, &mut scratch);
            parity_rows.push((batch, plan));
        }
        Ok(Self {
            graph: graph.to_json()?,
            settings: ScoreSettings { lanes, tile_rows, dense: None, onnx: false },
            job,
            params,
            statistics,
            scorer,
            parity,
            parity_rows,
        })
    }

    /// Returns the row layouts of the tables.
    pub(crate) fn layouts(&self) -> Vec<TableLayout> {
        self.job.tables.iter().map(TableSpec::layout).collect()
    }

    /// Returns the draft of a version with the layer `layer`. The files of the layer are in
    /// `folder`. `rows` returns all rows of the version.
    pub(crate) fn draft(
        &mut self,
        parent: Option<Link>,
        layer: LayerManifest,
        folder: &Path,
        rows: &mut dyn RowSource,
        step: u64,
    ) -> Result<Draft> {
        let logits = self.scorer.score_each(&self.parity_rows, rows, &self.params)?;
        let frame = NewFrame::new(FrameDraft {
            schema: self.job.schema.clone(),
            tables: self.job.tables.clone(),
            statistics: self.statistics.clone(),
            graph: self.graph.clone(),
            settings: self.settings,
            sides: Vec::new(),
        })?;
        Ok(Draft {
            parent,
            frame: Arc::new(frame),
            layer,
            folder: Some(folder.to_owned()),
            dense: Some(self.params.to_safetensors()?),
            parity: ParityRows::new(PARITY, &self.parity, logits).to_json(),
            items: None,
            origin: Origin { run: "bench".to_owned(), step, ..Origin::default() },
        })
    }
}

/// Opens the model of the benchmarks in the registry at this folder. Creates the registry if it
/// does not exist.
pub(crate) fn open_model(registry: &Path) -> Result<Model> {
    Ok(create_registry(&registry.display().to_string())?.model(MODEL)?)
}

/// Publishes a base with `rows` random rows, and moves the pointer to it. Temporary files are
/// written to a subfolder of `folder` and removed afterwards.
pub(crate) fn publish(
    model: &Model,
    rows: u64,
    folder: &Path,
    workers: &Arc<Workers>,
) -> Result<VersionManifest> {
    publish_form(model, rows, folder, workers, Form::USUAL)
}

/// Does what [`publish`] does, for a model of this form.
pub(crate) fn publish_form(
    model: &Model,
    rows: u64,
    folder: &Path,
    workers: &Arc<Workers>,
    form: Form,
) -> Result<VersionManifest> {
    let mut criteo = Criteo::of_form(rows, workers, form)?;
    let layouts = criteo.layouts();
    let files = durable_files()?;
    let folder = folder.join("rows");
    files.create_dir(&folder)?;
    let layer = random_rows(rows, &layouts[0], &folder)?;
    let opened = Layer::open(folder.as_path(), &layer, &layouts)?;
    let mut source = LayerSource::new(&criteo.job.tables, vec![opened], workers.clone())?;
    let draft = criteo.draft(None, layer, &folder, &mut source, 0)?;
    let version = model.publish(draft)?;
    drop(source);
    files.remove_dir(&folder)?;
    model.promote(STABLE, version.version, MoveKind::Publish, "bench", None)?;
    Ok(version)
}

/// Writes a layer with a random row for each id from 0 to `rows - 1`, in the order of the keys.
fn random_rows(rows: u64, layout: &TableLayout, folder: &Path) -> Result<LayerManifest> {
    let files = durable_files()?;
    let mut keys: Vec<u64> = (0..rows as i64).map(|id| FeatureKey::from_i64(id).0).collect();
    keys.sort_unstable();
    let mut pace = Unthrottled;
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(layout, part_count(rows, WIDTH))?;
    let mut row = [0.0; WIDTH];
    for key in keys {
        for (at, weight) in (0..).zip(&mut row) {
            *weight = 0.02 * unit_f32(mix64(combine(key, at)) as u32) - 0.01;
        }
        writer.push(FeatureKey(key), Some(&row), 1)?;
    }
    Ok(writer.finish()?)
}

fn job(form: Form) -> String {
    let mut job = String::from(
        r#"
        name = "bench"
        seed = 1
        [data]
        train = ["unused.parquet"]
        [labels.click]
        [columns]
        event_time = "time"
        event_time_unit = "ms"
        [tables.ids]
        dim = 16
        [model]
        "#,
    );
    job.push_str(match form.model {
        ServeModel::Deepfm => "kind = 'deepfm'\nbias = true\nhidden = [400, 400, 400]\n",
        ServeModel::Dcnv2 => {
            "kind = 'dcnv2'\nstructure = 'parallel'\ncross_layers = 3\nhidden = [512, 256, 128]\n"
        }
        ServeModel::Din => "kind = 'din'\nattention = [{ query = 'C26', history = 'H' }]\n",
    });
    for i in 1..=NUMBERS {
        let _ = writeln!(job, "[features.I{i}]\nkind = 'numeric'");
    }
    if form.history > 0 {
        let kind = if form.model == ServeModel::Din { "sequence" } else { "ids" };
        let _ = writeln!(job, "[features.{HISTORY}]\nkind = '{kind}'\ntable = 'ids'");
    }
    for i in 1..=IDS {
        let _ = writeln!(job, "[features.C{i}]\nkind = 'id'\ntable = 'ids'");
    }
    job
}
