//! What can go wrong in a training run.

use std::path::PathBuf;

use zillion_config::ConfigError;

/// The result of everything fallible here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run, an evaluation or a checkpoint failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of the job file.
    #[error("job: {0}")]
    Config(#[from] ConfigError),
    /// The schema part of the job file.
    #[error("job: {0}")]
    Schema(#[from] zillion_feature::SchemaError),
    /// Reading rows.
    #[error(transparent)]
    Reader(#[from] zillion_reader::ReaderError),
    /// Tables.
    #[error(transparent)]
    Embedding(#[from] zillion_embedding::Error),
    /// The parameter service.
    #[error(transparent)]
    ParameterService(#[from] zillion_ps::Error),
    /// The dense model.
    #[error(transparent)]
    Model(#[from] zillion_nn::Error),
    /// Scoring.
    #[error(transparent)]
    Scorer(#[from] zillion_scorer::Error),
    /// The registry.
    #[error(transparent)]
    Registry(#[from] zillion_registry::Error),
    /// The machine: files, memory, threads.
    #[error(transparent)]
    Device(#[from] zillion_device::DeviceError),
    /// A configuration could not be printed.
    #[error("cannot print the configuration: {0}")]
    Print(#[source] toml::ser::Error),
    /// A checkpoint folder has no manifest, or one that cannot be trusted.
    #[error("checkpoint refused: {problem}; delete the folder to fall back to an older checkpoint: {}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A checkpoint belongs to another job.
    #[error("checkpoint of another job: `{key}` was {saved} when it was written and is {given} now; \
             train into another folder (run.output), or undo the change: {}", path.display())]
    OtherJob {
        /// The checkpoint.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// Its value in the checkpoint.
        saved: String,
        /// Its value in the job.
        given: String,
    },
    /// A run cannot begin from the checkpoint of another model.
    #[error("checkpoint of another model: `{key}` was {saved} when it was written and is {given} now; \
             begin without --from, or undo the change: {}", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// Its value in the checkpoint.
        saved: String,
        /// Its value in the job.
        given: String,
    },
    /// What a version has does not fit the job that is to begin from it.
    #[error("cannot begin from {version} (train.warm_start): {what}: {problem}")]
    WarmStart {
        /// The version.
        version: String,
        /// The parameter or table.
        what: String,
        /// Why it does not fit.
        problem: String,
    },
    /// The training files are not those that the checkpoint's position counts in.
    #[error("checkpoint inside an epoch of other files: training file {index} was {saved} when it was written and is {given} now; \
             put the files back as they were, or train into another folder (run.output): {}", path.display())]
    OtherFiles {
        /// The checkpoint.
        path: PathBuf,
        /// Which file of the list, counted from 1.
        index: usize,
        /// The file when the checkpoint was written.
        saved: String,
        /// The file now.
        given: String,
    },
    /// The schedule judges by an AUC that does not exist.
    #[error(
        "the validation set's {rows} rows are of one class, so there is no AUC for train.plateau to judge by; \
             validate on rows of both classes, set train.plateau.metric = \"logloss\", or remove train.plateau"
    )]
    OneClass {
        /// Rows of the validation set.
        rows: u64,
    },
    /// The run's folder already holds checkpoints, and the caller did not ask to go on from them.
    #[error("the folder already holds checkpoints: go on with --resume, or choose another folder with --set run.output=..: {}", path.display())]
    WouldOverwrite {
        /// The folder.
        path: PathBuf,
    },
    /// There is no checkpoint to go on from or to evaluate.
    #[error("no checkpoint found: train first: {}", path.display())]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A file of the run's folder cannot be read or written.
    #[error("{action}: {source}: {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A node that was asked for is not in the model.
    #[error("the model has no node `{name}`; {hint}`zillion model graph JOB` lists all")]
    UnknownNode {
        /// What was asked for.
        name: String,
        /// What was perhaps meant.
        hint: String,
    },
    /// A node's values belong to no row of the batch.
    #[error(
        "node `{name}` is {shape}, the rows of a table: look at the lookups that read it instead"
    )]
    NotByRow {
        /// What was asked for.
        name: String,
        /// Its shape.
        shape: String,
    },
    /// The loss is not a number any more.
    #[error(
        "the loss is {loss} at step {step}: training has diverged; lower the learning rates, set train.clip_norm, or standardise the numeric features (checkpoints before this step are intact)"
    )]
    Diverged {
        /// The step.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// Training went well, and its last version could not be published.
    #[error("{problem}; training is done, and `zillion publish {}` publishes what it came to", checkpoint.display())]
    NotPublished {
        /// Why.
        problem: Box<Error>,
        /// What is there to be published.
        checkpoint: PathBuf,
    },
    /// An epoch without a step.
    #[error(
        "none of the {rows} training rows is left to train: raise data.sample or data.negatives.keep, look at the rows that data.max_bad_rows leaves out, or lower train.batch_size where train.drop_last is set"
    )]
    NothingToTrain {
        /// Rows of the training data.
        rows: u64,
    },
    /// The job asks for something that this part cannot do.
    #[error("job: {0}")]
    Unsupported(String),
}
