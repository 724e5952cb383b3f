//! Checkpoints of tables, written at once or while steps go on.

use std::path::Path;

use zillion_device::Files;
use zillion_embedding::SnapshotMark;
use zillion_rows::TableParts;

use crate::error::Result;

/// The part of a client that writes checkpoints of the tables and restores them.
pub trait Checkpointing: Send {
    /// Writes every table below `folder`, and returns the entries of the tables for the manifest.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if another checkpoint is being
    /// written, or if a file cannot be written.
    fn checkpoint(&mut self, folder: &Path, files: &Files) -> Result<Vec<TableParts>> {
        let ticket = self.begin_checkpoint(folder, files)?;
        self.finish_checkpoint(ticket)
    }

    /// Begins a checkpoint of the present state of the tables, below `folder`. Nothing is copied
    /// yet: each later step writes a part of the checkpoint. The results of these steps do not
    /// depend on the checkpoint.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if another checkpoint is being
    /// written, or if a file cannot be written.
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket>;

    /// Starts to track the changes that [`Checkpointing::begin_changes`] needs. Tracking takes
    /// memory in proportion to the keys that are removed.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet.
    fn follow_checkpoints(&mut self) -> Result<()>;

    /// Returns the mark of the last checkpoint that was finished or restored. Returns `None` if
    /// there is no such checkpoint since [`Checkpointing::follow_checkpoints`].
    fn checkpoint_mark(&mut self) -> Option<SnapshotMark>;

    /// Begins a checkpoint like [`Checkpointing::begin_checkpoint`] that holds only changes: the
    /// rows that changed and the keys that were removed since another checkpoint. Tables with
    /// whole-table rules, or with rows that grow, are written with all rows. Before such a
    /// checkpoint is restored, the caller must set the folders of the unchanged rows
    /// ([`TableParts::stand_on`]).
    ///
    /// `since` is the mark of one of the last two checkpoints that were finished or restored. The
    /// older one is allowed because finished files may still be lost before their folder is
    /// renamed.
    ///
    /// # Errors
    /// Returns the errors of [`Checkpointing::begin_checkpoint`], and an error for any other mark.
    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<CheckpointTicket>;

    /// Writes a part of a checkpoint without waiting for the disk. Returns whether
    /// [`Checkpointing::finish_checkpoint`] would return without waiting, because everything is
    /// written or because a write failed.
    ///
    /// # Errors
    /// Returns an error if the checkpoint was abandoned, for example by a restore.
    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool>;

    /// Writes the rest of a checkpoint, and returns the entries of the tables for the manifest. The
    /// files are byte for byte the files that [`Checkpointing::checkpoint`] would have written at
    /// the beginning. The call is allowed at any moment.
    ///
    /// # Errors
    /// Returns an error if a write has failed since the beginning, or if the checkpoint was
    /// abandoned.
    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>>;

    /// Abandons a checkpoint. Nothing is written any more when this call returns; the caller
    /// removes the files that were written.
    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket);

    /// Replaces all rows by those of a checkpoint (and of the checkpoints below it, if its entries
    /// name them), and abandons a checkpoint that is being written. Any step may begin next. The
    /// lists of tracked changes are cleared. The dirty epoch is that of the checkpoint, and deltas
    /// can be written after this epoch has ended.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, or if a file does not match its
    /// entry (the error names the file). The tables are then unchanged.
    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()>;
}

/// The ticket of a checkpoint that has begun. One checkpoint is open at a time.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that has begun must be finished or abandoned"]
pub struct CheckpointTicket(u64);

impl CheckpointTicket {
    /// Makes the ticket of the checkpoint with this number. A client makes each ticket once.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the checkpoint.
    pub fn number(&self) -> u64 {
        self.0
    }
}
