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
//! newest of them. A checkpoint that is dropped is abandoned, and its folder is removed.

use std::path::Path;

use zillion_device::durable::Stage;
use zillion_device::{Files, Task, Workers};
use zillion_embedding::SnapshotMark;
use zillion_nn::Params;
use zillion_nn::optim::{Average, DenseOptimizer, write_dense_with};
use zillion_ps::{CheckpointTicket, TrainClient};
use zillion_rows::TableParts;

use super::{DENSE, FileDigest, MANIFEST, Manifest};
use crate::error::Result;
use crate::frequencies::{self, Frequencies};

/// The work to do after the folder was renamed to its final name.
pub(crate) type Then = Box<dyn FnOnce() -> Result<()> + Send>;

/// A function that makes the manifest from the digests of the files and the parts of the tables.
pub(crate) type MakeManifest =
    Box<dyn FnOnce(FileDigest, Option<FileDigest>, Vec<TableParts>) -> Manifest + Send>;

/// The size, the hash and the mark of a checkpoint that was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// The size of all files of the checkpoint, in bytes.
    pub(crate) bytes: u64,
    /// The BLAKE3 of the checkpoint's manifest.
    pub(crate) blake3: String,
    /// The mark from which the next checkpoint can hold changes; absent if changes are not tracked.
    pub(crate) mark: Option<SnapshotMark>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Writing(State);

#[derive(Debug)]
enum State {
    Tables(CheckpointTicket, Rest),
    Closing(Task<Result<Written>>),
}

/// The contents of a checkpoint other than its tables, copied at its beginning.
struct Rest {
    stage: Stage,
    dense: Vec<u8>,
    frequencies: Option<Vec<u8>>,
    manifest: MakeManifest,
    then: Then,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Writing {
    /// Begins a checkpoint of the present state, in the folder `target`. With `since`, the
    /// checkpoint holds the changes since that mark.
    pub(crate) fn begin(
        target: &Path,
        files: &Files,
        client: &mut dyn TrainClient,
        since: Option<SnapshotMark>,
        (params, optimizer, average): (&Params, &DenseOptimizer, Option<&Average>),
        frequencies: Option<&Frequencies>,
        (manifest, then): (MakeManifest, Then),
    ) -> Result<Self> {
        let stage = files.stage(target)?;
        let dense = write_dense_with(params, optimizer, average)?;
        let frequencies = frequencies.map(Frequencies::to_bytes);
        let ticket = match since {
            None => client.begin_checkpoint(stage.path(), files)?,
            Some(mark) => client.begin_changes(stage.path(), files, mark)?,
        };
        Ok(Self(State::Tables(ticket, Rest { stage, dense, frequencies, manifest, then })))
    }

    /// Continues the checkpoint without waiting. Returns `true` if [`Writing::finish`] would not
    /// wait either.
    pub(crate) fn poll(
        self,
        client: &mut dyn TrainClient,
        workers: &Workers,
    ) -> Result<(Self, bool)> {
        match self.0 {
            State::Tables(ticket, rest) => {
                if !client.poll_checkpoint(&ticket)? {
                    return Ok((Self(State::Tables(ticket, rest)), false));
                }
                let tables = client.finish_checkpoint(ticket)?;
                let mark = client.checkpoint_mark();
                let closing = workers.spawn(move || rest.write(tables, mark));
                Ok((Self(State::Closing(closing)), false))
            }
            State::Closing(closing) => {
                let is_done = closing.is_done();
                Ok((Self(State::Closing(closing)), is_done))
            }
        }
    }

    /// Writes everything that is left of the checkpoint, and waits for it.
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
    fn write(self, tables: Vec<TableParts>, mark: Option<SnapshotMark>) -> Result<Written> {
        let Self { stage, dense, frequencies, manifest, then } = self;
        stage.write_bytes(DENSE, &dense)?;
        let mut counted = None;
        if let Some(bytes) = frequencies {
            stage.write_bytes(frequencies::FILE, &bytes)?;
            counted = Some(FileDigest::of(&bytes));
        }
        let parts = tables.iter().flat_map(TableParts::files);
        let mut bytes = dense.len() as u64 + parts.map(|part| part.bytes).sum::<u64>();
        bytes += counted.as_ref().map_or(0, |digest| digest.bytes);
        let (manifest, blake3) = manifest(FileDigest::of(&dense), counted, tables).to_bytes();
        stage.write_bytes(MANIFEST, &manifest)?;
        stage.commit()?;
        then()?;
        Ok(Written { bytes: bytes + manifest.len() as u64, blake3, mark })
    }
}
