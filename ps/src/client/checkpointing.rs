//! The part of the contract for checkpoints of tables, which are written in one call or while steps
//! go on.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::TableParts;

use crate::error::Result;
use crate::mark::CheckpointMark;

/// The part of a client that writes checkpoints of the tables and restores them.
pub trait Checkpointing: Send {
    /// Returns whether the checkpoint that has begun is written while steps go on. Otherwise,
    /// [`Checkpointing::finish_checkpoint`] writes it or does not take long, and the caller should
    /// call it at once.
    fn writes_beside_steps(&self) -> bool;

    /// Writes every table below `folder`, and returns the entries of the tables for the manifest.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if another checkpoint is being
    /// written, or if a file cannot be written.
    fn checkpoint(&mut self, folder: &Path, files: &Files) -> Result<Vec<TableParts>> {
        let ticket = self.begin_checkpoint(folder, files)?;
        self.finish_checkpoint(ticket)
    }

    /// Draws the name of the next checkpoint, if checkpoints get into a bucket. No other checkpoint
    /// of the run has this name, and later names are greater in the order of texts. The folder of
    /// a checkpoint is then a relative path, which is its name in the bucket. Returns `None` if
    /// checkpoints get into folders.
    fn next_cut(&mut self) -> Option<String> {
        None
    }

    /// Begins a checkpoint of the present state of the tables, below `folder`. This call copies no
    /// row: each later step writes a part of the checkpoint. The results of these steps do not
    /// depend on the checkpoint.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if another checkpoint is being
    /// written, or if a file cannot be written.
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket>;

    /// Starts to track the changes that [`Checkpointing::begin_changes`] needs. Tracking takes
    /// memory in proportion to the number of removed keys.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet.
    fn follow_checkpoints(&mut self) -> Result<()>;

    /// Returns the mark of the last checkpoint that was finished or restored. Returns `None` if
    /// there is no such checkpoint since [`Checkpointing::follow_checkpoints`].
    fn checkpoint_mark(&mut self) -> Option<CheckpointMark>;

    /// Begins a checkpoint as [`Checkpointing::begin_checkpoint`] does, but the checkpoint holds
    /// only the rows that changed and the keys that were removed since an earlier checkpoint.
    /// Tables with whole-table rules, and tables whose rows grow, are written with all rows. Before
    /// such a checkpoint is restored, the caller must set the folders of the unchanged rows
    /// ([`TableParts::stand_on`]).
    ///
    /// `since` is the mark of one of the last two checkpoints that were finished or restored. The
    /// mark of the older one is allowed, because the caller may lose the files of a finished
    /// checkpoint before it renames their folder.
    ///
    /// # Errors
    /// Returns the errors of [`Checkpointing::begin_checkpoint`], and an error for any other mark.
    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: &CheckpointMark,
    ) -> Result<CheckpointTicket>;

    /// Writes a part of a checkpoint without waiting for the disk. Returns `true` if
    /// [`Checkpointing::finish_checkpoint`] would return without waiting, because everything is
    /// written or because a write has failed.
    ///
    /// # Errors
    /// Returns an error if the checkpoint was abandoned, for example by a restore.
    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool>;

    /// Writes the rest of a checkpoint, and returns the entries of the tables for the manifest. The
    /// files have the same bytes as the files that [`Checkpointing::checkpoint`] would have written
    /// when this checkpoint began. The caller may make this call at any moment of a step.
    ///
    /// # Errors
    /// Returns an error if a write of this checkpoint has failed, or if the checkpoint was
    /// abandoned.
    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>>;

    /// Abandons a checkpoint. After this call has returned, no file of the checkpoint is written.
    /// The caller must remove the files that were written before.
    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket);

    /// Returns whether an operator has requested a checkpoint that has not begun yet.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Records that a checkpoint is complete, and the steps of the checkpoints that the run keeps,
    /// in ascending order. Operators see them, and a request for a checkpoint that was known when
    /// the checkpoint began is then served.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, or if the run was rewound.
    fn record_checkpoint(&mut self, kept: &[u64]) -> Result<()> {
        let _ = kept;
        Ok(())
    }

    /// Returns the step of the checkpoint to which an operator has set the run back, or `None` if
    /// the newest checkpoint is the one to continue from.
    fn restore_step(&self) -> Option<u64> {
        None
    }

    /// Replaces all rows by the rows of a checkpoint. If the entries of the checkpoint name
    /// checkpoints below it, their rows are included. A checkpoint that is being written is
    /// abandoned. After this call, the next step may have any number. The lists of tracked changes
    /// are cleared. The current dirty epoch becomes that of the restored checkpoint, and deltas can
    /// be written after this epoch has ended.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, or if a file differs from its
    /// entry in the manifest (the error names the file). After an error, the tables are unchanged.
    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()>;
}

/// The ticket of a checkpoint that has begun. One checkpoint is open at a time.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that has begun must be finished or abandoned"]
pub struct CheckpointTicket(u64);

impl CheckpointTicket {
    /// Creates the ticket of the checkpoint with this number. A client creates one ticket for each
    /// checkpoint.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the checkpoint.
    pub fn number(&self) -> u64 {
        self.0
    }
}
