//! A checkpoint: the whole state of a training at one point in time, in a folder of its own.
//!
//! ```text
//! checkpoints/step-000000001234/
//!     MANIFEST               contents of the folder, with a hash of every file and of itself
//!     dense.safetensors      dense parameters, running statistics, optimizer state
//!     frequencies            how often each item occurs in the training data, for retrieval models
//!     tables/<table>/part-00000.arrow ...
//! ```
//!
//! A checkpoint may hold only the changes since another checkpoint, its parent. Its manifest names
//! the parent, whose folder lies beside its own folder. The parent may also have a parent; the last
//! checkpoint of this chain is whole (see [`chain`]).
//!
//! The folders of a run in a bucket have names with a cut: `step-000000001234-cut-…`. The rows are
//! only in the bucket, and the other files also in the folder of the run (see [`bucket`]).
//!
//! # Crash consistency
//! The folder is staged under a hidden name, synced and renamed: it exists whole or not at all.
//!
//! # Invariants
//! The bytes of a checkpoint depend only on the job (without `[run]` and `[ps]`), on the number of
//! trainers, and on the position in training. They are the same for any number of threads, shards
//! and servers, and for a run that was killed and resumed.

mod bucket;
mod chain;
mod manifest;
mod products;
mod run_dir;
mod run_lock;
mod shrink;
mod writing;

use std::path::{Path, PathBuf};

use zillion_device::Workers;
use zillion_embedding::TableView;
use zillion_nn::optim::{Average, DenseOptimizer, read_params, read_scoring_params};
use zillion_nn::{ParamSpec, Params};
use zillion_ps::CheckpointMark;
use zillion_rows::{PartSource, TableSpec};

use crate::error::{Error, Result};
use crate::frequencies::{self, Frequencies};
use crate::job::{Job, difference, difference_of_model};

pub(crate) use bucket::RunBucket;
pub(crate) use chain::Link;
pub use manifest::{Best, FileDigest, Manifest, Parent, Progress, TableTime, TrainingFile};
pub use products::{KeptAlgorithm, ProductChoice};
pub(crate) use run_dir::CHECKPOINTS;
pub use run_dir::RunDir;
pub(crate) use run_lock::{LOCK, RunLock};
pub use shrink::Shrunk;
pub(crate) use writing::{Retention, Writing, Written};

const MANIFEST: &str = "MANIFEST";
const DENSE: &str = "dense.safetensors";

/// A checkpoint on disk whose manifest has been read and verified.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// The contents of the checkpoint. The entries of its tables also name the folders with the
    /// rows that did not change.
    pub manifest: Manifest,
    /// The BLAKE3 of the manifest.
    blake3: String,
    /// The number of checkpoints below this one in its chain.
    behind: usize,
}

impl Checkpoint {
    /// Opens a checkpoint, and verifies its manifest and the manifests of the checkpoints below it
    /// in its chain. The dense file and the parts of tables are verified when they are read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let (mut manifest, blake3) = Manifest::read(&path.join(MANIFEST))?;
        let behind = chain::resolve(&path, &mut manifest)?;
        Ok(Self { path, manifest, blake3, behind })
    }

    /// Returns the link to this checkpoint, which the next checkpoint of the run stores.
    pub(crate) fn link(&self, mark: CheckpointMark) -> Link {
        Link::new(&self.path, self.blake3.clone(), mark, self.behind)
    }

    /// Returns the BLAKE3 of the manifest, which identifies the checkpoint.
    pub(crate) fn blake3(&self) -> &str {
        &self.blake3
    }

    /// Returns the number of checkpoints below this one in its chain: 0 if it is whole.
    pub fn behind(&self) -> usize {
        self.behind
    }

    /// Opens a checkpoint. `path` is the folder of a checkpoint or the folder of a run. For the
    /// folder of a run, the function opens the checkpoint of the best epoch.
    pub fn find(path: &Path) -> Result<Self> {
        if path.join(MANIFEST).exists() {
            return Self::open(path);
        }
        if !path.is_dir() {
            return Err(Error::NoCheckpoint { path: path.to_owned() });
        }
        RunDir::new(path).best()
    }

    /// Returns the folder of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the job that wrote the checkpoint, without the places of its streams.
    pub fn job(&self) -> Result<Job> {
        Job::from_portable(self.manifest.job.clone())
    }

    /// Reads the dense file and verifies it against the manifest.
    fn dense(&self) -> Result<Vec<u8>> {
        self.read(DENSE, "cannot read the dense parameters", &self.manifest.dense)
    }

    /// Reads the frequencies of items in the training data. Returns `None` if the model does not
    /// use them.
    pub(crate) fn frequencies(&self) -> Result<Option<Frequencies>> {
        let Some(digest) = &self.manifest.frequencies else { return Ok(None) };
        let bytes = self.read(frequencies::FILE, "cannot read the items' frequencies", digest)?;
        Frequencies::from_bytes(&bytes, &self.path.join(frequencies::FILE)).map(Some)
    }

    /// Reads a file of the checkpoint and verifies it against its digest.
    fn read(&self, name: &str, action: &'static str, digest: &FileDigest) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        let bytes = std::fs::read(&path).map_err(Error::io(action, &path))?;
        if FileDigest::of(&bytes) != *digest {
            let problem = "its bytes differ from the bytes that were written".to_owned();
            return Err(Error::Checkpoint { path, problem });
        }
        Ok(bytes)
    }

    /// Reads the dense parameters for scoring. They are the averaged parameters if the job asks for
    /// an average.
    pub fn params(&self, specs: &[ParamSpec]) -> Result<Params> {
        Ok(read_scoring_params(specs, &self.dense()?)?)
    }

    /// Restores the dense parameters and the state of the optimizer.
    pub fn restore_dense(&self, params: &mut Params, optimizer: &mut DenseOptimizer) -> Result<()> {
        self.lend_dense(params, optimizer)?.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Restores the average of the dense parameters.
    pub(crate) fn restore_average(&self, average: &mut Average) -> Result<()> {
        Ok(average.read(&self.dense()?)?)
    }

    /// Restores the dense parameters for a new run that begins from this checkpoint. If the file
    /// holds a fitting state of the optimizer, this state is restored and the result is `None`.
    /// Otherwise, the optimizer keeps its initial state, and the function returns the reason.
    pub(crate) fn lend_dense(
        &self,
        params: &mut Params,
        optimizer: &mut DenseOptimizer,
    ) -> Result<Option<zillion_nn::Error>> {
        let bytes = self.dense()?;
        params.copy_from(&read_params(params.specs(), &bytes)?)?;
        Ok(optimizer.read(&bytes).err())
    }

    /// Opens one table: maps its files and verifies them.
    pub fn table(&self, spec: TableSpec, workers: &Workers) -> Result<TableView> {
        Ok(TableView::open(workers, &self.path, spec, &self.manifest.tables)?)
    }

    /// Opens the rows of all tables for reading: maps their files and verifies them.
    pub fn rows(&self, job: &Job, workers: &Workers) -> Result<PartSource> {
        let (specs, parts) = (job.tables.clone(), &self.manifest.tables);
        Ok(PartSource::open(workers, &self.path, specs, parts)?)
    }

    /// Verifies that the training files have not changed, if the checkpoint was written inside an
    /// epoch. A position in the order of rows is valid only for the same list of files.
    pub fn check_files(&self, files: &[TrainingFile]) -> Result<()> {
        if self.manifest.cursor.row == 0 {
            return Ok(());
        }
        let difference = TrainingFile::difference(&self.manifest.files, files);
        difference.map_or(Ok(()), |(index, saved, given)| {
            Err(Error::OtherFiles { path: self.path.clone(), index: index + 1, saved, given })
        })
    }

    /// Verifies that a new run of `job` can begin from this checkpoint: its tables and its model
    /// must be the same.
    pub fn check_model(&self, job: &Job) -> Result<()> {
        let path = self.path.clone();
        difference_of_model(&self.manifest.job, &job.portable()?).map_or(Ok(()), |found| {
            let (key, saved, given) = found;
            Err(Error::OtherModel { path, key, saved, given })
        })
    }

    /// Verifies that `job` differs from the checkpoint's job in no setting that changes the result.
    pub fn check_job(&self, job: &Job) -> Result<()> {
        let path = self.path.clone();
        difference(&self.manifest.job, &job.portable()?).map_or(Ok(()), |found| {
            let (key, saved, given) = found;
            Err(Error::OtherJob { path, key, saved, given })
        })
    }
}
