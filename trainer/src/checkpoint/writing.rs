//! The writing of a checkpoint while training goes on.
//!
//! At the beginning of a checkpoint, everything except the tables is copied. The rows of tables are
//! written in small pieces while steps go on (see
//! [`Checkpointing::begin_checkpoint`](zillion_ps::Checkpointing::begin_checkpoint)). Then a
//! background task writes the rest, renames the folder to its final name, and removes the
//! checkpoints that are not kept any more.
//!
//! # Crash consistency
//! Until the folder is renamed, all earlier checkpoints exist, and a killed run resumes from the
//! newest of them. If the value is dropped before the end, the checkpoint is abandoned and its
//! folder is removed.
//!
//! In a bucket, the checkpoint exists from the moment in which its manifest is created, after all
//! other files. The folder of the run gets its copy of the small files afterwards.

use std::path::{Path, PathBuf};

use zillion_device::durable::Stage;
use zillion_device::{Files, Task, Workers};
use zillion_nn::Params;
use zillion_nn::optim::{Average, DenseOptimizer, write_dense_with};
use zillion_ps::{CheckpointMark, CheckpointTicket, TrainClient};
use zillion_rows::TableParts;

use super::{DENSE, FileDigest, MANIFEST, Manifest, RunBucket, RunDir};
use crate::error::Result;
use crate::frequencies::{self, Frequencies};

/// The size, the hash and the mark of a checkpoint that was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// The size of all files of the checkpoint, in bytes.
    pub(crate) bytes: u64,
    /// The folder of the checkpoint.
    pub(crate) folder: PathBuf,
    /// The BLAKE3 of the checkpoint's manifest.
    pub(crate) blake3: String,
    /// The mark after which the next checkpoint can hold only changes; absent if changes are not
    /// tracked.
    pub(crate) mark: Option<CheckpointMark>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Writing(State);

#[derive(Debug)]
enum State {
    Tables(CheckpointTicket, Box<Rest>),
    Closing(Task<Result<Written>>),
}

/// The contents of a checkpoint other than its tables, copied at its beginning.
#[derive(Debug)]
struct Rest {
    stage: Stage,
    dense: Vec<u8>,
    frequencies: Option<Vec<u8>>,
    /// The manifest, in which the digests of files and the entries of tables are still missing.
    manifest: Manifest,
    retention: Retention,
}

/// The checkpoints of a run that are kept after a new checkpoint is complete.
#[derive(Debug)]
pub(crate) struct Retention {
    pub(crate) dir: RunDir,
    /// The number of newest checkpoints that are kept.
    pub(crate) keep: usize,
    /// The steps of further checkpoints that are kept.
    pub(crate) pinned: Vec<u64>,
    pub(crate) files: Files,
    /// The bucket of the run; `None` if its checkpoints are in folders.
    pub(crate) bucket: Option<RunBucket>,
}

impl Retention {
    /// Removes the checkpoints that are not needed any more after the checkpoint in `newest`.
    fn remove_old(&self, newest: &Path) -> Result<()> {
        if let Some(bucket) = &self.bucket {
            bucket.retain(self.keep, &self.pinned, newest)?;
        }
        self.dir.retain(self.keep, &self.pinned, &self.files)
    }
}

impl Writing {
    /// Begins a checkpoint of the present state. `manifest` gives its step. With `since`, the
    /// checkpoint holds only the changes after that mark. The digests of files and the entries of
    /// tables are added to the manifest later.
    pub(crate) fn begin(
        client: &mut dyn TrainClient,
        since: Option<&CheckpointMark>,
        (params, optimizer, average): (&Params, &DenseOptimizer, Option<&Average>),
        frequencies: Option<&Frequencies>,
        manifest: Manifest,
        retention: Retention,
    ) -> Result<Self> {
        let files = &retention.files;
        let cut = client.next_cut();
        let stage = files.stage(retention.dir.new_path(manifest.step, cut.as_deref()))?;
        let dense = write_dense_with(params, optimizer, average)?;
        let frequencies = frequencies.map(Frequencies::to_bytes);
        // In a bucket, the folder has its final name at once, because the manifest comes last.
        let folder = match &retention.bucket {
            Some(bucket) => bucket.name_of(stage.target()),
            None => stage.path().to_owned(),
        };
        let ticket = match since {
            None => client.begin_checkpoint(&folder, files)?,
            Some(mark) => client.begin_changes(&folder, files, mark)?,
        };
        let rest = Rest { stage, dense, frequencies, manifest, retention };
        Ok(Self(State::Tables(ticket, Box::new(rest))))
    }

    /// Writes the next piece of the checkpoint without waiting. Returns `true` if
    /// [`Writing::finish`] could now end the checkpoint without waiting.
    pub(crate) fn poll(
        self,
        client: &mut dyn TrainClient,
        workers: &Workers,
    ) -> Result<(Self, bool)> {
        match self.0 {
            State::Tables(ticket, rest) => {
                match client.poll_checkpoint(&ticket) {
                    Ok(true) => {}
                    Ok(false) => return Ok((Self(State::Tables(ticket, rest)), false)),
                    Err(error) => {
                        client.abandon_checkpoint(ticket);
                        return Err(error.into());
                    }
                }
                let tables = client.finish_checkpoint(ticket)?;
                let mark = client.checkpoint_mark();
                let closing = workers.spawn(move || rest.write(tables, mark));
                Ok((Self(State::Closing(closing)), false))
            }
            State::Closing(closing) => {
                // A pool without a thread for tasks writes the rest in `finish`.
                let is_done = closing.is_done() || !workers.runs_tasks();
                Ok((Self(State::Closing(closing)), is_done))
            }
        }
    }

    /// Writes the rest of the checkpoint, waits until the checkpoint is complete, and returns its
    /// size, hash and mark.
    pub(crate) fn finish(self, client: &mut dyn TrainClient) -> Result<Written> {
        match self.0 {
            State::Tables(ticket, rest) => {
                let tables = client.finish_checkpoint(ticket)?;
                rest.write(tables, client.checkpoint_mark())
            }
            State::Closing(closing) => closing.join(),
        }
    }

    /// Abandons the checkpoint: stops writing and removes its folder.
    pub(crate) fn abandon(self, client: &mut dyn TrainClient) {
        match self.0 {
            State::Tables(ticket, _) => client.abandon_checkpoint(ticket),
            State::Closing(closing) => closing.cancel(),
        }
    }
}

impl Rest {
    /// Writes the contents of a checkpoint other than its tables, and renames the folder to its
    /// final name.
    fn write(self, tables: Vec<TableParts>, mark: Option<CheckpointMark>) -> Result<Written> {
        let Self { stage, dense, frequencies, mut manifest, retention } = self;
        stage.write_bytes(DENSE, &dense)?;
        let parts = tables.iter().flat_map(TableParts::files);
        let mut bytes = dense.len() as u64 + parts.map(|part| part.bytes).sum::<u64>();
        manifest.dense = FileDigest::of(&dense);
        manifest.tables = tables;
        if let Some(counts) = frequencies {
            stage.write_bytes(frequencies::FILE, &counts)?;
            manifest.frequencies = Some(FileDigest::of(&counts));
            bytes += counts.len() as u64;
        }
        let (manifest, blake3) = manifest.to_bytes();
        stage.write_bytes(MANIFEST, &manifest)?;
        let (folder, bytes) = (stage.target().to_owned(), bytes + manifest.len() as u64);
        if let Some(bucket) = &retention.bucket {
            bucket.commit(stage.path(), &folder)?;
        }
        stage.commit()?;
        // The checkpoint is complete. What is left over now is removed after the next one.
        if let Err(error) = retention.remove_old(&folder) {
            tracing::warn!("old checkpoints of the run cannot be removed: {error}");
        }
        Ok(Written { bytes, folder, blake3, mark })
    }
}
