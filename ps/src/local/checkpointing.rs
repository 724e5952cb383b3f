//! The implementation of [`Checkpointing`] for local tables.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::TableParts;

use super::{LocalClient, POLLED_PART};
use crate::client::{CheckpointTicket, Checkpointing};
use crate::error::{Error, Result};
use crate::mark::CheckpointMark;

impl Checkpointing for LocalClient {
    fn writes_beside_steps(&self) -> bool {
        self.workers.runs_tasks()
    }

    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket> {
        self.allow_checkpoint("begin_checkpoint")?;
        self.settle()?;
        self.tables.begin_snapshot(&self.workers, folder, files)?;
        Ok(self.ticket())
    }

    fn follow_checkpoints(&mut self) -> Result<()> {
        self.check_settled("follow_checkpoints")?;
        self.tables.follow_snapshots();
        Ok(())
    }

    fn checkpoint_mark(&mut self) -> Option<CheckpointMark> {
        self.tables.snapshot_mark().map(CheckpointMark::local)
    }

    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: &CheckpointMark,
    ) -> Result<CheckpointTicket> {
        self.allow_checkpoint("begin_changes")?;
        let Some(since) = since.as_local() else {
            let reason = "the mark belongs to tables on servers, but the tables are in this \
                          process; write a whole checkpoint";
            return Err(Error::Argument { call: "begin_changes", reason: reason.to_owned() });
        };
        self.settle()?;
        self.tables.begin_changes(&self.workers, folder, files, since)?;
        Ok(self.ticket())
    }

    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool> {
        self.check_ticket("poll_checkpoint", ticket)?;
        self.copy_on(POLLED_PART);
        Ok(self.tables.snapshot_is_ready())
    }

    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>> {
        self.check_ticket("finish_checkpoint", &ticket)?;
        self.is_open = false;
        Ok(self.tables.finish_snapshot(&self.workers)?)
    }

    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket) {
        if self.check_ticket("abandon_checkpoint", &ticket).is_ok() {
            self.is_open = false;
            self.tables.abandon_snapshot();
        }
    }

    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()> {
        if self.broken.is_none() {
            self.order.check_restorable("restore")?;
        }
        self.abandon_resident();
        self.tables.restore(&self.workers, folder, parts)?;
        self.order.reset();
        self.staged = None;
        self.broken = None;
        self.is_open = false;
        Ok(())
    }
}
