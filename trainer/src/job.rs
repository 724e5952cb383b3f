//! A job: the settings that decide what a training run computes, and where it runs.
//!
//! Each section belongs to the crate that uses it; this module only puts them together. The `[run]`
//! section (threads, shards, folders) and the `[ps]` section (servers) do not change the result, so
//! a checkpoint does not store them.

mod device;
mod eval;
mod event_time;
mod fake_quantize;
mod file_keys;
mod graph;
mod identity;
mod join;
mod learning;
mod mode;
mod online;
mod pinned;
mod printing;
mod pruning;
mod ps;
mod publish;
mod run;
#[cfg(test)]
mod smallest;
mod spill;
mod tables;
mod tune;
mod wire;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Value;
use zillion_config::ConfigError;
use zillion_embedding::check_shared_limit;
use zillion_feature::{Schema, TableId, random};
use zillion_nn::optim::{AverageSpec, DenseOptimizerSpec, PlateauSpec, ScheduleSpec};
use zillion_nn::zoo::{self, ModelSpec};
use zillion_nn::{Passes, Settings};
use zillion_reader::DataConfig;
use zillion_rows::{ByteSize, TableSpec};
use zillion_stream::gate::GateSettings;
use zillion_stream::validation::Settings as ValidationSettings;

use crate::error::{Error, Result};

pub use device::{DeviceChoice, Precision};
pub use eval::EvalConfig;
pub(crate) use eval::Retrieved;
pub use fake_quantize::FakeQuantize;
pub(crate) use identity::{difference, difference_of_model};
pub use join::{EmitConfig, JoinConfig, LateConfig};
pub use learning::{ItemCounts, OutputBias, RateConfig, WarmStart};
pub use mode::{Mode, ServerLoss};
pub use online::{
    AvroConfig, OnlineConfig, ProtobufConfig, StreamConfig, StreamFormat, StreamKind, StreamRole,
};
pub use pruning::PruneConfig;
pub use ps::PsConfig;
pub use publish::{ItemsConfig, PublishConfig};
pub use run::RunConfig;
pub use spill::Memory;
pub use tables::TableConfig;
pub use tune::{TuneConfig, TuneRange, TuneResource, TuneValues};
pub use wire::Wire;

/// The sections and keys that a job file may have at its root.
const ROOT_KEYS: [&str; 20] = [
    "name",
    "seed",
    "data",
    "features",
    "side",
    "labels",
    "columns",
    "tables",
    "model",
    "train",
    "eval",
    "publish",
    "run",
    "ps",
    "online",
    "stream",
    "join",
    "validation",
    "gate",
    "tune",
];

/// A job whose settings have been validated.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name of the run in messages and folder names.
    pub name: String,
    /// The seed of everything random: initial values, dropout, the order of rows.
    pub seed: u64,
    /// The files with the rows, and the settings for reading them.
    pub data: DataConfig,
    /// The features, the labels and the other columns of the rows.
    pub schema: Schema,
    /// The specs of the schema's tables, in its order.
    pub tables: Vec<TableSpec>,
    /// The settings of the dense model.
    pub model: ModelSpec,
    /// The settings of training.
    pub train: TrainConfig,
    /// The figures to measure in addition to those of each label.
    pub eval: EvalConfig,
    /// The settings of publishing versions while the model trains. They never change the result.
    pub publish: Option<PublishConfig>,
    /// The settings of the machine on which the job runs. They never change the result.
    pub run: RunConfig,
    /// The settings of the parameter service that holds the tables; absent: the tables are in the
    /// process of the run. They never change the result.
    pub ps: Option<PsConfig>,
    /// The cadence of a resident run; absent: the defaults. It never changes the rows of batches
    /// that were cut.
    pub online: Option<OnlineConfig>,
    /// The streams of a resident run; empty: the job reads files.
    pub streams: Vec<StreamConfig>,
    /// The settings by which impressions and feedback become rows; absent: rows come whole.
    pub join: Option<JoinConfig>,
    /// The windows of progressive validation; absent: the defaults.
    pub validation: Option<ValidationSettings>,
    /// The gate that judges versions before they are published; absent: no gate.
    pub gate: Option<GateSettings>,
    /// The trials of the job with other settings; absent: the defaults. Training ignores them.
    pub tune: Option<TuneConfig>,
}

/// The `[train]` section: the settings of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// The largest number of passes over the training data.
    pub epochs: u64,
    /// The number of rows in a step.
    pub batch_size: NonZeroUsize,
    /// Whether to leave out the last, partial batch of an epoch.
    pub drop_last: bool,
    /// The optimizer of the dense parameters. Each table has an optimizer of its own.
    pub optimizer: DenseOptimizerSpec,
    /// The largest norm of all gradients together (including those of tables and of the
    /// regulariser); absent: gradients are not clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The largest memory of all tables together; absent: no limit. This limit can change the
    /// result, because rows are evicted or refused when it is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_table_bytes: Option<ByteSize>,
    /// The learning-rate schedule and early stop on the validation AUC; absent: every epoch runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau: Option<PlateauSpec>,
    /// The learning-rate schedule by steps; absent: the rate does not change by steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSpec>,
    /// The share of the weights of rows that is set to zero; absent: tables are not pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<PruneConfig>,
    /// The way in which several trainers train together.
    #[serde(skip_serializing_if = "Mode::is_sync")]
    pub mode: Mode,
    /// The largest number of steps of any trainer that the rows of a step may lack. Only the modes
    /// `hybrid` and `async` have the setting, and they always have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<u64>,
    /// The number of steps that a trainer makes between two pushes. Only the mode `geo` has the
    /// setting, and it always has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_steps: Option<NonZeroUsize>,
    /// The way in which the run goes on after a server was lost.
    #[serde(skip_serializing_if = "ServerLoss::is_rewind")]
    pub on_server_loss: ServerLoss,
    /// The number type to which the gradients of rows are rounded before they are pushed.
    #[serde(skip_serializing_if = "Wire::is_f32")]
    pub wire: Wire,
    /// The number type of the factors of matrix products.
    #[serde(skip_serializing_if = "Precision::is_f32")]
    pub precision: Precision,
    /// The number type to which training rounds the inputs and the weights of large layers, as
    /// serving does; absent: they are not rounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fake_quantize: Option<FakeQuantize>,
    /// The number of batches whose gradients make one step.
    #[serde(skip_serializing_if = "is_one")]
    pub accumulate: NonZeroUsize,
    /// The settings of averaging the dense parameters; absent: no average. With an average, scores
    /// are computed with the averaged parameters instead of the newest ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average: Option<AverageSpec>,
    /// The dense parameters that are frozen, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// The tables that are frozen, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze_tables: Vec<String>,
    /// The dense parameters with a learning rate of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateConfig>,
    /// The source of item frequencies for a retrieval model.
    #[serde(skip_serializing_if = "ItemCounts::is_data")]
    pub item_counts: ItemCounts,
    /// The version from which a new run begins; absent: the run begins with initial weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<WarmStart>,
    /// The loss of each label, by the label's name; the name `*` stands for all other labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub loss: learning::Losses,
    /// The start of the bias of each output.
    #[serde(skip_serializing_if = "OutputBias::is_mean")]
    pub output_bias: OutputBias,
    /// The number of lanes into which the rows of a step are divided. Unlike the number of threads,
    /// this number can change the result.
    pub lanes: NonZeroUsize,
    /// The number of rows in a tile. A tile stays in the cache from layer to layer. This number can
    /// change the result.
    pub tile_rows: NonZeroUsize,
    /// The names of the passes over the model's graph that are not run (see `zillion model graph`).
    /// The setting serves comparisons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes_off: Vec<String>,
    /// The steps between two checkpoints inside an epoch; absent: one checkpoint at the end of each
    /// epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<NonZeroUsize>,
    /// The interval of whole checkpoints inside an epoch, counted in checkpoints. The checkpoints
    /// between them hold only the changes since the previous checkpoint. With 1, all checkpoints
    /// are whole. Checkpoints at the end of an epoch or of a run are always whole.
    #[serde(skip_serializing_if = "is_one")]
    pub full_every: NonZeroUsize,
    /// The number of checkpoints that are kept in addition to the best one.
    pub keep: NonZeroUsize,
}

/// Returns whether a number is 1, which is the default and is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
fn is_one(n: &NonZeroUsize) -> bool {
    n.get() == 1
}

/// Returns whether a count is 0, which is the default and is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
pub(crate) fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Default for TrainConfig {
    fn default() -> Self {
        let nonzero = |n| NonZeroUsize::new(n).expect("a literal above zero");
        Self {
            epochs: 1,
            batch_size: nonzero(4096),
            drop_last: false,
            optimizer: DenseOptimizerSpec::default(),
            clip_norm: None,
            max_table_bytes: None,
            plateau: None,
            schedule: None,
            prune: None,
            mode: Mode::Sync,
            staleness: None,
            local_steps: None,
            on_server_loss: ServerLoss::Rewind,
            wire: Wire::F32,
            precision: Precision::F32,
            fake_quantize: None,
            accumulate: NonZeroUsize::MIN,
            average: None,
            freeze: Vec::new(),
            freeze_tables: Vec::new(),
            rates: Vec::new(),
            item_counts: ItemCounts::Data,
            warm_start: None,
            loss: learning::Losses::new(),
            output_bias: OutputBias::Mean,
            lanes: nonzero(8),
            tile_rows: nonzero(256),
            passes_off: Vec::new(),
            checkpoint_every: None,
            full_every: nonzero(1),
            keep: nonzero(2),
        }
    }
}

impl TrainConfig {
    /// Returns the executor's settings for the model's graphs.
    ///
    /// # Errors
    /// Returns an error if a name in `passes_off` is not the name of a pass.
    pub fn settings(&self) -> Result<Settings> {
        let passes = Passes::without(&self.passes_off).map_err(|error| match error {
            zillion_nn::Error::Setting { reason, .. } => {
                ConfigError::at("train.passes_off", &reason).into()
            }
            other => Error::from(other),
        })?;
        Ok(Settings { lanes: self.lanes.get(), tile_rows: self.tile_rows.get(), passes })
    }
}

impl Job {
    /// Reads and validates a job.
    ///
    /// # Errors
    /// Returns an error if a key or a value is wrong. The error names the key and, if a key or a
    /// value is unknown, the most similar valid one.
    pub fn from_value(value: Value) -> Result<Self> {
        Self::read(value, true)
    }

    /// Reads and validates a job without the places of its streams, as [`Job::portable`] gives it.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`Job::from_value`].
    pub fn from_portable(value: Value) -> Result<Self> {
        Self::read(value, false)
    }

    fn read(value: Value, has_places: bool) -> Result<Self> {
        let root = value
            .as_table()
            .ok_or_else(|| ConfigError::at("", "a job must be a TOML table of sections"))?;
        if let Some(key) = root.keys().find(|k| !ROOT_KEYS.contains(&k.as_str())) {
            return Err(ConfigError::unknown_key("", key, &ROOT_KEYS).into());
        }
        let name: String = read_key(root, "name")?.unwrap_or_else(|| "job".to_owned());
        let seed: u64 = read_key(root, "seed")?.unwrap_or(0);
        let schema = Schema::from_job(&value)?;
        let model = ModelSpec::from_job(&value)?;
        if schema.labels.is_empty() && !matches!(model, ModelSpec::TwoTower(_)) {
            return Err(ConfigError::at(
                "labels",
                "a job needs at least one label; add a section \
                                                  `[labels.NAME]`",
            )
            .into());
        }
        zoo::check_labels(&model, schema.labels.len())?;
        let needs = zoo::needs(&model);
        let mut tables = tables::resolve(&value, &schema, needs, |t| random::text_seed(seed, t))?;
        let mut train: TrainConfig = zillion_config::section(&value, "train")?;
        train.resolve_mode()?;
        if train.clip_norm.is_some_and(|c| !(c.is_finite() && c > 0.0)) {
            return Err(
                ConfigError::at("train.clip_norm", "must be a finite number above 0").into()
            );
        }
        if train.epochs == 0 {
            return Err(ConfigError::at("train.epochs", "must be at least 1, found 0").into());
        }
        let has_streams = root.contains_key("stream");
        if train.full_every.get() > 1 && train.checkpoint_every.is_none() && !has_streams {
            let reason = "has no effect without checkpoints inside an epoch; set \
                          `train.checkpoint_every` too";
            return Err(ConfigError::at("train.full_every", reason).into());
        }
        train.settings()?;
        if let Some(limit) = train.max_table_bytes {
            check_shared_limit(&tables, limit)?;
        }
        let data: DataConfig = zillion_config::section(&value, "data")?;
        data.negatives(&schema)?;
        let publish: Option<PublishConfig> = read_key(root, "publish")?;
        publish.iter().try_for_each(|publish| publish.set_rows(&mut tables))?;
        let run: RunConfig = zillion_config::section(&value, "run")?;
        run.check()?;
        let ps = read_key(root, "ps")?;
        let (online, join) = (read_key(root, "online")?, read_key(root, "join")?);
        if root.get("stream").is_some_and(Value::is_table) {
            let message = "a job has a list of streams; write `[[stream]]` instead of `[stream]`";
            return Err(ConfigError::at("stream", message).into());
        }
        let streams = read_key(root, "stream")?.unwrap_or_default();
        let eval: EvalConfig = zillion_config::section(&value, "eval")?;
        let eval = eval.resolve();
        let job = Self {
            name,
            seed,
            data,
            schema,
            tables,
            model,
            train,
            eval,
            publish,
            run,
            ps,
            online,
            streams,
            join,
            validation: read_key(root, "validation")?,
            gate: read_key(root, "gate")?,
            tune: read_key(root, "tune")?,
        };
        job.tune.iter().try_for_each(TuneConfig::check)?;
        job.check_online(has_places)?;
        job.check_judge()?;
        job.check_eval()?;
        job.check_publish()?;
        job.check_spill()?;
        job.check_ps()?;
        job.check_mode()?;
        job.check_prune()?;
        job.check_fake_quantize()?;
        job.check_learning()?;
        Ok(job)
    }

    /// Checks that the task that the schedule follows exists.
    fn check_judge(&self) -> Result<()> {
        let judge = self.train.plateau.as_ref().and_then(|plateau| plateau.task.as_ref());
        let Some(name) = judge else { return Ok(()) };
        let tasks = self.tasks();
        let known: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
        if known.contains(&name.as_str()) {
            return Ok(());
        }
        Err(ConfigError::unknown_value("train.plateau.task", name, &known).into())
    }

    /// Returns the folder of the run.
    pub fn output(&self) -> PathBuf {
        self.run.output.clone().unwrap_or_else(|| PathBuf::from("runs").join(&self.name))
    }

    /// Returns the tables with a fixed vocabulary, each with its largest number of rows. These
    /// tables must be filled before the first step.
    pub fn dense_tables(&self) -> Vec<(TableId, usize)> {
        let tables = (0..).map(TableId).zip(&self.tables);
        let limit = |rows| usize::try_from(rows).unwrap_or(usize::MAX);
        tables.filter_map(|(id, t)| t.row_limit().map(|rows| (id, limit(rows)))).collect()
    }

    /// Returns the job as TOML, with every default written out.
    pub fn in_force(&self) -> Result<String> {
        toml::to_string(&self.resolved()?).map_err(Error::Print)
    }

    fn resolved(&self) -> Result<toml::Table> {
        let mut root = toml::Table::new();
        root.insert("name".into(), self.name.clone().into());
        root.insert("seed".into(), Value::try_from(self.seed).map_err(Error::Print)?);
        root.insert("data".into(), Value::try_from(&self.data).map_err(Error::Print)?);
        for (key, section) in self.schema.to_job() {
            root.insert(key, section);
        }
        root.insert("tables".into(), tables::to_section(&self.tables)?);
        root.insert("model".into(), Value::try_from(&self.model).map_err(Error::Print)?);
        root.insert("train".into(), Value::try_from(&self.train).map_err(Error::Print)?);
        if self.eval != EvalConfig::default() {
            root.insert("eval".into(), Value::try_from(&self.eval).map_err(Error::Print)?);
        }
        printing::add(&mut root, "publish", self.publish.as_ref())?;
        root.insert("run".into(), Value::try_from(&self.run).map_err(Error::Print)?);
        printing::add(&mut root, "ps", self.ps.as_ref())?;
        printing::add(&mut root, "online", self.online.as_ref())?;
        if !self.streams.is_empty() {
            root.insert("stream".into(), Value::try_from(&self.streams).map_err(Error::Print)?);
        }
        printing::add(&mut root, "validation", self.validation.as_ref())?;
        printing::add(&mut root, "gate", self.gate.as_ref())?;
        printing::add(&mut root, "join", self.join.as_ref())?;
        printing::add(&mut root, "tune", self.tune.as_ref())?;
        root.iter_mut().for_each(|(_, value)| printing::shorten(value));
        Ok(root)
    }

    /// Returns the job with every default, without `[run]`, `[ps]`, `[publish]`, `[online]`,
    /// `[validation]`, `[gate]`, `[tune]` and the places of streams. A checkpoint holds this form.
    /// So it can be evaluated without the job file and by a binary with other defaults.
    pub fn portable(&self) -> Result<Value> {
        let mut root = self.resolved()?;
        root.remove("run");
        root.remove("ps");
        root.remove("publish");
        root.remove("online");
        root.remove("validation");
        root.remove("gate");
        root.remove("tune");
        // The place of a stream may change, as the place of a file may.
        if let Some(streams) = root.get_mut("stream").and_then(Value::as_array_mut) {
            for stream in streams.iter_mut().filter_map(Value::as_table_mut) {
                let places = ["path", "kafka", "avro", "protobuf", "registry"];
                places.into_iter().for_each(|key| drop(stream.remove(key)));
            }
        }
        Ok(Value::Table(root))
    }
}

/// Reads the value of a key at the root of a job, if the job has the key.
fn read_key<T: DeserializeOwned>(root: &toml::Table, key: &str) -> Result<Option<T>> {
    Ok(root.get(key).map(|value| zillion_config::from_value(value, key)).transpose()?)
}
