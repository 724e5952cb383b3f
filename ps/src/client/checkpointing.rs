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
    /// While gradients wait to be applied or another checkpoint is written, or where the disk refuses.
    fn checkpoint(&mut self, folder: &Path, files: &Files) -> Result<Vec<TableParts>> {
        let ticket = self.begin_checkpoint(folder, files)?;
        self.finish_checkpoint(ticket)
    }

    /// Begins a checkpoint of the tables as they are now, below `folder`, and copies nothing yet: steps go on,
    /// and write some of it each. What they compute does not depend on it.
    ///
    /// # Errors
    /// While gradients wait to be applied or another checkpoint is written, or where the disk refuses.
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket>;

    /// Remembers from now on what [`Checkpointing::begin_changes`] needs. Costs memory by the keys that go.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn follow_checkpoints(&mut self) -> Result<()>;

    /// The mark of the last checkpoint that was finished or restored. `None` where there is none since
    /// [`Checkpointing::follow_checkpoints`].
    fn checkpoint_mark(&mut self) -> Option<SnapshotMark>;

    /// Begins a checkpoint like [`Checkpointing::begin_checkpoint`] that holds, of tables without whole-table rules
    /// whose rows do not grow, only the rows that changed and the keys that went since another one. What its entries stand on is for the
    /// caller to say ([`TableParts::stand_on`]) before it is restored.
    ///
    /// `since` is the mark of one of the last two checkpoints that were finished or restored: files that were
    /// finished may yet be lost before they have their name, and the next ones then stand on those before.
    ///
    /// # Errors
    /// As [`Checkpointing::begin_checkpoint`]; for any other mark.
    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<CheckpointTicket>;

    /// Writes a little of a checkpoint, without waiting for the disk, and says whether
    /// [`Checkpointing::finish_checkpoint`] would not have to wait: all is written, or something failed.
    ///
    /// # Errors
    /// Where the checkpoint was given up, by a restore for example.
    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool>;

    /// Writes what is left of a checkpoint and returns what the manifest must keep: the files, to the byte, that
    /// [`Checkpointing::checkpoint`] would have written instead of the beginning. May come at any moment.
    ///
    /// # Errors
    /// Where the disk refused at any time since the beginning; where the checkpoint was given up.
    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>>;

    /// Gives a checkpoint up. Nothing is written any more when this returns; what is there is left to whoever
    /// staged the folder.
    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket);

    /// Replaces all rows by those of a checkpoint (and of those that it stands on, where its entries say so), and gives
    /// one up that is being written. Any step may begin next. Changes that were tracked are
    /// forgotten; the dirty epoch is the checkpoint's, and once it has ended, deltas since then can be written.
    ///
    /// # Errors
    /// While gradients wait to be applied; names the file that is not as it should be. The tables are
    /// then as they were.
    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()>;
}

/// A checkpoint that has begun; one at a time.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that has begun is finished or given up"]
pub struct CheckpointTicket(u64);

impl CheckpointTicket {
    /// The ticket of a client's checkpoint of this number, which it gives once.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn number(&self) -> u64 {
        self.0
    }
}
