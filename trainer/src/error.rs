//! The errors of a training run.

use std::path::{Path, PathBuf};

use zillion_config::ConfigError;

/// The result of every operation of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of a run, an evaluation or a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid setting in the job file.
    #[error("job: {0}")]
    Config(#[from] ConfigError),
    /// An invalid schema in the job file.
    #[error("job: {0}")]
    Schema(#[from] zillion_feature::SchemaError),
    /// An error of reading rows.
    #[error(transparent)]
    Reader(#[from] zillion_reader::ReaderError),
    /// An error of the tables.
    #[error(transparent)]
    Embedding(#[from] zillion_embedding::Error),
    /// An error of the parameter service.
    #[error(transparent)]
    ParameterService(#[from] zillion_ps::Error),
    /// An error of a stream, its log of decisions or its dead letters.
    #[error(transparent)]
    Stream(#[from] zillion_stream::Error),
    /// An error of progressive validation.
    #[error(transparent)]
    Validation(#[from] zillion_stream::validation::ValidationError),
    /// An error of the gate.
    #[error(transparent)]
    Gate(#[from] zillion_stream::gate::GateError),
    /// An error of the join of impressions and feedback.
    #[error(transparent)]
    Join(#[from] zillion_stream::joiner::JoinError),
    /// An event of a partition that the watermarks do not know.
    #[error(transparent)]
    UnknownPartition(#[from] zillion_stream::watermark::UnknownPartition),
    /// A pending row whose bytes do not have the columns of the job.
    #[error(transparent)]
    WrongRow(#[from] crate::online::WrongRow),
    /// A message without a column that the job reads, or with another type in it.
    #[error(
        "stream `{stream}`, `{name}` ({partition}), offset {offset}: {problem}; the writer of the stream has \
         changed its schema, so bring the column back, or adapt the job and begin a new run"
    )]
    StreamSchema {
        /// The name of the stream.
        stream: String,
        /// The name of the partition: the topic with the number in it, or the sub-folder.
        name: String,
        /// The partition of the message.
        partition: zillion_stream::Partition,
        /// The offset of the message.
        offset: u64,
        /// The column and the problem.
        problem: String,
    },
    /// The thread of the feed has ended without a reason, because it has panicked.
    #[error(
        "the thread that reads the streams has panicked, which is a defect of zillion; report it \
         with the output of the run, and start the run again"
    )]
    FeedEnded,
    /// The thread of a merge of layers has ended without a reason, because it has panicked.
    #[error(
        "the thread that merges layers has panicked, which is a defect of zillion; report it with \
         the output of the run"
    )]
    MergePanicked,
    /// A catalogue of items that cannot be published.
    #[error("the catalogue of items `{path}`: {reason}")]
    Catalogue {
        /// The path of the file, as the job names it.
        path: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// A replay of the log of decisions that gives other batches than the first time.
    #[error(
        "decision {decision} of the log cannot be repeated: {problem}; undo the changes of the job \
         and of the data, or begin at a later checkpoint"
    )]
    ReplayDiffers {
        /// The number of the decision.
        decision: u64,
        /// The problem with the decision.
        problem: String,
    },
    /// An error of the dense model.
    #[error(transparent)]
    Model(#[from] zillion_nn::Error),
    /// An error of scoring rows.
    #[error(transparent)]
    Scorer(#[from] zillion_scorer::Error),
    /// An error of the registry.
    #[error(transparent)]
    Registry(#[from] zillion_registry::Error),
    /// An error of the bucket of a run.
    #[error(transparent)]
    Store(#[from] zillion_store::Error),
    /// An error of the machine: files, memory or threads.
    #[error(transparent)]
    Device(#[from] zillion_device::DeviceError),
    /// An error of a GPU.
    #[error(transparent)]
    Gpu(#[from] zillion_device::gpu::GpuError),
    /// A device that cannot train the job.
    #[error(
        "the device `{device}` cannot train this job: {problem}; set `run.device` to \"cpu\" or \
         \"auto\", or remove the setting"
    )]
    DeviceRefused {
        /// The name of the device, such as `cuda:0`.
        device: String,
        /// The setting that the device cannot train with, and the reason.
        problem: String,
    },
    /// An evaluation that its caller has stopped.
    #[error("the evaluation was stopped before its end; evaluate again")]
    EvaluationStopped,
    /// A run that ended because of its GPU: the GPU failed, or its memory is too small.
    #[error("training stopped at step {step}, because of the GPU `{device}`: {cause}; {remedy}")]
    StoppedByGpu {
        /// The step in which the run ended.
        step: u64,
        /// The name of the device, such as `cuda:0`.
        device: String,
        /// The error of the GPU.
        cause: Box<Error>,
        /// The checkpoint to resume from.
        remedy: String,
    },
    /// A configuration that could not be printed.
    #[error("cannot print the configuration: {0}")]
    Print(#[source] toml::ser::Error),
    /// A checkpoint with a missing or damaged file, or with a format that this binary does not
    /// read.
    #[error(
        "checkpoint {} is refused: {problem}; delete its folder to resume from an older checkpoint",
        path.display()
    )]
    Checkpoint {
        /// The file that is refused.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// A checkpoint that belongs to another job.
    #[error(
        "checkpoint {} belongs to another job: `{key}` was {saved} when it was written and is \
         {given} now; train into another folder (`run.output`), or undo the change",
        path.display()
    )]
    OtherJob {
        /// The folder of the checkpoint.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// The value in the checkpoint.
        saved: String,
        /// The value in the job.
        given: String,
    },
    /// A checkpoint of another model, which a run cannot begin from.
    #[error(
        "checkpoint {} belongs to another model: `{key}` was {saved} when it was written and is \
         {given} now; begin without it, or undo the change",
        path.display()
    )]
    OtherModel {
        /// The folder of the checkpoint.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// The value in the checkpoint.
        saved: String,
        /// The value in the job.
        given: String,
    },
    /// A version that does not fit the job of a run that begins from it.
    #[error("{what} of version {version} does not fit the job (`train.warm_start`): {problem}")]
    WarmStart {
        /// The name of the version.
        version: String,
        /// The parameter or table that does not fit.
        what: String,
        /// The reason why it does not fit.
        problem: String,
    },
    /// Training files that differ from the files of the checkpoint, so the checkpoint's position is
    /// not valid.
    #[error(
        "checkpoint {} was written inside an epoch over other training files: file {index} was \
         {saved} then and is {given} now; restore the files, or train into another folder \
         (`run.output`)",
        path.display()
    )]
    OtherFiles {
        /// The folder of the checkpoint.
        path: PathBuf,
        /// The place of the first different file in the list, counted from 1.
        index: usize,
        /// The name and size of this file in the checkpoint, or `absent`.
        saved: String,
        /// The name and size of this file in the present list, or `absent`.
        given: String,
    },
    /// A schedule that follows the validation AUC. The AUC does not exist, because all validation
    /// rows are of one class.
    #[error(
        "the validation set has {rows} rows of one class, so `train.plateau` has no AUC to \
         follow; validate on rows of both classes, set `train.plateau.metric = \"logloss\"`, or \
         remove `train.plateau`"
    )]
    OneClass {
        /// The number of rows in the validation set.
        rows: u64,
    },
    /// A folder that already holds checkpoints, although the caller did not ask to resume.
    #[error(
        "folder {} already holds checkpoints; resume that run, replace it (`overwrite`), or choose \
         another folder (`run.output`)",
        path.display()
    )]
    WouldOverwrite {
        /// The folder of the run.
        path: PathBuf,
    },
    /// A change of a run that would destroy data, or that cannot be made in its present state.
    #[error("{0}")]
    Refused(String),
    /// A folder without a checkpoint to resume from or to evaluate.
    #[error("folder {} has no checkpoint; correct the path, or train first", path.display())]
    NoCheckpoint {
        /// The folder that was searched.
        path: PathBuf,
    },
    /// A file of the run's folder that cannot be read or written.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A node that is not in the model.
    #[error("unknown node `{name}`; {hint}list all nodes with `zillion model graph JOB`")]
    UnknownNode {
        /// The name of the node that was requested.
        name: String,
        /// A hint that names the most similar node, or an empty text.
        hint: String,
    },
    /// A node whose rows are those of a table. The rows of a batch are needed.
    #[error(
        "node `{name}` of shape {shape} has rows of a table instead of rows of a batch; name a \
         lookup that reads this node"
    )]
    NotByRow {
        /// The name of the node that was requested.
        name: String,
        /// The shape of the node.
        shape: String,
    },
    /// A loss that is no longer a finite number.
    #[error(
        "training has diverged: the loss is {loss} at step {step}; lower the learning rates, set \
         `train.clip_norm`, or standardise the numeric features (earlier checkpoints are intact)"
    )]
    Diverged {
        /// The step of the batch.
        step: u64,
        /// The loss of the batch.
        loss: f64,
    },
    /// A successful training whose last version could not be published.
    #[error(
        "the last version is not published: {problem}; training is complete, so publish its \
         result with `zillion publish {}`",
        checkpoint.display()
    )]
    NotPublished {
        /// The error of the publication.
        problem: Box<Error>,
        /// The checkpoint that can be published.
        checkpoint: PathBuf,
    },
    /// A run over streams that has stopped after its last version could not be published.
    #[error(
        "the last version of the run in {} is not published: {problem}; remove the cause and start \
         the run again with the same job, which publishes its present state",
        run.display()
    )]
    WaitsForPublication {
        /// The error of the publication.
        problem: Box<Error>,
        /// The folder of the run.
        run: PathBuf,
    },
    /// A step of several trainers whose parts do not fit together.
    #[error(
        "the parts of the trainers do not fit together: {problem}; start all trainers with the \
         same job, the same data and the same number of trainers"
    )]
    Exchange {
        /// The difference between the parts.
        problem: String,
    },
    /// A run that lost a server or a trainer again and again, without a new checkpoint in between.
    #[error(
        "the run was set back {rewinds} times without a new checkpoint (`ps.rewinds`), the last \
         time because {cause}; find out why servers or trainers are lost, then resume the run"
    )]
    GaveUp {
        /// The number of times that the run was set back since its newest checkpoint.
        rewinds: u64,
        /// The error that ended the last attempt.
        cause: Box<Error>,
    },
    /// An epoch without a step.
    #[error(
        "none of the {rows} training rows is left to train; raise `data.sample` or \
         `data.negatives.keep`, check the rows that `data.max_bad_rows` leaves out, or lower \
         `train.batch_size` where `train.drop_last` is set"
    )]
    NothingToTrain {
        /// The number of rows in the training data.
        rows: u64,
    },
    /// A job without the model, the settings or the data that an operation needs.
    #[error("job: {0}")]
    Unsupported(String),
}

impl Error {
    /// Returns the error that has ended a generation of the parameter service, if this error is or
    /// contains such an error. The run can then continue from its newest checkpoint.
    pub(crate) fn rewound(&self) -> Option<&zillion_ps::Error> {
        if let Self::ParameterService(error) = self {
            return Some(error).filter(|error| error.is_rewound());
        }
        if matches!(
            self,
            Self::GaveUp { .. } | Self::NotPublished { .. } | Self::WaitsForPublication { .. }
        ) {
            return None;
        }
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<zillion_ps::Error>() {
                return Some(found).filter(|error| error.is_rewound());
            }
            next = error.source();
        }
        None
    }

    /// Returns whether the error is one of a GPU, in whichever part of a step.
    pub(crate) fn is_of_gpu(&self) -> bool {
        matches!(
            self,
            Self::Gpu(_)
                | Self::Model(zillion_nn::Error::Gpu(_))
                | Self::Embedding(zillion_embedding::Error::Gpu(_))
                | Self::ParameterService(zillion_ps::Error::Tables(zillion_embedding::Error::Gpu(
                    _
                )))
        )
    }

    /// Returns a function that makes the error of an action on a file.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
