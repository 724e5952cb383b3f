//! Checkpoints of tables, written at once or beside the steps.

use std::path::Path;

use zillion_device::Files;
use zillion_embedding::SnapshotMark;
use zillion_rows::TableParts;

use crate::error::Result;

/// Writes checkpoints of the tables and restores them.
pub trait Checkpointing: Send {
    /// Writes every table below `folder` and returns what the manifest must keep.
    ///
    /// # Errors
    /// While gradients wait to be applied or another checkpoint is written, or where the disk
    /// refuses.
    fn checkpoint(&mut self, folder: &Path, files: &Files) -> Result<Vec<TableParts>> {
        let ticket = self.begin_checkpoint(folder, files)?;
        self.finish_checkpoint(ticket)
    }

    /// Begins a checkpoint of the tables as they are now, below `folder`, and copies nothing yet.
    /// Later steps go on, and each writes a part of the checkpoint. Their results do not depend on
    /// it.
    ///
    /// # Errors
    /// While gradients wait to be applied or another checkpoint is written, or where the disk
    /// refuses.
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket>;

    /// Starts to remember what [`Checkpointing::begin_changes`] needs. It costs memory in
    /// proportion to the keys that are removed.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn follow_checkpoints(&mut self) -> Result<()>;

    /// Returns the mark of the last checkpoint that was finished or restored, or `None` where there
    /// is none since [`Checkpointing::follow_checkpoints`].
    fn checkpoint_mark(&mut self) -> Option<SnapshotMark>;

    /// Begins a checkpoint like [`Checkpointing::begin_checkpoint`] that holds changes only. Of
    /// tables without whole-table rules whose rows do not grow it holds the rows that changed and
    /// the keys that were removed since another checkpoint. The caller must say what its entries
    /// stand on ([`TableParts::stand_on`]) before it is restored.
    ///
    /// `since` is the mark of one of the last two checkpoints that were finished or restored.
    /// Finished files may still be lost before they have their name, and the next checkpoint then
    /// stands on the files before them.
    ///
    /// # Errors
    /// As [`Checkpointing::begin_checkpoint`]; for any other mark.
    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<CheckpointTicket>;

    /// Writes a part of a checkpoint, without waiting for the disk. Returns whether
    /// [`Checkpointing::finish_checkpoint`] would return without waiting, because everything is
    /// written or because something failed.
    ///
    /// # Errors
    /// Where the checkpoint was abandoned, by a restore for example.
    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool>;

    /// Writes the rest of a checkpoint and returns what the manifest must keep. The files are
    /// equal, to the byte, to those that [`Checkpointing::checkpoint`] would have written at the
    /// beginning. The call may come at any moment.
    ///
    /// # Errors
    /// Where the disk refused at any time since the beginning; where the checkpoint was abandoned.
    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>>;

    /// Abandons a checkpoint. Nothing is written any more when this returns; the caller removes the
    /// files that were written.
    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket);

    /// Replaces all rows by those of a checkpoint (and of those that it stands on, where its
    /// entries say so), and abandons a checkpoint that is being written. Any step may begin next.
    /// Changes that were tracked are forgotten. The dirty epoch is the checkpoint's, and deltas can
    /// be written once it has ended.
    ///
    /// # Errors
    /// While gradients wait to be applied; for a file that does not match its entry, which the
    /// error names. The tables are then as they were.
    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()>;
}

/// The ticket of a checkpoint that has begun. One checkpoint is open at a time.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that has begun is finished or given up"]
pub struct CheckpointTicket(u64);

impl CheckpointTicket {
    /// Makes the ticket of a client's checkpoint of this number. A client makes each ticket once.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the checkpoint.
    pub fn number(&self) -> u64 {
        self.0
    }
}
