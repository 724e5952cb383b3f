//! The writing of a checkpoint while training goes on.
//!
//! At its beginning, everything but the tables is copied; the tables' rows are written in small
//! pieces beside the steps (see
//! [`Checkpointing::begin_checkpoint`](zillion_ps::Checkpointing::begin_checkpoint)). When the rows
//! are written, a background task writes the rest, gives the folder its name, and removes the
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

/// The work to do when the folder has its name.
pub(crate) type Then = Box<dyn FnOnce() -> Result<()> + Send>;

/// A function that makes the manifest of what was written.
pub(crate) type MakeManifest =
    Box<dyn FnOnce(FileDigest, Option<FileDigest>, Vec<TableParts>) -> Manifest + Send>;

/// A checkpoint that was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// The bytes of all its files.
    pub(crate) bytes: u64,
    /// The BLAKE3 of its manifest.
    pub(crate) blake3: String,
    /// The mark that the next one can stand on, where checkpoints are followed.
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

/// The parts of a checkpoint beside its tables, as they were at its beginning.
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
    /// Begins a checkpoint of this moment, which becomes `target`. With `since` it holds the
    /// changes since another one.
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

    /// Continues without waiting. Returns `true` where [`Writing::finish`] would not wait either.
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

    /// Writes the rest of the checkpoint.
    pub(crate) fn finish(self, client: &mut dyn TrainClient) -> Result<Written> {
        match self.0 {
            State::Tables(ticket, rest) => {
                let tables = client.finish_checkpoint(ticket)?;
                rest.write(tables, client.checkpoint_mark())
            }
            State::Closing(closing) => closing.join(),
        }
    }

    /// Abandons the checkpoint: nothing is written any more, and its folder is removed.
    pub(crate) fn abandon(self, client: &mut dyn TrainClient) {
        match self.0 {
            State::Tables(ticket, _) => client.abandon_checkpoint(ticket),
            State::Closing(closing) => closing.cancel(),
        }
    }
}

impl Rest {
    /// Writes the parts of a checkpoint beside its tables, and gives the folder its name.
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
