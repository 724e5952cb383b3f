//! The parts of the contract that the lender does. Changed rows go back to it first.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::layer::LayerManifest;
use zillion_rows::{RowSource, TableParts};

use super::BorrowingClient;
use crate::client::{
    CheckpointTicket, Checkpointing, Continued, Contribution, Exchanged, Exchanging, LayerTarget,
    Lending, Pacing, Publishing, Since, TrainClient, TrainerPlace,
};
use crate::error::{Error, Result};
use crate::mark::CheckpointMark;

impl<L: TrainClient + Lending> Exchanging for BorrowingClient<L> {
    fn place(&self) -> TrainerPlace {
        self.lender.place()
    }

    fn start(&mut self, note: Vec<u8>) -> Result<Vec<u8>> {
        self.lender.start(note)
    }

    fn exchange(&mut self, mine: Contribution) -> Result<Exchanged> {
        self.lender.exchange(mine)
    }

    fn leave(&mut self, error: &Error) {
        self.lender.leave(error);
    }

    fn abort(&mut self, error: &str) {
        self.lender.abort(error);
    }
}

/// A trainer at its own speed does not borrow rows, so only the question whether the run continues
/// goes to the lender.
impl<L: TrainClient + Lending> Pacing for BorrowingClient<L> {
    fn continued(&self) -> Option<Continued> {
        self.lender.continued()
    }
}

impl<L: TrainClient + Lending> Checkpointing for BorrowingClient<L> {
    fn writes_beside_steps(&self) -> bool {
        self.lender.writes_beside_steps()
    }

    fn next_cut(&mut self) -> Option<String> {
        self.lender.next_cut()
    }

    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket> {
        self.give_back()?;
        self.lender.begin_checkpoint(folder, files)
    }

    fn follow_checkpoints(&mut self) -> Result<()> {
        self.give_back()?;
        self.lender.follow_checkpoints()
    }

    fn checkpoint_mark(&mut self) -> Option<CheckpointMark> {
        self.lender.checkpoint_mark()
    }

    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: &CheckpointMark,
    ) -> Result<CheckpointTicket> {
        self.give_back()?;
        self.lender.begin_changes(folder, files, since)
    }

    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool> {
        self.lender.poll_checkpoint(ticket)
    }

    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>> {
        self.lender.finish_checkpoint(ticket)
    }

    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket) {
        self.lender.abandon_checkpoint(ticket);
    }

    fn wants_checkpoint(&self) -> bool {
        self.lender.wants_checkpoint()
    }

    fn record_checkpoint(&mut self, kept: &[u64]) -> Result<()> {
        self.lender.record_checkpoint(kept)
    }

    fn restore_step(&self) -> Option<u64> {
        self.lender.restore_step()
    }

    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()> {
        // If the files are bad, the lender keeps its rows, which must be the newest ones.
        self.give_back()?;
        self.lender.restore(folder, parts)?;
        self.drop_rows()
    }
}

impl<L: TrainClient + Lending> Publishing for BorrowingClient<L> {
    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.give_back()?;
        self.lender.track_changes(epochs)
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.give_back()?;
        self.lender.write_layer(since, folder, files)
    }

    fn write_base(&mut self, target: &LayerTarget) -> Result<Option<LayerManifest>> {
        self.give_back()?;
        self.lender.write_base(target)
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.give_back()?;
        self.lender.end_dirty_epoch()
    }

    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>> {
        self.give_back()?;
        self.lender.row_source()
    }
}
